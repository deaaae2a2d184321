"""The estimate and the bound of a prompt."""

from __future__ import annotations

import base64
import json
import random
import re
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat import prompt
from gateway.chat.prompt import (
    ENCODED_TOKENS,
    FILE_TOKENS,
    MAX_PARTS,
    MESSAGE_ALLOWANCE,
    REQUEST_ALLOWANCE,
    REWRITTEN_TIMES,
    SETTINGS_BYTES,
    TOOLS_ALLOWANCE,
    WINDOW,
    PartTokens,
    PromptBound,
    check_bounds,
    check_encoding,
)
from gateway.chat.request import BodyRules, check, check_in_steps

# The estimate of a body's input tokens.
LONG = base64.b64encode(bytes(range(256)) * 3000).decode()
"""A megabyte that looks like a picture."""
MEGABYTE = len(LONG) // 4


def fields_with(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}


def body(**fields: Any) -> bytes:
    return json.dumps(fields_with(**fields)).encode()


def estimate(raw: bytes) -> int:
    parsed = check(raw, BodyRules())
    assert parsed.prompt_tokens_estimate <= parsed.prompt_tokens_bound()
    return parsed.prompt_tokens_estimate


def saying(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]}


def test_a_short_conversation_counts_a_token_for_four_bytes_of_its_messages() -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert estimate(body(messages=messages, temperature=0.5)) == -(-len(json.dumps(messages)) // 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "word " * 8000}]},
        {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 400}}] * 450},
        {"functions": [{"name": "f", "description": "x" * 400}] * 450},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["word"] * 25_000}}}},
        {"anything": {"at": ["all"] * 10_000}},
        {"stream_options": {"x": "y" * 10_000}},
        {"x" * 10_000: 1},
    ],
    ids=str.split("messages tools functions response_format another options name"),
)
def test_every_field_counts(fields: dict[str, Any]) -> None:
    raw = body(**fields)
    assert len(raw) - SETTINGS_BYTES <= 4 * estimate(raw) <= len(raw)


@given(st.dictionaries(st.text(max_size=20), st.text(min_size=100)), st.text(min_size=100), st.booleans())
def test_escapes_count_at_least_as_the_characters_they_stand_for(
    fields: dict[str, str], text: str, ascii_only: bool
) -> None:
    written = {"user": "", **{f"x {name}": value for name, value in fields.items()}}
    whole = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, **written}
    raw = json.dumps(whole, ensure_ascii=ascii_only).encode("utf-8", "replace")
    texts = len("".join([*written, *written.values(), text]).encode("utf-8", "replace"))
    assert 4 * estimate(raw) >= texts - SETTINGS_BYTES


def test_characters_written_as_escapes_count_as_characters() -> None:
    conversation = [{"role": "user", "content": "\u4f60\u597d" * 5000}]
    escaped = estimate(body(messages=conversation))
    plain = estimate(json.dumps(json.loads(body(messages=conversation)), ensure_ascii=False).encode())
    assert abs(escaped - plain) <= 2


@pytest.mark.parametrize("text", ["\\u", "\\u0000", "\\\\u", "\\", '\\"', "\\n"])
def test_text_that_looks_like_escapes_is_not_hidden(text: str) -> None:
    content = text * 50_000
    assert estimate(body(messages=[{"role": "user", "content": content}])) >= len(content) // 4
    hidden = estimate(body(**{content: 1}, messages=[{"role": "user", "content": "word " * 20_000}]))
    assert hidden >= (100_000 + len(content) - SETTINGS_BYTES) // 4


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}", "detail": "high"}},
        {"type": "image_url", "image_url": f"data:image/jpeg;charset=x;base64,{LONG}"},
        {"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/x-wav;base64,{LONG}"}},
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{LONG}"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{LONG}"}},
    ],
    ids=lambda part: part["type"],
)
def test_an_encoded_part_counts_a_flat_figure(part: dict[str, Any]) -> None:
    assert 0 < estimate(body(**saying(part))) - ENCODED_TOKENS < 100
    assert 0 < estimate(body(**saying(part, part, part))) - 3 * ENCODED_TOKENS < 200
    slashed = body(**saying(part)).replace(b"/", b"\\/")
    assert 0 < estimate(slashed) - ENCODED_TOKENS < 100, "as PHP writes it"


def test_a_small_picture_counts_its_bytes() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
    assert estimate(body(**saying(part))) < 200


TEXTS: dict[str, dict[str, Any]] = {
    "in a text part": saying({"type": "text", "text": f"data:image/png;base64,{LONG}"}),
    "as the content": {"messages": [{"role": "user", "content": f"data:image/png;base64,{LONG}"}]},
    "beside a text": saying({"type": "text", "text": LONG, "image_url": {"url": "data:image/png;base64,AA"}}),
    "in a part of another type": saying({"type": "text", "image_url": {"url": f"data:image/png;base64,{LONG}"}}),
    "in another member": saying({"type": "image_url", "image_url": {"url": "data:,", "data": f"data:image/png;base64,{LONG}"}}),
    "as a text file": saying({"type": "file", "file": {"file_data": f"data:text/plain;base64,{LONG}"}}),
    "not encoded": saying({"type": "image_url", "image_url": {"url": f"data:image/svg,{LONG}"}}),
    "an address": saying({"type": "image_url", "image_url": {"url": f"https://h/;base64,{LONG}"}}),
    "later in the address": saying({"type": "image_url", "image_url": {"url": f"x data:image/png;base64,{LONG}"}}),
    "in a tool": {"functions": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}]},
    "in a call": {"messages": [{"role": "assistant", "tool_calls": [{"image_url": {"url": f"data:image/png;base64,{LONG}"}}]}]},
    "in quotes": saying({"type": "text", "text": f'{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{LONG}"}}}}'}),
    "deeper": saying({"type": "x", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}]}),
    "in an odd part": saying({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}, "text"),
}  # fmt: skip


@pytest.mark.parametrize("place", TEXTS)
def test_long_text_does_not_pass_for_a_picture(place: str) -> None:
    assert estimate(body(**TEXTS[place])) >= MEGABYTE - SETTINGS_BYTES


def test_a_picture_hides_no_text() -> None:
    slashes = "data:image/png;base64," + "/\u4f60\\u" * 100_000
    words = {"type": "text", "text": "word " * 10_000}
    part = {"type": "image_url", "image_url": {"url": slashes}}
    assert estimate(body(**saying(part, words))) >= 12_500


# The bound of a prompt: no tokenizer and no template comes to more, and an encoded part counts what the model states for it.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
HTML = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&'\x7f"})


def bound(raw: bytes) -> PromptBound:
    return check(raw, BodyRules()).prompt_bound


def dumped(value: Any, *, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "replace")


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), min_size=1, max_size=4), st.booleans())
def test_no_text_counts_less_than_its_bytes(texts: list[str], ascii_only: bool) -> None:
    messages = [{"role": "user", "content": text, "name": text} for text in texts]
    raw = dumped(fields_with(messages=messages, user=texts[0]), ascii_only=ascii_only)
    needed = sum(2 * len(text.encode("utf-8", "replace")) + MESSAGE_ALLOWANCE for text in texts)
    assert bound(raw).text >= needed + REQUEST_ALLOWANCE


@pytest.mark.parametrize("text", ["\u4f60\u597d", "\U0001f600", "\u00fc", 'a "quoted"\n', "\\\\", "\\u0041", "\t\b"])
def test_escapes_count_nearly_as_the_characters_they_stand_for(text: str) -> None:
    content = text * 10_000
    messages = [{"role": "user", "content": content}]
    size = len(content.encode())
    spare = 1000 + (size // 2 if text in ("\U0001f600", "\u00fc") else 0)  # each escape counts three bytes
    for ascii_only in (True, False):
        assert size <= bound(dumped(fields_with(messages=messages), ascii_only=ascii_only)).text <= size + spare


@settings(deadline=None)
@given(st.text(alphabet='\\"u0041dn\n\u4f60', min_size=1, max_size=20), st.integers(0, 20))
def test_an_escape_between_two_windows_hides_no_text(text: str, shift: int) -> None:
    content = "x" * shift + text * (2 * WINDOW // len(text))
    raw = dumped(fields_with(messages=[{"role": "user", "content": content}]), ascii_only=True)
    assert bound(raw).text >= len(content.encode())


def tokens_of(text: str) -> int:
    """Return how many tokens a text has at most, where the tokenizer knows a run of spaces, and of others no more than bytes."""
    return len(re.sub(r"\n *", "##", text).encode("utf-8", "replace"))


@pytest.mark.parametrize("ascii_only", [True, False])
@settings(deadline=None)
@given(value=JSON)
def test_what_a_template_writes_again_counts_what_any_encoder_makes_of_it(ascii_only: bool, value: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": value}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps(value)}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": json.dumps(value)},
    ]
    for field, given_value in (("tools", tools), ("functions", tools), ("response_format", value), ("anything", value)):
        counted = bound(dumped(fields_with(**{field: given_value}), ascii_only=ascii_only)).text
        for rewritten in (
            json.dumps(given_value),
            json.dumps(given_value, ensure_ascii=False),
            json.dumps(given_value, indent=4),
            json.dumps(given_value).translate(HTML),
        ):
            assert counted >= tokens_of(rewritten)
    counted = bound(dumped(fields_with(messages=messages), ascii_only=ascii_only)).text
    again = json.dumps(json.dumps(value)).translate(HTML), json.dumps(value, indent=4)
    assert counted >= sum(map(tokens_of, again))


@pytest.mark.parametrize(("written", "rewritten"), [("1e15", 18), ("1E20", 21), ("-1e+20", 22), ("0.1", 19)])
def test_numbers_count_with_all_their_digits(written: str, rewritten: int) -> None:
    plain = body(tools=[{"type": "function", "function": {"enum": ["x"]}}])
    numbers = plain.replace(b'"x"', ",".join([written] * 1000).encode())
    assert bound(numbers).text - bound(plain).text >= 1000 * (rewritten + 2) - 5


def test_tools_come_with_instructions() -> None:
    assert bound(body(tools=[])).text - bound(body(stop=[])).text >= TOOLS_ALLOWANCE


URL = f"data:image/png;base64,{LONG}"
PDF = f"data:application/pdf;base64,{LONG}"
ENCODED: dict[str, tuple[dict[str, Any], PromptBound]] = {
    "picture": ({"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, PromptBound(0, 1)),
    "picture without an object": ({"type": "image_url", "image_url": URL}, PromptBound(0, 1)),
    "small picture": ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, PromptBound(0, 1)),
    "picture by address": ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, PromptBound(0, 1)),
    "picture by its number": ({"type": "image_url", "image_url": None, "uuid": "7"}, PromptBound(0, 1)),
    "picture of another dialect": ({"type": "input_image", "image_url": "https://a/b.png"}, PromptBound(0, 1)),
    "picture without a type": ({"image_url": {"url": "https://a/b.png"}}, PromptBound(0, 1)),
    "sound": ({"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}}, PromptBound(0, 0, 1)),
    "sound by address": ({"type": "audio_url", "audio_url": {"url": "https://a/b.wav"}}, PromptBound(0, 0, 1)),
    "film": ({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{LONG}"}}, PromptBound(0, 0, 0, 1)),
    "file": ({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}, PromptBound(0, 0, 0, 1)),
    "file by its id": ({"type": "file", "file": {"file_id": "file-7"}}, PromptBound(0, 0, 0, 1)),
    "file as a picture": ({"type": "image_url", "image_url": {"url": PDF}}, PromptBound(0, 1, 0, 1)),
    "two in one": ({"type": "image_url", "image_url": "https://a/b", "file": {"file_id": "7"}}, PromptBound(0, 1, 0, 1)),
    "named twice": ({"type": "text", "text": "x", "input_audio": {"data": "AA"}}, PromptBound(0, 0, 1)),
    "unknown": ({"type": "image", "source": {"type": "url", "url": "https://a/b"}}, PromptBound(0, 1)),
    "odd": ({"type": 7}, PromptBound(0, 1)),
    "nested": ({"type": "text", "content": [{"type": "file", "file": {"file_id": "7"}}]}, PromptBound(0, 0, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODED)
def test_an_encoded_part_counts_by_its_kind_and_not_by_its_bytes(name: str) -> None:
    part, expected = ENCODED[name]
    for count in (1, 3):
        found = bound(body(**saying(*[part] * count)))
        assert found.text < 1000
        counts = (found.images, found.sounds, found.files)
        assert counts == (count * expected.images, count * expected.sounds, count * expected.files)
    slashed = bound(body(**saying(part)).replace(b"/", b"\\/"))
    assert (slashed.images, slashed.sounds, slashed.files) == (expected.images, expected.sounds, expected.files)
    assert slashed.text < 1000, "as PHP writes it"


def test_a_part_may_stand_without_a_list_and_no_message_names_an_earlier_sound() -> None:
    assert bound(body(messages=[{"role": "user", "content": ENCODED["picture"][0]}])).images == 1
    assert bound(body(messages=[{"role": "assistant", "content": "x", "audio": None}])).sounds == 0
    with pytest.raises(Refused, match="Send what it says as 'content'"):
        bound(body(messages=[{"role": "assistant", "audio": {"id": "audio_7"}}]))


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"text": "x", "image_url": None}, "x", None, 7, []])
def test_other_parts_count_their_bytes_alone(part: Any) -> None:
    found = bound(body(**saying(part)))
    assert (found.images, found.sounds, found.files) == (0, 0, 0)


LONG_TEXTS: dict[str, dict[str, Any]] = {
    "a text part": saying({"type": "text", "text": URL}),
    "the content": {"messages": [{"role": "user", "content": URL}]},
    "a text beside a picture": saying({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "x": LONG}),
    "a text file": saying({"type": "file", "file": {"file_data": f"data:text/plain;base64,{LONG}"}}),
    "a picture that is text": saying({"type": "image_url", "image_url": {"url": f"data:image/svg+xml,{LONG}"}}),
    "an address": saying({"type": "image_url", "image_url": {"url": f"https://h/;base64,{LONG}"}}),
    "a part in another": saying({"type": "x", "content": [{"type": "image_url", "image_url": {"url": URL}}]}),
    "an unknown part": saying({"type": "image", "image": URL}),
    "a tool": {"tools": [{"type": "function", "function": {"type": "image_url", "image_url": {"url": URL}}}]},
    "a call": {"messages": [{"role": "assistant", "tool_calls": [{"image_url": {"url": URL}}]}]},
    "the first of two members": saying({"type": "image_url", "image_url": {"url": "@"}}),
}  # fmt: skip


@pytest.mark.parametrize("place", LONG_TEXTS)
def test_what_may_be_read_as_text_counts_its_bytes(place: str) -> None:
    raw = body(**LONG_TEXTS[place]).replace(b'"url": "@"', f'"url": "{URL}", "url": ""'.encode())
    assert bound(raw).text >= len(LONG)


def test_thousands_of_parts_are_counted_exactly() -> None:
    parts = [{"type": "file", "file": {"file_id": "7"}}] * MAX_PARTS
    found = bound(body(**saying(*parts)))
    assert (found.files, found.tokens(PartTokens())) == (MAX_PARTS, found.text + MAX_PARTS * FILE_TOKENS)
    with pytest.raises(Refused, match="more than 2000 pictures, sounds and files"):
        bound(body(**saying(*parts, parts[0])))
    with pytest.raises(Refused, match="more than 2000"):
        bound(body(**saying({"type": "image", "content": parts})))


@settings(deadline=None)
@given(JSON)
def test_a_byte_counts_a_bounded_number_of_tokens(value: Any) -> None:
    raw = body(tools=[{"type": "custom", "custom": value}])
    extra = MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE + TOOLS_ALLOWANCE
    assert bound(raw).text <= REWRITTEN_TIMES * len(raw) + extra


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "custom", "custom": "<'>" * WINDOW}]},
        {"messages": [{"role": "user", "content": "\n" * WINDOW}]},
        {"messages": [{"role": "tool", "content": "<" * WINDOW}]},
        saying(*[{"type": "file", "file": {"file_id": "7"}}] * 1000),
    ],
    ids=["tools", "escapes", "results", "parts"],
)
def test_long_work_is_done_in_steps(fields: dict[str, Any]) -> None:
    def pauses(raw: bytes) -> int:
        return sum(1 for _ in check_in_steps(raw, BodyRules()))

    raw = body(**fields)
    same_size = body(messages=[{"role": "user", "content": "x" * (len(raw) - len(body()) + 2)}])
    assert pauses(raw) > pauses(same_size)


def test_the_fields_of_the_parts_are_read_as_they_are_written() -> None:
    """Guards an assumption of the module: absent fields of what is decoded are the default itself."""
    raw = body(messages=[{"role": "user"}, {"role": "assistant", "content": None}])
    assert bound(raw) == PromptBound(len(raw) + 2 * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE)
    assert msgspec.structs.asdict(PartTokens()) == {"image": 4800, "audio": 20_000, "file": 128_000, "added": 0}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "tool_result_json", "input": {"a": '\n"' * 500}}],
        [{"type": "tool_result_json", "input": {"a": "\x01" * 500}}],
        [{"type": "text", "text": {"a": '\n"' * 500}}],
        [{"type": "text", "text": "a", "content": [{"b": '\n"' * 500}]}],
        [{"type": "text", "text": '\n"' * 500}, ['\n"' * 500]],
        {"a": '\n"' * 500},
        [['\n"' * 500]],
        [{"type": "x", "d": [1] * 500}],
    ],
)
def test_what_an_upstream_may_write_as_json_counts_as_json(content: Any) -> None:
    raw = body(messages=[{"role": "user", "content": content}])
    for written in (
        json.dumps(content),
        json.dumps(content, ensure_ascii=False),
        json.dumps(content, separators=(",", ":")),
    ):
        assert bound(raw).text >= len(written.encode())


# The bounds of a body are the same wherever a window of it ends.
BOUNDS_TEXTS = ['"', "\\", "[{", "}]", '\\"', "ä€😀", "x", "\\\\", ""]


def nested(depth: int, random: random.Random) -> object:
    """Return a value of a known depth, with strings full of brackets and escapes."""
    text = "".join(random.choices(BOUNDS_TEXTS, k=9))
    if not depth:
        return text
    rest = [text, nested(depth - 1, random), [[]] if depth > 2 else text]
    random.shuffle(rest)
    return rest if random.random() < 0.5 else {text + str(number): each for number, each in enumerate(rest)}


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64])
def test_the_depth_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(prompt, "WINDOW", window)
    chance = random.Random(window)
    for _ in range(40):
        depth = chance.randint(1, 8)
        raw = msgspec.json.encode(nested(depth, chance))
        list(check_bounds(raw, depth))
        with pytest.raises(Refused, match="nested deeper"):
            list(check_bounds(raw, depth - 1))


def test_too_many_brackets_and_strings_are_refused_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "WINDOW", 64)
    monkeypatch.setattr(prompt, "MAX_BRACKETS", 10)
    monkeypatch.setattr(prompt, "MAX_STRINGS", 10)
    list(check_bounds(b"[%b]" % b",".join([b"[]"] * 9), 2))
    with pytest.raises(Refused, match="10 arrays and objects"):
        list(check_bounds(b"[%b]" % b",".join([b"[]"] * 1000), 2))
    list(check_bounds(b"[%b]" % b",".join([b'"\\""'] * 10), 2))
    with pytest.raises(Refused, match="10 strings"):
        list(check_bounds(b"[%b]" % b",".join([b'"\\""'] * 11), 2))


@pytest.mark.parametrize("window", [5, 6, 7, 8])
def test_the_encoding_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(prompt, "WINDOW", window)
    good = "aä€😀".encode() * 5
    list(check_encoding(good))
    for at, bad in chain(((at, b"\xff") for at in range(len(good))), ((at, b"\x80") for at in range(len(good)))):
        raw = good[:at] + bad + good[at:]
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            with pytest.raises(UnicodeDecodeError) as found:
                list(check_encoding(raw))
            assert found.value.start == error.start or abs(found.value.start - error.start) < 4
        else:
            list(check_encoding(raw))


def test_a_large_body_is_checked_with_pauses() -> None:
    raw = b"[%b]" % b",".join([b"1"] * 200_000)
    assert len(list(check_bounds(raw, 1))) > 2
    assert len(list(check_encoding(raw))) > 2
