"""What a chat completion becomes as a request of Anthropic's Messages, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import Refused
from gateway.chat.request import BodyRules, FixedFields, check
from gateway.proxy.translation import foreign_chat
from gateway.testing import chat_request
from plugins.anthropic import Messages

USER = {"role": "user", "content": "Hi"}
PNG = "data:image/PNG;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="
TOOL = {"type": "function", "function": {"name": "f", "description": "F", "parameters": {"type": "object", "x": [1.0]}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\u00e9", "b": [1]}'}}


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the decoded body of a request."""
    body: dict[str, Any] = json.loads(
        Messages().request(chat_request({"messages": messages or [USER], **fields}, model="claude"))
    )
    return body


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def test_a_request_always_has_the_limit_and_asks_for_a_stream() -> None:
    assert request() == {
        **{"model": "claude", "max_tokens": 4096, "stream": True},
        "messages": [{"role": "user", "content": [text("Hi")]}],
    }
    assert request(max_tokens=5)["max_tokens"] == 5
    assert request(max_completion_tokens=6, stream_options={"include_usage": True})["max_tokens"] == 6


def test_system_messages_are_the_system_prompt_wherever_they_are() -> None:
    body = request(
        {"role": "system", "content": "One"},
        USER,
        {"role": "developer", "content": [text("Two", cache_control={"type": "ephemeral", "ttl": "1h"}), text(" \n")]},
    )
    assert body["system"] == [text("One"), text("Two", cache_control={"type": "ephemeral"})]
    assert body["messages"] == [{"role": "user", "content": [text("Hi")]}]


def test_calls_of_tools_and_their_results() -> None:
    thought = {"type": "thinking", "thinking": "Hm", "signature": "sig", "index": 0}
    body = request(
        USER,
        {
            **{"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
            "thinking_blocks": [thought, {"type": "redacted_thinking", "data": "d"}, {**thought, "signature": ""}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "22 \u00b0C"},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        USER,
        {"role": "assistant", "content": "", "refusal": None},
        {"role": "assistant", "content": "Well", "refusal": "no"},
    )
    use = {"type": "tool_use", "name": "f", "input": {"a": "\u00e9", "b": [1]}}
    assert body["messages"] == [
        {"role": "user", "content": [text("Hi")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "d"},
                *({**use, "id": name} for name in ("call_1", "call_2")),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [text("22 \u00b0C")]},
                {"type": "tool_result", "tool_use_id": "call_2"},
                text("Hi"),
            ],
        },
        {"role": "assistant", "content": [text("Well"), text("no")]},
    ]


def test_pictures_and_files() -> None:
    body = request(
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}},
                {"type": "image_url", "image_url": "https://h/a.png"},
                {"type": "image_url", "image_url": "data:image/jpeg;name=a.jpg;charset=x;base64,/9j="},
                {"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}},
            ],
        }
    )
    assert body["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "image", "source": {"type": "url", "url": "https://h/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j="}},
        {
            **{"type": "document", "title": "a.pdf"},
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        },
    ]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1, "top_p": 0.5, "stop": "x"}, {"temperature": 1, "top_p": 0.5, "stop_sequences": ["x"]}),
        ({"temperature": 0, "stop": ["x", "y"]}, {"temperature": 0, "stop_sequences": ["x", "y"]}),
        ({"user": "u", "metadata": {"a": "b"}}, {"metadata": {"user_id": "u"}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ({"top_k": 4, "seed": 1, "logit_bias": {}, "logprobs": False, "stop": None}, {"top_k": 4}),
        ({"speed": "standard", "service_tier": "auto", "inference_geo": None, "tool_choice": "auto"}, {}),
        ({"stop": "", "temperature": None, "top_p": None, "user": "", "tools": None, "tool_choice": None}, {}),
        ({"stop": [], "tool_choice": "none", "parallel_tool_calls": False, "response_format": None}, {}),
        ({"metadata": {"a": "b"}, "store": True, "seed": 7, "prediction": {"type": "content", "content": "x"}}, {}),
        ({"prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}}, {}),
        ({"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0, "logprobs": False}, {}),
        ({"modalities": ["text"], "verbosity": "medium", "functions": [], "function_call": "auto", "audio": None}, {}),
        ({"stream_options": {"include_usage": True, "include_obfuscation": False}, "n": 1, "later": None}, {}),
        ({"safety_identifier": "s", "user": "u"}, {"metadata": {"user_id": "s"}}),
        ({"reasoning_effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"reasoning_effort": "xhigh", "output_config": {"x": 1}}, {"output_config": {"x": 1, "effort": "xhigh"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        ({"reasoning_effort": None}, {}),
        ({"response_format": {"type": "text"}, "tools": []}, {}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
             "output_config": {"effort": "low"}},
            {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
    ],
)  # fmt: skip
def test_settings(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    body = request(**fields)
    assert {name: body[name] for name in body if name not in ("model", "max_tokens", "stream", "messages")} == expected


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        *((None, None, None), ("auto", None, {"type": "auto"}), ("none", False, {"type": "none"})),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"type": "function", "function": {"name": "f"}}, True, {"type": "tool", "name": "f"}),
    ],
)
def test_tools(choice: Any, parallel: bool | None, expected: dict[str, Any] | None) -> None:
    bare = {"type": "function", "function": {"name": "g"}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = request(tools=[TOOL, bare], tool_choice=choice, parallel_tool_calls=parallel)
    assert body["tools"] == [
        {"name": "f", "description": "F", "input_schema": {"type": "object", "x": [1.0]}},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}},
    ]
    assert body.get("tool_choice") == expected


def test_a_tool_may_be_strict_about_its_input() -> None:
    body = request(tools=[{"type": "function", "function": {"name": "f", "strict": True}}], tool_choice="auto")
    assert body["tools"] == [{"name": "f", "strict": True, "input_schema": {"type": "object", "properties": {}}}]


def test_names_of_calls_that_other_upstreams_made_up_are_the_same_in_call_and_result() -> None:
    body = request(
        {"role": "assistant", "tool_calls": [{**CALL, "id": "functions.f:0"}]},
        {"role": "tool", "tool_call_id": "functions.f:0", "name": "f", "content": "x"},
    )
    assert [each["content"][0].get("id") or each["content"][0]["tool_use_id"] for each in body["messages"]] == [
        "functions_f_0",
        "functions_f_0",
    ]


def test_what_another_upstream_added_to_its_answer_is_left_out() -> None:
    answer: Any = {
        "role": "assistant",
        "content": "Hi",
        "annotations": [],
        "audio": None,
        "reasoning_content": "x",
        "parsed": 1,
    }
    assert request(USER, answer)["messages"][1] == {"role": "assistant", "content": [text("Hi")]}


def test_a_picture_in_the_result_of_a_tool() -> None:
    body = request(
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": PNG}}, text("x")]}
    )
    (result,) = body["messages"][0]["content"]
    assert [each["type"] for each in result["content"]] == ["image", "text"]


def test_what_the_channel_drops_or_sets_is_no_concern_of_the_dialect() -> None:
    checked = check(
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"seed":1,"Later":2,"top_k":3}', BodyRules(True)
    )
    chat = foreign_chat(checked, "claude", 9, FixedFields({"top_k": 5}, ["later"]))
    assert set(chat.fields) == {"messages", "seed"}


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def called(call: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", **call}]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        *(({"temperature": 1.01}, "temperature"), ({"temperature": 2}, "temperature")),
        *(({"top_p": "high"}, "top_p"), ({"stop": " "}, "stop")),
        ({"stop": ["x", ""]}, "stop"),
        ({"stop": {"x": 1}}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"moderation": {"model": "m"}}, "moderation"),
        *(({"verbosity": "low"}, "verbosity"), ({"service_tier": "priority"}, "service_tier")),
        *(({"service_tier": "flex"}, "service_tier"), ({"speed": "fast"}, "speed")),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_effort": "none", "thinking": {"type": "adaptive"}}, "reasoning_effort"),
        ({"reasoning_effort": "low", "output_config": {"effort": "high"}}, "reasoning_effort"),
        ({"user": 7}, "user"),
        ({"safety_identifier": ["x"]}, "safety_identifier"),
        *(({"later": False}, "later"), ({"min_p": 0}, "min_p"), ({"später": 1}, "sp\\xe4ter")),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "later": 1}}]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "custom", "function": {"name": "f"}}}, "tool_choice"),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
                "output_config": {"format": {}},
            },
            "response_format",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": PNG}]}, USER]}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image_url", "image_url": PNG}]}]}, "messages"),
        (said({"type": "image_url", "image_url": "ftp://h/a.png"}), "messages"),
        (said({"type": "image_url", "image_url": "data:image/png,abc"}), "messages"),
        (said({"type": "image_url", "image_url": PDF}), "messages"),
        (said({"type": "file", "file": {"file_data": "data:text/plain;base64,eA=="}}), "messages"),
        (said({"type": "video_url", "video_url": {"url": "https://h/a.mp4"}}), "messages"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"stop": 7}, "stop"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages"),
        (said({"type": "input_audio", "input_audio": {"data": ""}}), "messages"),
        (said({"type": "file", "file": {"file_id": "file-1"}}), "messages"),
        (called({"function": {"name": "f", "arguments": "{"}}), "messages"),
        (called({"function": {"name": "f", "arguments": "[1]"}}), "messages"),
        (called({"type": "custom", "custom": {"name": "f"}}), "messages"),
    ],
)
def test_what_cannot_be_said_is_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        request(**fields)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "invalid_request", param)
