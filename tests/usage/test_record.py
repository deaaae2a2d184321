"""Records of the usage log, and the names and references of callers in them."""

from __future__ import annotations

import base64
import secrets
import sqlite3
import uuid
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.base.errors import Refused
from gateway.domain.exchange import Outcome
from gateway.store.token_format import TokenCodec
from gateway.usage.database import JSON_COLUMNS
from gateway.usage.record import (
    MAX_LENGTH,
    MAX_NUMBER,
    MOST,
    NUMBERS,
    NUMBERS_OR_NONE,
    AttemptRecord,
    Record,
    WrittenRecord,
    decode,
    encode,
    hashed_reference,
    line_of,
    reference_in,
    shown_name,
)
from tests.records import COSTED, arrival, end


# The usage record and its JSON.
def test_a_record_survives_its_encoding() -> None:
    refused = {"requested_model": "gpt-4oo", "unavailable": {"east": "is full"}}
    for record in (end(arrival()), end(arrival(), **COSTED), end(arrival(), **refused)):
        assert decode(encode(record)) == record
        written = encode(WrittenRecord(**msgspec.structs.asdict(record)))
        assert decode(written) == record
        assert len(written) < len(encode(record))
        assert b"changed_by" not in written


WRONG: Any = AttemptRecord
VALUES = st.one_of(
    st.sampled_from(
        ["", "text", "upstream", "completed", "\ud800", "\0", 0, 1, -1, True, 1.0, 0.5, float("nan"), None, b"x"]
    ),
    st.sampled_from(
        [MAX_NUMBER, -MAX_NUMBER, MAX_NUMBER + 1, -MAX_NUMBER - 1, 2**64, 10**400, 3 + 4j, object(), Outcome.STOPPED]
    ),
    st.sampled_from(
        [
            *([], {}, [1], [{"channel": "c"}], [AttemptRecord("c")], [WRONG(1)], [WRONG("c", True)]),
            *([WRONG("c", 1, "", "2")], [WRONG("c", 1, "", 2, 3)], [WRONG("c", 1, "", 2, "id", None)]),
            [AttemptRecord("c", 1, "", 2, "id", "id")],
        ]
    ),
    st.sampled_from(
        [[AttemptRecord("c", 2**60)], [AttemptRecord("c", error="\udfff")], (AttemptRecord("c"),), {"a": 1}]
    ),
    st.sampled_from(
        [{"a": None}, {1: 2}, {"a": {"b": [1]}}, {"a": object()}, {"a": float("inf")}, {"a": 10**30}, {None: 1}]
    ),
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(Record.__struct_fields__), VALUES, max_size=3))
@example({})
@example({"attempts": [AttemptRecord("a"), AttemptRecord("b", 200, "")], "price": {"input": 1, "currency": "x"}})
def test_a_record_that_has_a_line_has_values_that_the_database_can_store(values: dict[str, Any]) -> None:
    try:
        record = decode(line_of(msgspec.structs.replace(end(arrival()), **values)))
    except (ValueError, TypeError):
        assert values
        return
    with closing(sqlite3.connect(":memory:")) as file:
        for name in Record.__struct_fields__:
            value = getattr(record, name)
            stored = msgspec.json.encode(value) if name in JSON_COLUMNS else value
            assert file.execute("SELECT ?", (stored,)).fetchone() == (stored,)
            assert type(value) is not int or abs(value) <= MAX_NUMBER


@pytest.mark.parametrize("name", [*NUMBERS, *NUMBERS_OR_NONE])
def test_a_number_has_bounds(name: str) -> None:
    for right in (0, MAX_NUMBER, -MAX_NUMBER):
        assert getattr(decode(line_of(end(arrival(), **{name: right}))), name) == right
    for wrong in (MAX_NUMBER + 1, -MAX_NUMBER - 1, 2**64, 0.5, "1", True):
        with pytest.raises(ValueError, match=name):
            line_of(end(arrival(), **{name: wrong}))


# Names that callers made up are kept in a form that can be shown, and nothing of what may be a secret.
MODELS = """
gpt-4oo gpt-4o-mini-2024-07-18 chatgpt-4o-latest o1-preview GPT4o gpt-3.5-turbo-16k-0613 claude-3-5-sonnet-20241022
claude-3-5-sonnet@20240620 anthropic.claude-3-haiku-20240307-v1:0 us.meta.llama3-2-90b-instruct-v1:0
meta-llama/Llama-3.3-70B-Instruct-Turbo Meta-Llama-3.1-405B-Instruct-FP8 mistralai/Mixtral-8x22B-Instruct-v0.1
TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF:Q4_K_M open-mixtral-8x7b nous-hermes2-mixtral-8x7b-dpo-q4_K_M
deepseek-ai/DeepSeek-R1-Distill-Qwen-32B DeepSeek-V3.2-Exp Qwen/Qwen2.5-VL-72B-Instruct-AWQ
Qwen3-235B-A22B-Thinking-2507-FP8 accounts/fireworks/models/deepseek-v3
ft:gpt-4o-mini-2024-07-18:my-org:support:AbCdEf12 gemini-2.5-flash-lite-preview-06-17 grok-4-fast-reasoning
@cf/meta/llama-3.1-8b-instruct-fp8 moonshotai/kimi-k2-instruct-0905 text-embedding-3-large tokenizer-1 modèle-français
模型-1 g\u0440t-4o sk hf key
"""


@pytest.mark.parametrize("name", [*MODELS.split(), "gpt 4o mini"])
def test_the_name_of_a_model_is_shown_as_it_was_sent(name: str) -> None:
    assert shown_name(name) == name


def made() -> list[str]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    long = "".join(secrets.choice(alphabet) for _ in range(48))
    return [
        TokenCodec(b"0123456789abcdef").make("alice")[1],
        f"sk-proj-{secrets.token_urlsafe(48)}",
        f"sk-ant-api03-{secrets.token_urlsafe(60)}-AA",
        f"gsk_{long}",
        f"hf_{long[:34]}",
        f"AIza{secrets.token_urlsafe(26)}",
        f"AKIA{secrets.token_hex(8).upper()}",
        f"ghp_{long[:36]}",
        f"xai-{long}",
        secrets.token_hex(16),
        secrets.token_hex(32),
        str(uuid.uuid4()),
        str(uuid.uuid4()).replace("-", ""),
        # Marks cut it into words, and short words are shown: as many as chance gives is the subject of the test below.
        base64.b64encode(secrets.token_bytes(32), b"xy").decode(),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        f"Bearer {secrets.token_hex(8)}",
        f"gpt-4o {long}",
        "https://user:hunter2@host/v1",
        "api_key=hunter2",
        "password: hunter2",
    ]


@pytest.mark.parametrize("number", range(len(made())))
def test_nothing_of_a_secret_is_shown(number: int) -> None:
    for _ in range(20):
        text = made()[number]
        assert shown_name(text) == f"(hidden: {len(text)} characters that may be a secret)"


@pytest.mark.parametrize("random_bytes", [16, 24, 32])
def test_random_text_with_marks_between_its_letters_is_hidden_but_for_a_few_of_a_hundred(random_bytes: int) -> None:
    shown = [text for _ in range(2000) if shown_name(text := secrets.token_urlsafe(random_bytes)) == text]
    assert len(shown) <= 80, shown[:5]


def test_what_is_not_seen_is_escaped_and_a_long_name_is_cut() -> None:
    assert shown_name("gpt\x00-4\x1b[31m\u202eo\u200b\n\u0085") == r"gpt\x00-4\x1b[31m\u202eo\u200b\n\x85"
    assert shown_name("") == ""
    assert len(shown_name("ab " * 1_000_000)) == MOST
    assert len(shown_name("\u202e" * 500)) == MOST


# References of callers: what is accepted, and what is kept of one.
def headers(*values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict([("x-client-REQUEST-id", value) for value in values]))


def test_a_reference_is_read_from_its_header() -> None:
    assert reference_in(headers("order 4711/~")) == "order 4711/~"
    assert reference_in(headers("x" * MAX_LENGTH)) == "x" * MAX_LENGTH
    assert reference_in(headers()) == ""
    assert reference_in({"X-Client-Request-Id": "plain"}) == "plain"


@pytest.mark.parametrize(
    "values", [("",), ("", "a"), ("x" * (MAX_LENGTH + 1),), ("\u00e9",), ("\udcff",), ("a\tb",), ("a", "b"), ("a", "a")]
)
def test_what_cannot_be_kept_is_refused_with_what_is_accepted(values: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="Send one header X-Client-Request-Id with 1 to 512 printable ASCII") as refused:
        reference_in(headers(*values))
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


def test_a_hash_is_of_one_account_and_one_reference() -> None:
    pairs = [(account, name) for account in ("alice", "bob", "a" * 100, "a" * 101) for name in ("x", "y", "bobx")]
    hashes = {hashed_reference(*pair) for pair in pairs}
    assert len(hashes) == len(pairs)
    assert all(len(each) == 32 and "x" not in each for each in hashes)
    assert hashed_reference("alice", "x") == hashed_reference("alice", "x")
