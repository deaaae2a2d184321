"""What other languages' decoders understand of the bodies that are sent is what was checked and priced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.request import Body, BodyRules, check
from tests.decoders.programs import PROGRAMS, Decoder, start

RULES = BodyRules(allow_non_streaming=True)
CEILING = 77
BASE = '"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true'


@pytest.fixture(scope="module")
def start_once(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Decoder]]:
    """Return a function that starts a language's program, once for this module, or skips where the machine lacks a tool."""
    running: dict[str, Decoder] = {}

    def start_once(language: str) -> Decoder:
        if language not in running:
            if lacking := PROGRAMS[language].missing():
                pytest.skip(f"this machine lacks {lacking}")
            running[language] = start(PROGRAMS[language], request.config.cache.mkdir("decoders"))
        return running[language]

    yield start_once
    for decoder in running.values():
        decoder.stop()


@pytest.fixture(params=PROGRAMS)
def decoder(request: pytest.FixtureRequest, start_once: Callable[[str], Decoder]) -> Decoder:
    return start_once(request.param)


def accepted(raw: bytes) -> Body | None:
    try:
        return check(raw, RULES)
    except Refused as refused:
        assert refused.status == 400
        return None


def assert_understood(decoder: Decoder, body: Body, *, or_refused: bool = False) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        for ask in (True, False):
            understood = decoder.understand(b"".join(body.upstream("sold", field, CEILING, ask_usage=ask)))
            if or_refused and "error" in understood:
                continue
            assert understood == {
                "model": "sold",
                "ceiling": body.max_tokens or CEILING,
                "n": body.n,
                "stream": body.stream,
                "usage": body.asked_usage or (ask and body.stream),
            }


HONEST = [
    "",
    '"max_tokens":5,"n":2',
    '"max_completion_tokens":1000000,"n":16',
    '"max_tokens":null,"max_completion_tokens":6,"n":null,"stream_options":null',
    '"stream_options":{"include_usage":true},"temperature":1e0',
    '"max\\u005ftokens":5,"\\u006e":3,"stream_options":{"include\\u005fusage":false}',
    '"max_tokens":5,"max_tokens":6,"max\\u005ftokens":7',
    '"n":1,"n":2,"\\u006e":3',
    '"model":"dear","mod\\u0065l":"m"',
    '"stream":false',
    '"stream":true,"stream":false,"stre\\u0061m":true',
    '"stream_options":{"include_usage":true,"include_usage":false},"stream_options":{"include\\u005fusage":false}',
    '"stream_options":{"x":{"include_usage":false}},"x":{"model":"dear","n":9,"max_tokens":9}',
    '"":0,"\\u0000":1,"x\\u0000":2,"\\u00e9":3,"\\ud834\\udd1e":4,"toString":5,"constructor":{"prototype":{"n":9}}',
    '\n\t"max_tokens"\r\n:\n5\n',
]
HOSTILE = [
    '"Model":"dear"',
    '"MODEL":"dear","Max_Tokens":100000,"N":16,"Stream_Options":{"include_usage":false}',
    '"max_to\u212aens":100000',
    '"max_token\\u017f":100000',
    '"\\u017ftream":false',
    '"model\\u0000":"dear"',
    '"n\\u0000x":9',
    '"__proto__":{"n":9,"max_tokens":9,"max_completion_tokens":9}',
    '"stream_options":{"__proto__":{"include_usage":true}}',
    '"stream_options":{"Include_Usage":true}',
    '"n_predict":-1,"n_cmpl":9',
    '"max_tokens":5.0',
    '"max_tokens":5e0',
    '"max_tokens":"5"',
    '"max_tokens":[5]',
    '"max_tokens":true',
    '"max_tokens":-0',
    '"max_tokens":18446744073709551621',
    '"n":1.0',
    '"n":4294967297',
    '"stream":1',
    '"stream_options":[]',
    '"stream_options":{"include_usage":"true"}',
    '"max_tokens":5,"max_completion_tokens":6',
    '"\\ud800":1',
    '"max_tokens\\ud800":1',
]


@pytest.mark.parametrize("fields", HONEST)
@pytest.mark.parametrize("first", [False, True])
def test_an_accepted_body_is_understood_as_it_was_checked(decoder: Decoder, fields: str, first: bool) -> None:
    parts = [fields, BASE] if first else [BASE, fields]
    body = accepted(("{" + ",".join(filter(None, parts)) + "}").encode())
    assert body is not None
    assert_understood(decoder, body)


@pytest.mark.parametrize("fields", HOSTILE)
def test_what_a_decoder_could_take_for_something_else_is_refused(fields: str) -> None:
    assert accepted(f"{{{BASE},{fields}}}".encode()) is None


def test_other_encodings_and_marks_are_refused() -> None:
    text = "{" + BASE + "}"
    for encoding in ("utf-8-sig", "utf-16", "utf-32-le"):
        assert accepted(text.encode(encoding)) is None


MISTAKES = [
    ("Go", '"Model":"dear"', "model", "dear"),
    ("Go", '"max_to\u212aens":9', "ceiling", 9),
    ("Go", '"\\u017ftream":false', "stream", False),
    ("Java", '"N":9', "n", 9),
    ("Java", '"max_tokens":"9"', "ceiling", 9),
    ("Java", '"max_tokens":9.0', "ceiling", 9),
    ("C", '"MAX_TOKENS":9', "ceiling", 9),
    ("C", '"n\\u0000x":9', "n", 9),
    ("C", '"max_tokens":9e0', "ceiling", 9),
    ("C++", '"n_predict":9', "ceiling", 9),
    ("C++", '"n_cmpl":9', "n", 9),
    ("JavaScript", '"__proto__":{"n":9}', "n", 9),
    ("JavaScript", '"max_tokens":9e0', "ceiling", 9),
    ("Python", '"max_tokens":9.0', "ceiling", 9),
]


@pytest.mark.parametrize(("language", "fields", "name", "value"), MISTAKES)
def test_a_decoder_does_take_it_for_something_else(
    start_once: Callable[[str], Decoder], language: str, fields: str, name: str, value: object
) -> None:
    assert start_once(language).understand(f"{{{BASE},{fields}}}".encode())[name] == value


NAMES = ["model", "stream", "n", "max_tokens", "max_completion_tokens", "stream_options", "temperature", "seed", "user"]
VALUES = [
    "1", "2", "16", "1e0", "2.0", "-0", '"3"', "null", "true", "false", '"m"', '"\\u006d"', "[]", "{}", "1e400",
    "123456789012345678901234567890", '{"include_usage":true}', '{"include\\u005fusage":false,"include_usage":true}',
    '{"Include_Usage":true}',
]  # fmt: skip
ODD = {"s": ["\u017f"], "k": ["\u212a"], "i": ["\u0131", "\u0130"]}


@st.composite
def spelt(draw: st.DrawFn) -> str:
    """Draw a name as a string of JSON: of a field, mostly as it is, else with one letter in another spelling."""
    name = draw(st.sampled_from(NAMES))
    place = draw(st.integers(0, len(name) - 1))
    letter = name[place]
    other = draw(
        st.sampled_from([letter] * 4 + [f"\\u{ord(letter):04x}"] * 4 + [letter.upper(), "", *ODD.get(letter, ())])
    )
    ending = draw(st.sampled_from([""] * 9 + ["\\u0000", "\u0301"]))
    return f'"{name[:place]}{other}{name[place + 1 :]}{ending}"'


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Draw a body with fields in any order, some of them twice."""
    fields: list[tuple[Any, ...]] = draw(st.lists(st.tuples(spelt(), st.sampled_from(VALUES)), max_size=4))
    texts = [BASE, *(f"{name}:{value}" for name, value in fields)]
    return ("{" + ",".join(draw(st.permutations(texts))) + "}").encode()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=bodies())
def test_any_body_is_refused_or_understood_as_it_was_checked(decoder: Decoder, raw: bytes) -> None:
    body = accepted(raw)
    if body is not None:
        assert_understood(decoder, body, or_refused="1e400" in raw.decode())
