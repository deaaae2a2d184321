"""Bodies and forms of operations: what is needed, what is refused since no price is for it."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, get_args

import msgspec
import pytest

from gateway.base.errors import Refused
from gateway.chat.prompt import AUDIO_TOKENS, FILE_TOKENS, IMAGE_TOKENS, PIECE
from gateway.chat.request import Body, BodyRules, checked
from gateway.chat.usage import Usage
from gateway.config.channel import ServedOperation
from gateway.config.model import Model
from gateway.domain.prices import PER_TOKENS, price_of
from gateway.operations.audio import SILENCE, TranscriptionsFormat
from gateway.operations.chat_completions import ChatFormat
from gateway.operations.completions import CompletionsBody, CompletionsFormat
from gateway.operations.form import FORM, MOST_PARTS, MOST_TEXT, MultipartBody, written
from gateway.operations.images import PIXEL, ImageEditsFormat
from gateway.operations.input_only import (
    DOCUMENT_ALLOWANCE,
    TEXT_ALLOWANCE,
    EmbeddingsFormat,
    ModerationsFormat,
    RerankFormat,
)
from gateway.operations.messages import MessagesFormat, MessageTokensFormat
from gateway.operations.operation import SERVED
from gateway.operations.responses import CompactFormat, InputTokensFormat, ResponsesFormat
from gateway.operations.wire_format import CheckedBody, WireFormat

# The bodies of operations: what is needed, what is refused since no price is for it, and what a prompt can count.
MESSAGE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hi"}],
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}],
    "thinking": {"type": "enabled", "budget_tokens": 50},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "service_tier": "auto",
    "metadata": {"user_id": "u"},
}
TEXTS_OF: dict[type[WireFormat], dict[str, Any]] = {
    EmbeddingsFormat: {"input": ["a", "b", "c"]},
    RerankFormat: {"query": "q", "documents": ["a", "b", "c"]},
    ModerationsFormat: {"input": ["a", "b", "c"]},
}
PNG = base64.b64encode(bytes(30_000)).decode()


def body(wire: WireFormat, fields: dict[str, Any] | bytes, **rules: Any) -> Body:
    if isinstance(fields, dict):
        fields = written(fields) if wire.accepts == FORM else json.dumps(fields).encode()
    return wire.check_texts(fields, BodyRules(**rules)) or checked(wire.check(fields, BodyRules(**rules)))


def image(source: dict[str, Any], kind: str = "image") -> list[dict[str, Any]]:
    return [{"type": kind, "source": source}]


def test_a_message_is_sent_as_it_came_with_the_name_of_the_model_there() -> None:
    asked = body(MessagesFormat(), MESSAGE | {"stream": True})
    sent = json.loads(b"".join(asked.upstream("there", "max_completion_tokens", 7, ask_usage=True)))
    assert sent == MESSAGE | {"model": "there", "stream": True}
    assert (asked.stream, asked.max_tokens, asked.n, asked.messages) == (True, 100, 1, 1)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        *[({name: None}, name, "invalid_request") for name in ("model", "messages", "max_tokens")],
        ({"max_tokens": 0}, "max_tokens", "invalid_request"),
        ({"messages": [{"content": "hi"}]}, "messages", "invalid_request"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages", "invalid_request"),
        ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages", "invalid_request"),
        ({"stream": "yes"}, "stream", "invalid_request"),
        ({"Max_Tokens": 9}, "Max_Tokens", "invalid_request"),
        ({"max_completion_tokens": 9}, "max_completion_tokens", "invalid_request"),
        ({"fallbacks": [{"model": "x"}]}, "fallbacks", "invalid_request"),
        *[
            ({name: value}, name, "unpriced_option")
            for name, value in (
                *(("speed", "fast"), ("inference_geo", "us"), ("container", "c_1")),
                ("mcp_servers", [{"url": "http://x"}]),
                ("service_tier", "priority"),
                ("tools", [{"type": "web_search_20250305", "name": "web_search"}]),
                ("tools", [{"type": "code_execution_20250825", "name": "code_execution"}]),
                ("tools", [{"type": "custom", "name": "a", "model": "dear"}]),
                ("cache_control", {"type": "ephemeral", "ttl": "1h"}),
                ("context_management", {"edits": [{"type": "compact_20260112"}]}),
            )
        ],
        (
            {"system": [{"type": "text", "text": "a", "cache_control": {"ttl": "1h"}}]},
            "cache_control",
            "unpriced_option",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "cache_control": {"ttl": "1\u0068"}}]}]},
            *("cache_control", "unpriced_option"),
        ),
        *[
            ({"messages": [{"role": "user", "content": [block]}]}, "cache_control", "unpriced_option")
            for text in ({"type": "text", "text": "a", "cache_control": {"ttl": "1h"}},)
            for block in (
                {"type": "tool_result", "content": text},
                {"type": "document", "source": {"type": "content", "content": [text]}},
            )
        ],
        ({"serviceTier": "priority"}, "serviceTier", "invalid_request"),
    ],
)
def test_a_message_without_a_price_or_a_field_that_is_needed_is_refused(
    fields: dict[str, Any], param: str, code: str
) -> None:
    given = {name: value for name, value in (MESSAGE | fields).items() if value is not None}
    with pytest.raises(Refused) as refused:
        body(MessagesFormat(), given)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


def test_what_an_operator_allows_is_sent() -> None:
    allowed = frozenset(("speed", "tools", "service_tier", "cache_control", "context_management"))
    fields: dict[str, Any] = {
        "speed": "fast",
        "service_tier": "priority",
        "tools": [{"type": "web_search_1", "name": "a"}],
    }
    fields |= {"cache_control": {"ttl": "1h"}, "context_management": {"edits": [{"type": "compact_1"}]}}
    assert body(MessagesFormat(), MESSAGE | fields, allow_fields=allowed).top["speed"] == msgspec.Raw(b'"fast"')


@pytest.mark.parametrize(
    ("blocks", "images", "files"),
    [
        (image({"type": "base64", "media_type": "image/png", "data": PNG}), 1, 0),
        (image({"type": "url", "url": "http://x/y.png"}), 1, 0),
        (image({"type": "base64", "media_type": "application/pdf", "data": PNG}, "document"), 0, 1),
        (image({"type": "text", "data": "plain"}, "document"), 0, 0),
        ([{"type": "tool_result", "tool_use_id": "t", "content": image({"type": "base64", "data": PNG})}], 1, 0),
        ([{"type": "new_kind"}], 1, 0),
        ([{"type": "new", "source": {"type": "base64", "media_type": "application/pdf", "data": PNG}}], 0, 1),
        ([{"type": "container_upload", "file_id": "f"}], 0, 1),
        (
            [
                {
                    "type": "search_result",
                    "source": "HR policy",
                    "title": "t",
                    "content": [{"type": "text", "text": "x"}],
                }
            ],
            0,
            0,
        ),
        (image({"type": "content", "content": image({"type": "url", "url": "u"}) * 3}, "document"), 3, 1),
        ([{"type": "tool_result", "content": image({"type": "url", "url": "u"}, "document")[0]}], 0, 1),
        ([{"type": "web_fetch_tool_result", "content": {"content": image({"type": "url"}, "document")[0]}}], 2, 1),
    ],
)
def test_an_encoded_part_counts_by_its_kind_and_not_by_its_bytes(
    blocks: list[dict[str, Any]], images: int, files: int
) -> None:
    asked = body(MessagesFormat(), {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": blocks}]})
    most = asked.prompt_tokens_bound()
    encoded = images * IMAGE_TOKENS + files * FILE_TOKENS
    assert encoded <= most <= encoded + 2000
    assert asked.prompt_tokens_estimate < most


def test_a_question_for_tokens_needs_no_ceiling_and_generates_nothing() -> None:
    asked = body(MessageTokensFormat(), {name: value for name, value in MESSAGE.items() if name != "max_tokens"})
    assert (asked.n, asked.max_tokens, asked.stream) == (0, None, False)


@pytest.mark.parametrize("given", ["text", ["a", "b"], [1, 2, 3], [[1, 2], [3]], "\u00e9\n\"'"])
def test_an_input_is_text_or_token_ids(given: Any) -> None:
    fields = {"model": "m", "input": given, "dimensions": 8, "encoding_format": "base64", "task": "search"}
    raw = json.dumps(fields).encode()
    asked = body(EmbeddingsFormat(), raw)
    assert json.loads(b"".join(asked.upstream("there", "max_tokens", 9, ask_usage=True))) == fields | {"model": "there"}
    texts = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    most = len(raw) + TEXT_ALLOWANCE * texts + len('"search"') * (texts - 1)
    assert (asked.prompt_tokens_bound(), asked.n, asked.stream) == (most, 0, False)


@pytest.mark.parametrize(
    "given",
    [
        *(None, "", [], [[]], 7, {"text": "a"}, [{"image": "http://x"}], ["a", {"text": "b"}], ["a", 1]),
        *([[1, "a"]], [1.5], [-1]),
    ],
)
def test_any_other_input_is_refused(given: Any) -> None:
    with pytest.raises(Refused) as refused:
        body(EmbeddingsFormat(), {"model": "m", "input": given})
    assert (refused.value.status, refused.value.param) == (400, "input")


@pytest.mark.parametrize("name", ["messages", "prompt", "model_", "Input", "preset", "extra_body", "documents"])
def test_a_field_that_upstreams_may_read_in_place_of_the_input_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        body(EmbeddingsFormat(), {"model": "m", "input": "a", name: "x"})
    assert (refused.value.status, refused.value.param) == (400, name)


RESPONSE: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [
        {"type": "function", "name": "look", "parameters": {}},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "ask"}]},
        {"type": "local_shell"},
    ],
    "store": False,
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "client_metadata": {"session": "s"},
}


@pytest.mark.parametrize(("given", "most", "sent"), [(None, 7, 16), (None, 900, 900), (40, 900, 40), (3, 900, 16)])
def test_a_response_has_a_ceiling(given: int | None, most: int, sent: int) -> None:
    fields = RESPONSE if given is None else RESPONSE | {"max_output_tokens": given}
    asked = body(ResponsesFormat(), fields | {"stream": True})
    upstream = json.loads(b"".join(asked.upstream("there", "max_tokens", most, ask_usage=True)))
    assert upstream == RESPONSE | {"model": "there", "stream": True, "max_output_tokens": sent}
    assert (asked.max_tokens, asked.stream, asked.n) == (given and max(given, 16), True, 1)


@pytest.mark.parametrize("wire", [InputTokensFormat(), CompactFormat()])
def test_a_request_without_a_stream_is_sent_without_a_ceiling(wire: WireFormat) -> None:
    asked = body(wire, RESPONSE | {"max_output_tokens": 9})
    upstream = json.loads(b"".join(asked.upstream("there", "max_tokens", 7, ask_usage=True)))
    assert upstream == RESPONSE | {"model": "there", "max_output_tokens": 9}
    assert asked.n == int(wire.generates)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "invalid_request"),
        ({"input": None}, "input", "invalid_request"),
        ({"input": []}, "input", "invalid_request"),
        ({"input": [7]}, "input", "invalid_request"),
        ({"input": [{"type": "item_reference"}]}, "input", "invalid_request"),
        ({"input": [{"type": "item_reference", "id": 7}]}, "input", "invalid_request"),
        ({"input": [{}]}, "input", "invalid_request"),
        ({"input": [{"id": f"msg_{number}"} for number in range(1001)]}, "input", "invalid_request"),
        ({"previous_response_id": 7}, "previous_response_id", "invalid_request"),
        ({"store": 7}, "store", "invalid_request"),
        ({"request_id": "resp_1"}, "request_id", "invalid_request"),
        ({"Previous_Response_Id": "resp_1"}, "Previous_Response_Id", "invalid_request"),
        ({"max_tokens": 9}, "max_tokens", "invalid_request"),
        ({"messages": []}, "messages", "invalid_request"),
        ({"Background": True}, "Background", "invalid_request"),
        ({"stream_options": {"Include_Usage": True}}, "stream_options.Include_Usage", "invalid_request"),
        *[
            ({name: value}, name, "not_served")
            for name, value in (("conversation", {"id": "conv_1"}), ("prompt", {"id": "pmpt_1"}), ("background", True))
        ],
        *[
            ({name: value}, name, "unpriced_option")
            for name, value in (
                ("tools", [{"type": "web_search"}]),
                ("tools", [{"type": "namespace", "tools": [{"type": "web_search"}]}]),
                ("tools", [{"type": "function", "tools": [{"type": "web_search"}]}]),
                ("tools", [{"type": "mcp", "server_url": "http://x"}]),
                ("tools", [{"name": "look"}]),
                ("service_tier", "priority"),
                ("context_management", [{"type": "compaction"}]),
                ("background_options", {"completion_window": "8h"}),
                ("prompt_cache_retention", "24h"),
                ("input", [{"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]}]),
                ("input", [{"type": "tool_search_output", "execution": "client", "tools": [{"type": "mcp"}]}]),
                ("input", [{"role": "user", "content": [{"type": "new_kind"}]}]),
            )
        ],
    ],
)
def test_a_response_that_cannot_be_served_or_priced_is_refused(fields: dict[str, Any], param: str, code: str) -> None:
    given = {name: value for name, value in (RESPONSE | fields).items() if value is not None}
    with pytest.raises(Refused) as refused:
        body(ResponsesFormat(), given)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.parametrize(
    ("part", "images", "files", "sounds"),
    [
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}, 1, 0, 0),
        ({"type": "input_image", "file_id": "f"}, 1, 0, 0),
        ({"type": "input_image", "image_url": "data:image/svg+xml;utf8,<svg>"}, 1, 0, 0),
        ({"type": "input_file", "file_data": f"data:application/pdf;base64,{PNG}"}, 0, 1, 0),
        ({"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}, 0, 0, 1),
        ({"type": "new_kind"}, 1, 0, 0),
    ],
)
@pytest.mark.parametrize("place", ["content", "output"])
def test_a_part_of_a_response_counts_by_its_kind(
    part: dict[str, Any], images: int, files: int, sounds: int, place: str
) -> None:
    kind = {"type": "function_call_output", "call_id": "c"} if place == "output" else {"role": "user"}
    fields = {"model": "m", "input": [kind | {place: [part]}]}
    asked = body(ResponsesFormat(), fields, allow_fields=frozenset({"tools"} if part["type"] == "new_kind" else ()))
    encoded = images * IMAGE_TOKENS + files * FILE_TOKENS + sounds * AUDIO_TOKENS
    rewritten = 3000 if place == "output" else 0  # the results of calls may be written as JSON again
    assert encoded <= asked.prompt_tokens_bound() <= encoded + 2000 + rewritten


@pytest.mark.parametrize(
    ("fields", "n", "shown", "ceiling"),
    [
        ({"prompt": "a"}, 1, 1, 16),
        ({"prompt": ["a", "b"], "n": 2, "max_tokens": 7}, 4, 4, 7),
        ({"prompt": ["a", "b"], "best_of": 3}, 6, 2, 16),
        ({"prompt": [1, 2, 3]}, 1, 1, 16),
        ({"prompt": [[1], [2, 3]], "best_of": 2, "n": 2}, 4, 4, 16),
    ],
)
def test_each_prompt_of_a_completion_has_answers_of_its_own(
    fields: dict[str, Any], n: int, shown: int, ceiling: int
) -> None:
    asked = body(CompletionsFormat(), fields | {"model": "m", "stream": True})
    sent = json.loads(b"".join(asked.upstream("there", "max_completion_tokens", 7000, ask_usage=True)))
    usage = {"stream_options": {"include_usage": True}}
    assert sent == fields | {"model": "there", "stream": True, "max_tokens": ceiling} | usage
    assert isinstance(asked, CompletionsBody)
    assert (asked.n, asked.shown, asked.max_tokens) == (n, shown, ceiling)


@pytest.mark.parametrize(
    ("wire", "fields", "param"),
    [
        (CompletionsFormat(), {"prompt": []}, "prompt"),
        (CompletionsFormat(), {"prompt": [{"image": "x"}]}, "prompt"),
        (CompletionsFormat(), {"prompt": "a", "n": 17}, "n"),
        (CompletionsFormat(), {"prompt": "a", "best_of": 17}, "best_of"),
        (CompletionsFormat(), {"prompt": "a", "messages": []}, "messages"),
        (CompletionsFormat(), {"messages": [{"role": "user", "content": "a"}], "stream": True}, "messages"),
        (CompletionsFormat(), {"prompt": "a", "n_predict": 9}, "n_predict"),
        (RerankFormat(), {"documents": ["a"]}, "query"),
        (RerankFormat(), {"query": "a", "documents": []}, "documents"),
        (RerankFormat(), {"query": "a", "documents": [{"image": "http://x"}]}, "documents"),
        (RerankFormat(), {"query": {"image": "x"}, "documents": ["a"]}, "query"),
        (ModerationsFormat(), {"input": [{"type": "image_url"}]}, "input"),
        *[
            (wire, {**TEXTS_OF[type(wire)], name: value}, name)
            for wire in (EmbeddingsFormat(), RerankFormat(), ModerationsFormat())
            for name, value in (
                *(("images", ["x"]), ("texts", ["a"]), ("queries", ["a"]), ("inputs", "a"), ("image", "http://x")),
                *(("more", ["a"]), ("more", {"a": "b"})),
            )
        ],
    ],
)
def test_what_nothing_bounds_is_refused(wire: WireFormat, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        body(wire, fields | {"model": "m"})
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_request", param)


def test_a_query_is_read_with_each_document_and_a_moderation_is_not_billed_by_tokens() -> None:
    fields = {"model": "m", "query": "q" * 100, "documents": ["a", {"text": "b"}, "c"]}
    asked = body(RerankFormat(), fields)
    assert asked.prompt_tokens_bound() == len(json.dumps(fields)) + 200 + 3 * DOCUMENT_ALLOWANCE
    assert body(ModerationsFormat(), {"model": "m", "input": ["a"]}).prompt_tokens_bound() == 0


@pytest.mark.parametrize("wire", [EmbeddingsFormat(), RerankFormat()])
@pytest.mark.parametrize("name", ["instruction", "input_type", "task", "prompt_name", "chat_template_kwarg"])
def test_what_is_read_with_each_text_is_held_for_each(wire: WireFormat, name: str) -> None:
    fields = {"model": "m", "dimensions": 100, **TEXTS_OF[type(wire)]}
    more = body(wire, {**fields, name: "x" * 98})
    assert more.prompt_tokens_bound() - body(wire, fields).prompt_tokens_bound() == 3 * 100 + len(name) + 6


def test_settings_of_other_servers_pass() -> None:
    texts = {"model": "m", **TEXTS_OF[EmbeddingsFormat]}
    body(EmbeddingsFormat(), {**texts, "embedding_types": ["float"], "normalized": True, "late_chunking": False})


ELSEWHERE = ("request_id", "rid", "session_params", "kv_transfer_params", "lora_path", "lora", "adapter_id", "id_slot")
STATE = ("previous_response_id", "conversation", "prompt_id")


@pytest.mark.parametrize("wire", SERVED.values(), ids=SERVED)
def test_no_field_chooses_what_is_kept_elsewhere_or_another_model(wire: WireFormat) -> None:
    served = ("previous_response_id",) if isinstance(wire, ResponsesFormat) else ()
    sample = wire.sample("m", "max_tokens")
    body(wire, sample)
    for name in (*ELSEWHERE, *STATE):
        for value in ({"id": "x"}, "x", 0):
            if name in served and value == "x":
                continue
            with pytest.raises(Refused) as refused:
                body(wire, {**sample, name: value})
            assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize("name", ["service_tier", "serviceTier"])
def test_no_tier_is_asked_for_where_none_has_a_price(name: str) -> None:
    for wire in (EmbeddingsFormat(), RerankFormat(), ModerationsFormat()):
        with pytest.raises(Refused) as refused:
            body(wire, {"model": "m", **TEXTS_OF[type(wire)], name: "priority"})
        assert (refused.value.status, refused.value.code) == (400, "unpriced_option")


TOLD_TWICE = (
    '{"type": "message", "role": "user", "content": "a", "type": "item_reference", "id": "x"}',
    '{"type":"item_reference","id":"x","id":"y"}',
    '{"type":"message","role":"user","content":[{"type":"input_image","type":"input_text","text":"a"}]}',
    r'{"type":"message","role":"user","content":"a","\u0074ype":"item_reference"}',
    '{"Type":"item_reference","id":"x","role":"user","content":"a"}',
    '{"type":"message","role":"user","content":"a","c_ontent":"b"}',
    '{"type":"message","role":"user","content":"a","x":{},"y":[{"x":1}],"x":{}}',
    '{"type":"message","role":"user","content":[{"type":"input_audio","input_audio":{"data":"a","data":"b"}}]}',
)
TOOLS_TWICE = (
    '{"type":"web_search","type":"function","name":"a"}',
    '{"type":"function","name":"a","Type":"web_search"}',
    '{"type":"function","name":"a","t\u0079pe":"web_search"}',
    '{"type":"namespace","name":"a","tools":[{"type":"web_search","type":"function","name":"a"}]}',
)


@pytest.mark.parametrize("raw", TOLD_TWICE)
@pytest.mark.parametrize("spaces", ["", " ", "\n  "])
def test_an_item_says_each_thing_once(raw: str, spaces: str) -> None:
    given = raw.replace(",", f",{spaces}").replace(":", f"{spaces}:{spaces}")
    for wire, fields in (
        (ResponsesFormat(), f'{{"model":"m","input":[{given}]}}'),
        (MessagesFormat(), f'{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":[{given}]}}]}}'),
    ):
        with pytest.raises(Refused, match=r"comes twice|another spelling"):
            body(wire, fields.encode())


@pytest.mark.parametrize(
    "raw",
    [
        '"cache_control":{"ttl":"1h","ttl":"5m"}',
        '"context_management":{"edits":[{"type":"compact_1","type":"clear_1"}]}',
        '"context_management":{"edits":[{"type":"compact_1"}],"edits":[]}',
        '"thinking":{"type":"enabled","budget_tokens":900,"budget_tokens":9}',
        '"system":[{"type":"text","text":"a","cache_control":{"ttl":"1h","ttl":"5m"}}]',
    ],
)
def test_the_settings_of_a_message_say_each_thing_once(raw: str) -> None:
    with pytest.raises(Refused, match="comes twice"):
        body(
            MessagesFormat(),
            f'{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"a"}}],{raw}}}'.encode(),
        )


@pytest.mark.parametrize("raw", TOOLS_TWICE)
def test_a_tool_says_each_thing_once(raw: str) -> None:
    for wire, fields in (
        (ResponsesFormat(), f'{{"model":"m","input":"a","tools":[{raw}]}}'),
        (
            MessagesFormat(),
            f'{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"a"}}],"tools":[{raw}]}}',
        ),
    ):
        with pytest.raises(Refused, match=r"comes twice|another spelling"):
            body(wire, fields.encode())


@pytest.mark.parametrize("ascii_alone", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_items_of_any_form_pass_that_say_each_thing_once(ascii_alone: bool, indent: int | None) -> None:
    item: dict[str, Any] = {
        "type": "message",
        "role": "user",
        '\u00e9"\\\n': "\U0001f600",
        "content": [{"type": "input_text", "text": "a"}],
    }
    item |= {"empty": {}, "none": [], "deep": {"type": {"a": [1, {"type": 2}]}}, "": "", ",": '":"', ":": '","'}
    raw = json.dumps({"model": "m", "input": [item]}, ensure_ascii=ascii_alone, indent=indent)
    body(ResponsesFormat(), raw.encode())


@pytest.mark.parametrize("value", ["a", 7, None, [], [7, "a", None], {}, [[]]])
def test_what_is_no_object_has_no_keys(value: Any) -> None:
    tool = {"name": "a", "edits": value}
    body(
        MessagesFormat(),
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "tools": [tool]},
    )
    body(ResponsesFormat(), {"model": "m", "input": "a", "tools": [{"type": "function", **tool}]})
    body(
        ResponsesFormat(),
        {"model": "m", "input": [{"type": "message", "content": "a", "edits": value, "tools": value}]},
    )


@pytest.mark.parametrize("nothing", ["null", "[ ]", "[\n]", "{ }", '" "'])
@pytest.mark.parametrize("item", ['"content": %s', '"type": "reasoning", "summary": [], "encrypted_content": %s'])
def test_an_item_with_nothing_but_an_id_names_an_earlier_answer(item: str, nothing: str) -> None:
    checked = body(ResponsesFormat(), b'{"model": "m", "input": [{"id": "x", %b}]}' % (item % nothing).encode())
    assert isinstance(checked, CheckedBody)
    assert checked.refers == ("x",)


def test_an_item_has_few_keys() -> None:
    item = {"type": "message", "role": "user", "content": "a", **{f"k{number}": 1 for number in range(64)}}
    with pytest.raises(Refused, match="more than 64 keys"):
        body(ResponsesFormat(), {"model": "m", "input": [item]})


def test_tools_that_the_upstream_describes_are_held_by_their_kind() -> None:
    """By Anthropic's guides, "Computer use", "Text editor" and "Bash": 735 and 499, 700 and 245 tokens."""
    fields: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for kind, told in (("computer_20250124", 735 + 499), ("text_editor_20250429", 700), ("bash_20250124", 245)):
        tools = [{"type": kind, "name": "a"}]
        plain = body(MessagesFormat(), {**fields, "tools": [{"name": f"a{kind}{' ' * 12}"}]})
        assert (
            body(MessagesFormat(), {**fields, "tools": tools}).prompt_tokens_bound() - told
            >= plain.prompt_tokens_bound()
        )
        twice = body(MessagesFormat(), {**fields, "tools": tools * 2}).prompt_tokens_bound()
        assert twice - told * 2 >= plain.prompt_tokens_bound()


@pytest.mark.parametrize(("budget", "times"), [(None, 1), (1, 1), (100, 1), (101, 2), (250, 3)])
def test_thinking_beyond_the_ceiling_is_held(budget: int | None, times: int) -> None:
    fields = {**MESSAGE, "thinking": {"type": "enabled", "budget_tokens": budget}}
    asked = body(MessagesFormat(), fields)
    assert (asked.n, asked.max_tokens) == (times, 100)
    assert json.loads(b"".join(asked.upstream("m", "max_tokens", None, ask_usage=True))) == fields


@pytest.mark.parametrize("wire", [MessagesFormat(), ResponsesFormat()])
def test_parts_within_parts_have_few_levels(wire: WireFormat) -> None:
    part: dict[str, Any] = {"type": "text", "text": "a"}
    for _ in range(3):
        part = {"type": "tool_result" if isinstance(wire, MessagesFormat) else "message", "content": [part]}
    fields = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    if isinstance(wire, ResponsesFormat):
        fields = {"model": "m", "input": [part]}
    body(wire, fields)
    deeper = json.dumps(fields).replace('"text": "a"', '"content": [{"content": [{"text": "a"}]}]').encode()
    with pytest.raises(Refused, match="nested deeper"):
        body(wire, deeper)


@pytest.mark.parametrize("wire", [MessagesFormat(), ResponsesFormat(), ChatFormat()])
def test_many_values_of_medium_length_are_read_with_pauses(wire: WireFormat) -> None:
    value, many = [1.5] * 2_000, 100  # each is shorter than what is read at once
    items: list[dict[str, Any]] = [{"type": "function_call", "arguments": value}] * many
    messages = [{"role": "user", "content": [{"type": "tool_use", "input": value}] * many}]
    fields: dict[str, Any] = {"model": "m", "max_tokens": 1, "stream": True, "messages": messages}
    if isinstance(wire, ResponsesFormat):
        fields = {"model": "m", "input": items}
    raw = json.dumps(fields).encode()
    assert sum(1 for _ in wire.check(raw, BodyRules())) > len(raw) // PIECE


def test_a_summary_of_a_conversation_is_held_by_the_most_of_the_model() -> None:
    assert body(CompactFormat(), {"model": "m", "input": "hi", "max_output_tokens": 64}).max_tokens is None


@pytest.mark.parametrize("wire", [EmbeddingsFormat(), CompletionsFormat()])
def test_the_check_of_an_input_takes_time_by_its_length_alone(wire: WireFormat) -> None:
    name = b"input" if isinstance(wire, EmbeddingsFormat) else b"prompt"
    began = time.process_time()
    with pytest.raises(Refused):
        body(wire, b'{"model":"m","%b":[' % name + b"1," * 1_000_000 + b"1.5]}")
    assert time.process_time() - began < 5  # of a search that goes back, hours


def test_a_channel_may_name_each_operation_of_upstreams() -> None:
    assert get_args(ServedOperation) == tuple(map(str, SERVED))


# Forms with files: what is read of them, and what two readers may take for different forms. And how long a sound is.
HEARD, EDITS = TranscriptionsFormat(), ImageEditsFormat()
FORMS_FORM = written({"model": "m", "file": SILENCE, "language": "en"})


def forms_body(raw: bytes, wire: TranscriptionsFormat | ImageEditsFormat = HEARD) -> Body:
    return checked(wire.check(raw, BodyRules()))


def sent(raw: bytes, model: str = "m") -> bytes:
    return b"".join(map(bytes, forms_body(raw).upstream(model, "", None, ask_usage=False)))


def test_a_form_is_sent_as_it_came_but_for_the_model() -> None:
    assert sent(FORMS_FORM) == FORMS_FORM
    assert sent(FORMS_FORM, "another") == FORMS_FORM.replace(b"\r\nm\r\n", b"\r\nanother\r\n")
    late = written({"file": SILENCE, "model": "m"}, "----WebKitFormBoundaryAbC123")
    assert sent(late) == late
    found = forms_body(late)
    assert isinstance(found, MultipartBody)
    assert found.media == "multipart/form-data; boundary=----WebKitFormBoundaryAbC123"
    assert list(found.top) == ["model"]
    found.drop_values()
    with pytest.raises(ValueError, match="not enough values"):
        found.upstream("m", "", None, ask_usage=False)


def part(name: str, value: str, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'.encode()


ENCODED = b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"
TWICE = b'\r\nContent-Disposition: form-data; name="n"\r\n\r\n'
GOOD = part("model", "m") + part("file", "?", '; filename="a"').replace(b"?", SILENCE)
BROKEN: dict[str, bytes] = {
    "no boundary": b"model=m",
    "a preamble": b"\r\n" + GOOD + b"--b--\r\n",
    "no end": GOOD,
    "an epilogue": GOOD + b"--b--\r\n" + GOOD + b"--b--\r\n",
    "a longer boundary": part("model", "m") + GOOD.replace(b"--b\r\n", b"--bb\r\n") + b"--b--\r\n",
    "a part without a head": b"--b\r\n\r\n--b--\r\n",
    "a part without a name": b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
    "a name with an escape": part('a\\"b', "x") + GOOD + b"--b--\r\n",
    "a name without quotes": b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nx\r\n" + GOOD + b"--b--\r\n",
    "two names": part("model", "m", '; name="stream"') + GOOD + b"--b--\r\n",
    "another header": part("a", "x").replace(b"\r\n\r\n", ENCODED, 1) + GOOD + b"--b--\r\n",
    "a header twice": part("a", "x").replace(b"\r\n\r\n", TWICE, 1) + GOOD + b"--b--\r\n",
    "a folded header": part("a", "x").replace(b"form-data;", b"form-data;\r\n") + GOOD + b"--b--\r\n",
    "many parts": GOOD + part("include[]", "x") * (MOST_PARTS + 1) + b"--b--\r\n",
    "the model twice": part("model", "other") + GOOD + b"--b--\r\n",
    "two files": part("file", "x", '; filename="a"') + GOOD + b"--b--\r\n",
    "another file": part("model", "m", '; filename="a"') + GOOD + b"--b--\r\n",
    "the file as a field": part("model", "m") + part("file", "x") + b"--b--\r\n",
    "no file": part("model", "m") + b"--b--\r\n",
    "no model": part("file", "x", '; filename="a"') + b"--b--\r\n",
    "another spelling": GOOD + part("Model", "dear") + b"--b--\r\n",
    "a long field": GOOD + part("prompt", "x" * (MOST_TEXT + 1)) + b"--b--\r\n",
    "another way to name a field": GOOD + part("stream[]", "true") + b"--b--\r\n",
    "a field by its place": GOOD + part("response_format[0]", "text") + b"--b--\r\n",
    "a stream, in another way": GOOD + part("stream", "True") + b"--b--\r\n",
    "an address": GOOD + part("url", "http://h/long.mp3") + b"--b--\r\n",
    "a bare LF in a head": part("a", "x").replace(
        b"Content-Disposition", b"Content-Type: text/plain\nContent-Disposition", 1
    )
    + GOOD
    + b"--b--\r\n",
    "a bare CR in a head": part("a", "x").replace(b"form-data;", b"form-data;\r") + GOOD + b"--b--\r\n",
    "a boundary after a bare LF": GOOD + part("prompt", "x\n--b\ny") + b"--b--\r\n",
    "a boundary after a bare CR": GOOD + part("prompt", "x\r--b\ry") + b"--b--\r\n",
    "a boundary that a header has to quote": (GOOD + b"--b--\r\n").replace(b"--b", b"--b(c"),
    "not UTF-8": GOOD + part("prompt", "?").replace(b"?", b"\xff") + b"--b--\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_form_that_may_be_read_in_two_ways_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        forms_body(BROKEN[name])
    assert refused.value.status == 400


def test_what_the_refused_ones_are_made_of_is_read() -> None:
    assert isinstance(forms_body(GOOD + part("include[]", "x") * 2 + b"--b--\r\n"), MultipartBody)
    assert isinstance(forms_body(GOOD + b"--b--"), MultipartBody)


def test_pictures_are_ordered_by_a_form_as_in_json() -> None:
    fields: dict[str, Any] = {"model": "m", "prompt": "x", "n": "003", "size": "64x64", "image[]": PIXEL}
    found = forms_body(written(fields), EDITS)
    assert (found.unit, found.units, found.variant) == ("image", 3, ("", "64x64"))
    for wrong in ("11", "0", "-1", "3.0", "1e1", ""):
        with pytest.raises(Refused, match="'n' must be"):
            forms_body(written(fields | {"n": wrong}), EDITS)


def mp3(frames: int, bits: bytes, size: int) -> bytes:
    return (bits + bytes(size - 4)) * frames


def wav(channels: int, rate: int, bits: int, size: int, coding: int = 1) -> bytes:
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0, b"WAVE", b"fmt ", 16, coding, channels, rate, 1, 1, bits)
    return head + b"data" + bytes(4 + size)


def sized(size: int) -> bytes:
    """Return a WAV that says how long its samples are."""
    return wav(2, 44_100, 16, 0)[:-4] + struct.pack("<I", size) + (b"fmt " * size)[:size]


SOUNDS = [
    (sized(3 * 176_400), 3),
    (sized(176_400 - 8) + b"LIST" + bytes(4), 1),
    (SILENCE, 1),
    (wav(2, 44_100, 16, 3 * 176_400), 3),
    (wav(2, 44_100, 16, 3 * 176_400 + 1), 4),
    (mp3(100, b"\xff\xfb\x90\x00", 417), 3),  # 128 kbit/s, 44.1 kHz: 26 ms each
    (b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + mp3(100, b"\xff\xfb\x90\x00", 417), 3),
    (mp3(100, b"\xff\xfb\x90\x00", 417) + b"TAG" + bytes(125), 3),
    (mp3(100, b"\xff\xf3\x40\x00", 104), 3),  # MPEG 2: 32 kbit/s, 22.05 kHz
]


@pytest.mark.parametrize(("sound", "seconds"), SOUNDS)
def test_a_sound_has_no_more_seconds_than_are_held(sound: bytes, seconds: int) -> None:
    found = forms_body(written({"model": "m", "file": sound}))
    assert (found.unit, found.units) == ("second", seconds)


FRAMES = mp3(50, b"\xff\xfb\x90\x00", 417)
UNCOUNTED = {
    "another coding": wav(1, 8_000, 8, 80_000, coding=7),
    "no channel": wav(0, 8_000, 8, 7_500),
    "two formats": sized(1_000) + b"fmt " + bytes(16),
    "a length that is not known, and perhaps two formats": wav(2, 44_100, 16, 1_000) + b"fmt " + bytes(16),
    "a chunk of odd length": sized(1_001) + bytes(9),
    "many chunks": wav(1, 8_000, 8, 0)[:36] + (b"LIST" + bytes(4)) * 101,
    "no beginning": mp3(100, b"\xff\xe3\x40\x00", 208),
    "something else among the frames": FRAMES + bytes(75_000),
    "a tag among the frames": FRAMES[:417] + b"TAG" + FRAMES,
    "a tag of no size": b"ID3\4\0\0\x80\0\0\0" + FRAMES,
    "a tag of no version": b"ID3\xff\0\0\0\0\0\0" + FRAMES,
    "FLAC": b"fLaC" + bytes(9_000),
    "Ogg": b"OggS" + bytes(9_000),
    "nothing": b"",
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_sound_whose_seconds_cannot_be_counted_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="as WAV") as refused:
        forms_body(written({"model": "m", "file": UNCOUNTED[name]}))
    assert (refused.value.status, refused.value.param) == (400, "file")


@pytest.mark.parametrize(
    ("quality", "size", "price"),
    [("high", "", 2_000_000), ("HIGH", "", 2_000_000), ("low", "1024x1536", 50_000), ("high", "1536X1024", 2_000_000)],
)
def test_a_spelling_without_a_price_costs_the_dearest_that_it_may_mean(quality: str, size: str, price: int) -> None:
    prices = {"low": "0.01", "high": "1", "1024x1536": "0.05", "high 1536x1024": "2"}
    model = Model(["c"], image={name: Decimal(each) for name, each in prices.items()})
    found = forms_body(written({"model": "m", "prompt": "x", "image": PIXEL, "quality": quality, "size": size}), EDITS)
    assert price_of(model).by(found).unit == price * PER_TOKENS


# Texts whose characters a tokenizer writes anew: what is held for them.
@pytest.mark.parametrize("escaped", [False, True])
def test_characters_that_a_tokenizer_writes_anew_count_as_it_writes_them(escaped: bool) -> None:
    def bound(wire: WireFormat, **fields: Any) -> int:
        raw = json.dumps({"model": "m", **fields}, ensure_ascii=escaped).encode()
        return body(wire, raw).prompt_tokens_bound()

    blessing = "\ufdfa" * 10_000  # one character of three bytes, of which NFKC makes 18 of 33
    plain = bound(EmbeddingsFormat(), input="x" * 10_000)
    assert bound(EmbeddingsFormat(), input=blessing) >= plain + 310_000
    assert bound(EmbeddingsFormat(), input=["a", "b", "c"], instruction=blessing) >= 3 * 330_000
    assert bound(RerankFormat(), query="q", documents=["a", {"text": blessing}]) >= 330_000
    assert bound(RerankFormat(), query=blessing, documents=["a", "b", "c"]) >= 3 * 330_000
    assert bound(EmbeddingsFormat(), input="\u00e4" * 10_000) <= plain + (50_000 if escaped else 10_000), (
        "others as before"
    )


# Answers in JSON: their usage and id, whatever else they are, and errors in the place of answers.
ANSWERS_MESSAGE = b'{"id":"msg_1","content":[{"type":"text","text":"Rain"}],"usage":%b}'
COMPLETION = (
    b'{"id":"cmpl-1","choices":[{"text":"Rain","logprobs":{"tokens":["Rain"]}},{"text":"Snow falls."}],"usage":%b}'
)
ANSWERS_RESPONSE = b'{"id":"resp_1","output":[{"content":[{"text":"Rain falls."}]}],"usage":%b,"service_tier":"flex"}'


@pytest.mark.parametrize(
    ("wire", "text", "expected"),
    [
        (
            MessagesFormat(),
            ANSWERS_MESSAGE % b'{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":5}',
            (10, 5, "upstream"),
        ),
        (MessagesFormat(), ANSWERS_MESSAGE % b'{"input_tokens":1e400,"output_tokens":5}', (99, 1, "estimated")),
        (MessagesFormat(), ANSWERS_MESSAGE % b"[]", (99, 1, "estimated")),
        (
            ResponsesFormat(),
            ANSWERS_RESPONSE % b'{"input_tokens":3,"output_tokens":5,"total_tokens":8}',
            (3, 5, "upstream"),
        ),
        (ResponsesFormat(), ANSWERS_RESPONSE % b"null", (99, 3, "estimated")),
        (CompletionsFormat(), COMPLETION % b'{"prompt_tokens":3,"completion_tokens":5}', (3, 5, "upstream")),
        (CompletionsFormat(), COMPLETION % b"null", (99, 4, "estimated")),
        (EmbeddingsFormat(), b'{"data":[[NaN,"\xff"]],"usage":{"total_tokens":9}}', (9, 0, "upstream")),
        (EmbeddingsFormat(), b'\xef\xbb\xbf{"data":[]}', (99, 0, "estimated")),
        (ModerationsFormat(), b'{"results":[]}', (0, 0, "upstream")),
        (MessageTokensFormat(), b'{"input_tokens":14}', (0, 0, "upstream")),
    ],
)
def test_the_usage_of_an_answer(wire: WireFormat, text: bytes, expected: tuple[int, int, str]) -> None:
    answer = wire.read(text)
    assert answer is not None
    assert (answer.text, answer.error) == (text, False)
    used: Usage = answer.usage.usage(lambda: 99, answer.estimate_output)
    assert (used.prompt_tokens, used.completion_tokens, used.source) == expected
    assert answer.completion_id in ("", "cmpl-1", "msg_1", "resp_1")


OTHERS = [MessagesFormat(), ResponsesFormat(), EmbeddingsFormat(), MessageTokensFormat(), CompletionsFormat()]


@pytest.mark.parametrize("wire", OTHERS)
def test_an_error_is_one_and_anything_else_is_no_answer(wire: WireFormat) -> None:
    error = wire.read(b'{"type":"error","error":{"message":"no"}}')
    assert error is not None
    assert error.error
    assert wire.read(b'{"content":7,"output":7,"data":7,"input_tokens":"7","choices":7}') is None
    assert wire.read(b"[7]") is None
    with pytest.raises(ValueError, match="Expecting"):
        wire.read(b'{"content":[')


def test_an_error_beside_the_choices_of_a_completion_is_one() -> None:
    error = CompletionsFormat().read(b'{"choices":[],"error":{"message":"no"}}')
    assert error is not None
    assert error.error


def test_probabilities_of_a_completion_are_not_decoded() -> None:
    choice = {"text": "ab" * 20_000, "logprobs": {"top_logprobs": [dict.fromkeys(("ab", "cd", "ef"), -0.5)] * 20_000}}
    usage = {"prompt_tokens": 3, "completion_tokens": 20_000}
    text = json.dumps({"id": "cmpl-1", "choices": [choice], "usage": usage}).encode()

    def read() -> None:
        answer = CompletionsFormat().read(text)
        assert answer is not None
        assert (answer.usage.prompt, answer.completion_id, answer.estimate_output()) == (3, "cmpl-1", 10_000)

    def took(what: Callable[[], object]) -> float:
        began = time.process_time()
        what()
        return time.process_time() - began

    decode = partial(msgspec.json.decode, text)
    assert min(took(read) for _ in range(5)) < min(took(decode) for _ in range(5))
