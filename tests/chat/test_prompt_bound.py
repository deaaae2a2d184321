"""The bound of a prompt: no tokenizer and no template comes to more, and an encoded part counts what the model states for it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.prompt import (
    FILE_TOKENS,
    MAX_PARTS,
    MESSAGE_ALLOWANCE,
    REQUEST_ALLOWANCE,
    REWRITTEN_TIMES,
    TOOLS_ALLOWANCE,
    WINDOW,
    PartTokens,
    PromptBound,
)
from gateway.chat.request import BodyRules, check, check_in_steps

PICTURE = base64.b64encode(bytes(range(256)) * 3000).decode()
"""A megabyte that looks like a picture."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
HTML = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&'\x7f"})


def bound(raw: bytes) -> PromptBound:
    return check(raw, BodyRules()).prompt_bound


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}


def raw_of(**fields: Any) -> bytes:
    return json.dumps(body(**fields)).encode()


def saying(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *parts]}]}


def dumped(value: Any, *, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "replace")


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), min_size=1, max_size=4), st.booleans())
def test_no_text_counts_less_than_its_bytes(texts: list[str], ascii_only: bool) -> None:
    messages = [{"role": "user", "content": text, "name": text} for text in texts]
    raw = dumped(body(messages=messages, user=texts[0]), ascii_only=ascii_only)
    needed = sum(2 * len(text.encode("utf-8", "replace")) + MESSAGE_ALLOWANCE for text in texts)
    assert bound(raw).text >= needed + REQUEST_ALLOWANCE


@pytest.mark.parametrize("text", ["\u4f60\u597d", "\U0001f600", "\u00fc", 'a "quoted"\n', "\\\\", "\\u0041", "\t\b"])
def test_escapes_count_nearly_as_the_characters_they_stand_for(text: str) -> None:
    content = text * 10_000
    messages = [{"role": "user", "content": content}]
    size = len(content.encode())
    spare = 1000 + (size // 2 if text in ("\U0001f600", "\u00fc") else 0)  # each escape counts three bytes
    for ascii_only in (True, False):
        assert size <= bound(dumped(body(messages=messages), ascii_only=ascii_only)).text <= size + spare


@settings(deadline=None)
@given(st.text(alphabet='\\"u0041dn\n\u4f60', min_size=1, max_size=20), st.integers(0, 20))
def test_an_escape_between_two_windows_hides_no_text(text: str, shift: int) -> None:
    content = "x" * shift + text * (2 * WINDOW // len(text))
    raw = dumped(body(messages=[{"role": "user", "content": content}]), ascii_only=True)
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
        counted = bound(dumped(body(**{field: given_value}), ascii_only=ascii_only)).text
        for rewritten in (
            json.dumps(given_value),
            json.dumps(given_value, ensure_ascii=False),
            json.dumps(given_value, indent=4),
            json.dumps(given_value).translate(HTML),
        ):
            assert counted >= tokens_of(rewritten)
    counted = bound(dumped(body(messages=messages), ascii_only=ascii_only)).text
    again = json.dumps(json.dumps(value)).translate(HTML), json.dumps(value, indent=4)
    assert counted >= sum(map(tokens_of, again))


@pytest.mark.parametrize(("written", "rewritten"), [("1e15", 18), ("1E20", 21), ("-1e+20", 22), ("0.1", 19)])
def test_numbers_count_with_all_their_digits(written: str, rewritten: int) -> None:
    plain = raw_of(tools=[{"type": "function", "function": {"enum": ["x"]}}])
    numbers = plain.replace(b'"x"', ",".join([written] * 1000).encode())
    assert bound(numbers).text - bound(plain).text >= 1000 * (rewritten + 2) - 5


def test_tools_come_with_instructions() -> None:
    assert bound(raw_of(tools=[])).text - bound(raw_of(stop=[])).text >= TOOLS_ALLOWANCE


URL = f"data:image/png;base64,{PICTURE}"
PDF = f"data:application/pdf;base64,{PICTURE}"
ENCODED: dict[str, tuple[dict[str, Any], PromptBound]] = {
    "picture": ({"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, PromptBound(0, 1)),
    "picture without an object": ({"type": "image_url", "image_url": URL}, PromptBound(0, 1)),
    "small picture": ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, PromptBound(0, 1)),
    "picture by address": ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, PromptBound(0, 1)),
    "picture by its number": ({"type": "image_url", "image_url": None, "uuid": "7"}, PromptBound(0, 1)),
    "picture of another dialect": ({"type": "input_image", "image_url": "https://a/b.png"}, PromptBound(0, 1)),
    "picture without a type": ({"image_url": {"url": "https://a/b.png"}}, PromptBound(0, 1)),
    "sound": ({"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}}, PromptBound(0, 0, 1)),
    "sound by address": ({"type": "audio_url", "audio_url": {"url": "https://a/b.wav"}}, PromptBound(0, 0, 1)),
    "film": ({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{PICTURE}"}}, PromptBound(0, 0, 0, 1)),
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
        found = bound(raw_of(**saying(*[part] * count)))
        assert found.text < 1000
        counts = (found.images, found.sounds, found.files)
        assert counts == (count * expected.images, count * expected.sounds, count * expected.files)
    slashed = bound(raw_of(**saying(part)).replace(b"/", b"\\/"))
    assert (slashed.images, slashed.sounds, slashed.files) == (expected.images, expected.sounds, expected.files)
    assert slashed.text < 1000, "as PHP writes it"


def test_a_part_may_stand_without_a_list_and_no_message_names_an_earlier_sound() -> None:
    assert bound(raw_of(messages=[{"role": "user", "content": ENCODED["picture"][0]}])).images == 1
    assert bound(raw_of(messages=[{"role": "assistant", "content": "x", "audio": None}])).sounds == 0
    with pytest.raises(Refused, match="Send what it says as 'content'"):
        bound(raw_of(messages=[{"role": "assistant", "audio": {"id": "audio_7"}}]))


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"text": "x", "image_url": None}, "x", None, 7, []])
def test_other_parts_count_their_bytes_alone(part: Any) -> None:
    found = bound(raw_of(**saying(part)))
    assert (found.images, found.sounds, found.files) == (0, 0, 0)


LONG_TEXTS: dict[str, dict[str, Any]] = {
    "a text part": saying({"type": "text", "text": URL}),
    "the content": {"messages": [{"role": "user", "content": URL}]},
    "a text beside a picture": saying({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "x": PICTURE}),
    "a text file": saying({"type": "file", "file": {"file_data": f"data:text/plain;base64,{PICTURE}"}}),
    "a picture that is text": saying({"type": "image_url", "image_url": {"url": f"data:image/svg+xml,{PICTURE}"}}),
    "an address": saying({"type": "image_url", "image_url": {"url": f"https://h/;base64,{PICTURE}"}}),
    "a part in another": saying({"type": "x", "content": [{"type": "image_url", "image_url": {"url": URL}}]}),
    "an unknown part": saying({"type": "image", "image": URL}),
    "a tool": {"tools": [{"type": "function", "function": {"type": "image_url", "image_url": {"url": URL}}}]},
    "a call": {"messages": [{"role": "assistant", "tool_calls": [{"image_url": {"url": URL}}]}]},
    "the first of two members": saying({"type": "image_url", "image_url": {"url": "@"}}),
}  # fmt: skip


@pytest.mark.parametrize("place", LONG_TEXTS)
def test_what_may_be_read_as_text_counts_its_bytes(place: str) -> None:
    raw = raw_of(**LONG_TEXTS[place]).replace(b'"url": "@"', f'"url": "{URL}", "url": ""'.encode())
    assert bound(raw).text >= len(PICTURE)


def test_thousands_of_parts_are_counted_exactly() -> None:
    parts = [{"type": "file", "file": {"file_id": "7"}}] * MAX_PARTS
    found = bound(raw_of(**saying(*parts)))
    assert (found.files, found.tokens(PartTokens())) == (MAX_PARTS, found.text + MAX_PARTS * FILE_TOKENS)
    with pytest.raises(Refused, match="more than 2000 pictures, sounds and files"):
        bound(raw_of(**saying(*parts, parts[0])))
    with pytest.raises(Refused, match="more than 2000"):
        bound(raw_of(**saying({"type": "image", "content": parts})))


@settings(deadline=None)
@given(JSON)
def test_a_byte_counts_a_bounded_number_of_tokens(value: Any) -> None:
    raw = raw_of(tools=[{"type": "custom", "custom": value}])
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

    raw = raw_of(**fields)
    same_size = raw_of(messages=[{"role": "user", "content": "x" * (len(raw) - len(raw_of()) + 2)}])
    assert pauses(raw) > pauses(same_size)


def test_the_fields_of_the_parts_are_read_as_they_are_written() -> None:
    """Guards an assumption of the module: absent fields of what is decoded are the default itself."""
    raw = raw_of(messages=[{"role": "user"}, {"role": "assistant", "content": None}])
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
    raw = raw_of(messages=[{"role": "user", "content": content}])
    for written in (
        json.dumps(content),
        json.dumps(content, ensure_ascii=False),
        json.dumps(content, separators=(",", ":")),
    ):
        assert bound(raw).text >= len(written.encode())
