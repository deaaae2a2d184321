"""The estimate of a body's input tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat.prompt import ENCODED_TOKENS, SETTINGS_BYTES
from gateway.chat.request import BodyRules, check

LONG = base64.b64encode(bytes(range(256)) * 3000).decode()
"""A megabyte that looks like a picture."""
MEGABYTE = len(LONG) // 4


def body(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    ).encode()


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
