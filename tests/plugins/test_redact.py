"""Redact replaces what matches in every text of a request, and leaves all else as it is."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Caller, Exchange, Refused, Services
from gateway.plugin_kit import broken, check
from gateway.testing import exchange, run_request, services, started
from plugins.redact import COMMON, Redact
from plugins.text_search import PIECE

CARD = "4111 1111 1111 1111"
ROOT = Path(__file__).parents[2]
SOUND = "4111111111111111" * 16
PICTURE = f"data:image/png;base64,{SOUND}"


async def redacted(given: Services, body: dict[str, Any], **settings: Any) -> tuple[Exchange, dict[str, Any]]:
    of = exchange(body)
    await run_request(await started(Redact(**settings), given), of, given)
    return of, {name: msgspec.json.decode(value) for name, value in (await of.body()).top.items()}


@pytest.fixture
async def given(store_url: str, tmp_path: Path) -> Any:
    async with services(tmp_path, store_url) as made:
        yield made


async def test_every_text_is_searched(given: Services) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": f'{{"card":"{CARD}"}}'}}
    of, top = await redacted(
        given,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": f"my card is {CARD}."}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "user", "content": f"{CARD}, ann@mail.example.org", "name": "ann"},
            ],
            "user": "ann@mail.example.org",
            "metadata": {"key": "AKIAABCDEFGHIJKLMNOP"},
            "temperature": 1.50,
        },
    )
    messages = top["messages"]
    assert messages[0]["content"][0]["text"] == "my card is [card-number]."
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"card":"[card-number]"}'
    assert messages[2] == {"role": "user", "content": "[card-number], [e-mail]", "name": "ann"}
    assert (top["user"], top["metadata"]) == ("[e-mail]", {"key": "[aws-key]"})
    assert bytes((await of.body()).top["temperature"]) == b"1.5"
    assert of.changed_by == ("test",)


async def test_encoded_parts_and_names_that_mean_something_stay(given: Services) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}},
    ]
    body = {"model": "4111111111111111", "messages": [{"role": "user", "content": content}]}
    of, top = await redacted(given, body)
    assert of.changed_by == ()
    assert top["model"] == "4111111111111111"
    link = {"type": "image_url", "image_url": {"url": "https://x.example/?mail=ann@example.org"}}
    _, top = await redacted(given, {"messages": [{"role": "user", "content": [link]}]})
    assert "ann@" not in str(top)


@pytest.mark.parametrize("text", ["4111111111111111 is mine", "ann@example.org", "-----BEGIN PRIVATE KEY-----\nMII"])
async def test_plain_text_in_the_place_of_a_file_is_searched(given: Services, text: str) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": text}
    content = [
        {"type": "document", "source": source},
        {"type": "file", "file": {"filename": "a.txt", "file_data": text}},
        {"type": "text", "text": f"see ;base64,{text}"},
    ]
    _, top = await redacted(given, {"messages": [{"role": "user", "content": content}], "metadata": {"source": source}})
    assert text.split(" is", maxsplit=1)[0] not in json.dumps(top)


async def test_patterns_of_the_operator_replace_the_common_ones(given: Services) -> None:
    body = {"messages": [{"role": "user", "content": f"project Falcon, {CARD}"}]}
    _, top = await redacted(given, body, patterns={r"a\1name": "(?i)falcon"})
    assert top["messages"][0]["content"] == rf"project [a\1name], {CARD}"
    with pytest.raises(ValueError, match=r"patterns\.x is no regular expression"):
        await started(Redact(patterns={"x": "("}), given)


async def test_a_large_body_is_searched_message_by_message(given: Services) -> None:
    messages = [{"role": "user", "content": "x" * 50_000 + CARD} for _ in range(3)]
    _, top = await redacted(given, {"messages": messages})
    assert all(message["content"].endswith("x[card-number]") for message in top["messages"]) is False
    assert all(CARD in message["content"] for message in top["messages"])  # within a word, it is no card number
    _, top = await redacted(given, {"messages": [{"role": "user", "content": "x " * 50_000 + CARD}] * 3})
    assert all(message["content"].endswith(" [card-number]") for message in top["messages"])


async def test_it_explains_what_it_would_replace(
    store_url: str,
) -> None:
    assert broken(await check("plugins.redact:Redact", url=store_url)) == []


async def test_a_number_that_cannot_be_read_is_the_callers_mistake(given: Services) -> None:
    plugin = await started(Redact(), given)
    asked = exchange(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x","w":1e999}]}')
    asked[Caller] = Caller(account="alice", token_id="alice-1", group="default")
    with pytest.raises(Refused, match="'messages' has a number that is too large"):
        await plugin.on_request(asked)


@pytest.mark.parametrize(
    ("sent", "upstream"),
    [
        (f'[{{"role":"user","content":"{CARD}","content":"hi"}}]', [{"role": "user", "content": "hi"}]),
        (
            f'[{{"role":"user","content":"hi","x":{{"a":"{CARD}","b":1,"\\u0061":"{CARD}"}}}}]',
            [{"role": "user", "content": "hi", "x": {"a": "[card-number]", "b": 1}}],
        ),
        (
            f'[{{"role":"user","content":"hi","id":{{"{CARD}":"{CARD}"}},"data":["{CARD}"],"type":"{CARD}"}}]',
            [
                {
                    **{"role": "user", "content": "hi", "id": {"[card-number]": "[card-number]"}},
                    **{"data": ["[card-number]"], "type": "[card-number]"},
                }
            ],
        ),
    ],
    ids=["of equal names one is sent", "also where one is escaped", "in every field and name"],
)
async def test_nothing_is_sent_that_was_not_searched(given: Services, sent: str, upstream: Any) -> None:
    raw = f'{{"model":"m","stream":true,"{CARD}":1,"messages":{sent}}}'.encode()
    asked = exchange(raw)
    await run_request(await started(Redact(), given), asked, given)
    whole = await asked.body()
    assert b"4111" not in b"".join(whole.upstream("m", "max_tokens", None, ask_usage=False))
    assert msgspec.json.decode(whole.top["messages"]) == upstream
    assert (CARD in whole.top, bytes(whole.top["[card-number]"])) == (False, b"1")


async def test_options_of_the_stream_that_match_refuse_the_request(given: Services) -> None:
    plugin = await started(Redact(), given)
    for options in (f'{{"x":"{CARD}"}}', f'{{"{CARD}":1}}', '{"x":{"a":1,"a":2}}'):
        asked = exchange(
            b'{"model":"m","stream":true,"messages":[{"role":"user"}],"stream_options":%b}' % options.encode()
        )
        with pytest.raises(Refused, match="'stream_options' has text that may not be sent"):
            await run_request(plugin, asked, given)


@pytest.mark.parametrize(
    ("meant", "sent"),
    [
        ({"note": f"x\n{CARD}\ty"}, {"note": "x\n[card-number]\ty"}),
        ({"note": "x\nann@example.org\n"}, None),
        ({"note": 'say "ann@example.org"', "b": f"\u2014{CARD.replace(' ', chr(0xA0))}"}, None),
    ],
)
async def test_what_json_in_a_text_escapes_is_found_and_stays_json(
    given: Services, meant: dict[str, str], sent: dict[str, str] | None
) -> None:
    for depth in (1, 2):
        text = json.dumps(meant)
        for _ in range(depth - 1):
            text = json.dumps(text)
        text = text.replace("ann@", "ann\\u0040" if depth == 1 else "ann\\\\u0040")
        _, top = await redacted(given, {"messages": [{"role": "user", "content": text}]}, patterns=SPACED)
        content = top["messages"][0]["content"]
        assert "1111" not in content
        assert "example" not in content
        for _ in range(depth):
            content = json.loads(content)
        assert content.keys() == meant.keys()
        assert sent in (None, content)


SPACED = {"card-number": r"\b(?:\d[ \u00a0-]?){12,18}\d\b", "e-mail": COMMON["e-mail"]}

KEY = "MIIEpAIBAAKCAQEA" * 20
KEYS: list[str] = [
    f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n{KEY}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2 - x\n\n{KEY}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY}\n-----END OPENSSH PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\r\n{KEY * 30}\r\n-----END PRIVATE KEY-----",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("before", [0, 100_000])
async def test_private_keys_with_headers_are_replaced_whole(given: Services, key: str, before: int) -> None:
    for text in (key, json.dumps(key)[1:-1]):
        content = f"{'x ' * (before // 2)}{text}. Thanks."
        _, top = await redacted(given, {"messages": [{"role": "user", "content": content}]})
        assert top["messages"][0]["content"] == content.replace(text, "[private-key]")
    _, top = await redacted(given, {"messages": [{"role": "user", "content": key[:400]}]})
    assert "MII" not in str(top)  # one that was cut


async def test_a_match_is_found_wherever_the_pieces_of_a_long_text_meet(given: Services) -> None:
    plugin = await started(Redact(patterns={"x": r"(?<!\w)b{3,15000}\b"}), given)
    for length in (3, 15_000):
        for place in range(PIECE - length - 2, PIECE + 4, max(1, length // 7)):
            for gap in (" ", "\\n"):
                text = "a" * place + gap + "b" * length + gap + "a" * 40_000
                asked = exchange({"messages": [{"role": "user", "content": text}]})
                await run_request(plugin, asked, given)
                content = msgspec.json.decode((await asked.body()).top["messages"])[0]["content"]
                assert content == text.replace("b" * length, "[x]"), (length, place)


LARGE = 4_000_000


@pytest.mark.parametrize(
    "content",
    [
        "the quick brown fox 12 jumps, over. " * (LARGE // 36),
        "1 " * (LARGE // 2),
        "a@" * (LARGE // 2),
        "ann@x.org " * (LARGE // 10),
        "-----BEGIN PRIVATE KEY-----" * (LARGE // 27),
        "\\n" * (LARGE // 8),  # what is searched the slowest needs no more to take half a second
        ";base64," * (LARGE // 32),
        "data:image/png;base64," + "A" * LARGE,
        [{"type": "text", "text": "a"}] * 12_000,
        {f"k{number}": {} for number in range(25_000)},
    ],
    ids=["prose", "digits", "at", "mails", "keys", "escapes", "urls", "picture", "parts", "names"],
)
async def test_others_are_served_while_a_large_body_is_searched(given: Services, content: Any) -> None:
    """Of the time that the search takes, others wait for a small part at once, whatever the machine does besides."""
    plugin = await started(Redact(), given)
    asked = exchange(msgspec.json.encode({"model": "m", "stream": True, "messages": [{"role": "user", "x": content}]}))
    body = await asked.body()
    decoding = time.thread_time()
    msgspec.json.encode(msgspec.json.decode(body.top["messages"]))
    decoding = time.thread_time() - decoding
    waits, ended = [], False

    async def other() -> None:
        while not ended:
            began = time.thread_time()
            await asyncio.sleep(0)
            waits.append(time.thread_time() - began)

    watching = asyncio.create_task(other())
    gc.disable()  # a collection of all that other tests left takes 80 ms; a gateway's own objects are frozen
    try:
        async for _ in _each(plugin, body.top):
            pass
    finally:
        gc.enable()
    ended = True
    await watching
    assert max(waits) < max(0.1, 5 * decoding), "one wait"


async def _each(plugin: Redact, top: Mapping[str, msgspec.Raw]) -> Any:
    for _ in plugin._changes(top, {}, []):
        await asyncio.sleep(0)
        yield


async def test_a_picture_costs_no_search(given: Services) -> None:
    plugin = await started(Redact(), given)

    def searched(text: str, name: str = "text") -> float:
        raw = msgspec.Raw(msgspec.json.encode([{"input_audio": {name: text}}]))
        began = time.thread_time()
        for _ in plugin._changes({"messages": raw}, {}, []):
            pass
        return time.thread_time() - began

    prose = searched("the quick brown " * 125_000)
    assert searched("data:image/png;base64," + "Ab3/" * 500_000) < prose / 3
    assert searched("Ab3/" * 500_000, "data") < prose / 3


PIECES = (
    *("-----BEGIN ", "PRIVATE KEY", "-----", "RSA ", " BLOCK", "-----END ", "abc", "-", "\n"),
    *("4111 1111 1111 1111", "a@b.c "),
)
SPANS = """
import json, re, sys
patterns, texts = json.load(sys.stdin)
print(json.dumps([[match.span() for match in re.finditer(pattern, text)] for pattern in patterns for text in texts]))
"""


def pythons() -> list[str]:
    """Return the Pythons of this machine that run."""
    found = {sys.executable, *filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20)))}
    return sorted(each for each in found if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0)


def keys_in(text: str) -> list[list[int]]:
    """Return where private keys are, found without a pattern for what is between their first and last lines."""
    spans, at = [], 0
    while begins := re.compile(BOUNDARY.format("BEGIN")).search(text, at):
        body = text.find("-----END ", begins.end())
        end = len(text) if body < 0 else body
        ends = re.compile(BOUNDARY.format("END")).match(text, end)
        at = ends.end() if ends else end
        spans.append([begins.start(), at])
    return spans


BOUNDARY = r"-----{} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"


@pytest.mark.parametrize("python", pythons())
def test_every_python_of_this_machine_finds_the_same(python: str) -> None:
    draw = random.Random(7)
    texts = [*KEYS, *("".join(draw.choices(PIECES, k=draw.randrange(1, 14))) for _ in range(2000))]
    given = json.dumps([list(COMMON.values()), texts])
    printed = subprocess.run([python, "-c", SPANS], input=given, capture_output=True, text=True, check=True).stdout
    spans = json.loads(printed)
    found = {name: spans[at * len(texts) :][: len(texts)] for at, name in enumerate(COMMON)}
    assert found["private-key"] == [keys_in(text) for text in texts]
    for name, pattern in COMMON.items():
        here = [[list(match.span()) for match in re.finditer(pattern, text)] for text in texts]
        assert found[name] == here, name


@pytest.mark.parametrize("wrong", ["a*+b", "a++b", "(?:ab)?+c", "a{2,3}+b", "(?>a*)b"])
async def test_what_an_old_python_matches_wrongly_is_refused_there(
    given: Services, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 4, "final", 0))
    with pytest.raises(ValueError, match=r"patterns\.x is no regular expression: before 3\.11\.5"):
        await started(Redact(patterns={"x": wrong}), given)
    await started(Redact(patterns={"x": r"\*+[*+]+\(\?>"}), given)
    monkeypatch.setattr(sys, "version_info", (3, 11, 5, "final", 0))
    await started(Redact(patterns={"x": wrong}), given)


def test_the_product_has_no_pattern_that_an_old_python_matches_wrongly() -> None:
    patterns = {f"COMMON: {name}": pattern for name, pattern in COMMON.items()}
    for path in (path for folder in ("gateway", "plugins") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.fullmatch(r"re\.(?!error)\w+", ast.unparse(node.func)) and node.args:
                patterns[f"{path}:{node.lineno}"] = ast.unparse(node.args[0])
    assert len(patterns) > 50
    wrong = re.compile(r"(?<!\\)[*+?}]\+|\(\?>")
    assert [place for place, pattern in patterns.items() if wrong.search(re.sub(r"\[.*?[^\\]\]", "[]", pattern))] == []
