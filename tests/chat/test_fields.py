"""Fields that an upstream may read in place of a checked one are refused, and those that it bills beside the tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.fields import CHECKED, COMMON, MAY_ALLOW, REMEDIES, UNPRICED, fold
from gateway.chat.request import BodyRules, check

RULES = BodyRules()


# The fields of each vendor's chat completions that change what is billed (its reference, November 2026), and those of which it may
# seem so: they change how many tokens there are, within what is held, but not what one costs.
BILLED: dict[str, dict[str, Any]] = {
    "openai": {
        "service_tier": "priority",
        "web_search_options": {},
        "modalities": ["text", "audio"],
        "tools": [{"type": "web_search"}],
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"prewarm": True},
    },
    "openrouter": {
        "provider": {"sort": "throughput"},
        "plugins": [{"id": "web"}],
        "models": ["a", "b"],
        "route": "fallback",
        "preset": "p",
        "modalities": ["image", "text"],
        "image_config": {"image_size": "4K"},
        "tools": [{"type": "openrouter:web_search"}],
        "speed": "fast",
        "service_tier": "flex",
    },
    "azure": {"data_sources": [{}], "dataSources": [{}], "enhancements": {"ocr": {}}, "service_tier": "priority"},
    "xai": {
        "search_parameters": {"mode": "on"},
        "web_search_options": {"search_context_size": "high"},
        "tools": [{"type": "function", "function": {}}, {"type": "live_search"}],
        "deferred": True,
    },
    "gemini": {
        "extra_body": {"google": {"cached_content": "c"}},
        "google": {"cached_content": "c"},
        "cached_content": "c",
        "tools": [{"googleSearch": {}}],
        "service_tier": "flex",
        "modalities": ["image"],
    },
    "vllm": {
        "best_of": 4,
        "mm_processor_kwargs": {"max_pixels": 9**9},
        "media_io_kwargs": {"video": {"num_frames": 999}},
        "chat_template": "{% for i in range(9999) %}x{% endfor %}",
    },
    "groq": {
        "service_tier": "performance",
        "compound_custom": {"tools": {"enabled_tools": ["web_search"]}},
        "tools": [{"type": "browser_search"}],
    },
    "translations of Anthropic's": {
        "fallbacks": ["b"],
        "inference_geo": "us",
        "container": "c",
        "mcp_servers": [{}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    },
    "alibaba, baidu": {
        "enable_search": True,
        "search_options": {"forced_search": True},
        "enable_code_interpreter": True,
        "web_search": {"enable": True},
    },
}
NOT_BILLED: dict[str, Any] = {
    "service_tier": "default",
    "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {}}, {"type": "custom", "custom": {}}],
    "modalities": ["text"],
    "plugins": [],
    "web_search_options": None,
    "deferred": False,
    "speed": "standard",
    "prompt_cache_retention": "in_memory",
    **dict.fromkeys(("reasoning_effort", "reasoning", "thinking", "thinking_budget", "verbosity", "prediction"), "x"),
    **dict.fromkeys(("store", "metadata", "user", "safety_identifier", "prompt_cache_key", "moderation", "seed"), "x"),
    **dict.fromkeys(("usage", "transforms", "session_id", "cache_control", "include_reasoning", "debug"), "x"),
    **dict.fromkeys(("search_settings", "documents", "citation_options", "disable_tool_validation"), "x"),
    **dict.fromkeys(("priority", "min_tokens", "use_beam_search", "chat_template_kwargs", "guided_json", "echo"), 1),
}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user"}], "stream": True, **fields}).encode()


def refusal(raw: bytes, rules: BodyRules = RULES) -> Refused:
    with pytest.raises(Refused) as caught:
        check(raw, rules)
    assert (caught.value.status, caught.value.code) in ((400, "invalid_request"), (400, "unpriced_option"))
    assert caught.value.message.isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Model", "model"),
        ("MODEL", "model"),
        ("N", "n"),
        ("Max_Tokens", "max_tokens"),
        ("max_to\u212aens", "max_tokens"),
        ("max_token\u017f", "max_tokens"),
        ("\u017ftream", "stream"),
        ("\ufb06ream", "stream"),
        ("\uff4dodel", "model"),
        ("Stream_Options", "stream_options"),
        ("MAX_COMPLETION_TOKENS", "max_completion_tokens"),
        ("max_complet\u0131on_tokens", "max_completion_tokens"),
        ("MAX_COMPLET\u0130ON_TOKENS", "max_completion_tokens"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("_model", "model"),
        ("m" + "_" * 1000 + "odel", "model"),
        ("model\0", "model"),
        ("N\0anything", "n"),
        ("Temperature", "temperature"),
        ("Messages", "messages"),
        ("max_tokens ", "max_tokens"),
        (" max tokens", "max_tokens"),
        ("\u00a0max_tokens\t", "max_tokens"),
        ("max_\u200btokens\ufeff", "max_tokens"),
        ("n_predict\n", "max_tokens"),
        ("model\x1f", "model"),
    ],
)
def test_another_spelling_of_a_checked_field_is_refused_and_the_right_one_named(name: str, meant: str) -> None:
    for value in (1, None, "x"):
        error = refusal(body(**{name: value}))
        assert error.param == ascii(name[:64])[1:-1]
        assert f"'{meant}'" in error.message


def test_a_name_with_escapes_is_another_spelling_too() -> None:
    error = refusal(b'{"model":"m","messages":[{"role":"user"}],"stream":true,"\\u004dodel":"x"}')
    assert error.param == "Model"


@pytest.mark.parametrize("name", ["Include_Usage", "include_u\u017fage", "includeUsage", "INCLUDE-USAGE"])
def test_another_spelling_within_stream_options_is_refused(name: str) -> None:
    error = refusal(body(stream_options={name: False, "include_usage": True}))
    assert error.param == f"stream_options.{ascii(name)[1:-1]}"
    assert "'stream_options.include_usage'" in error.message


def test_the_prototype_of_an_object_is_refused() -> None:
    assert refusal(body(**{"__proto__": {"n": 16}})).param == "__proto__"
    assert refusal(body(stream_options={"__proto__": {}})).param == "stream_options.__proto__"


def test_a_long_name_is_shortened() -> None:
    assert refusal(body(**{"_" * 300 + "n": 1})).param == "_" * 64


@pytest.mark.parametrize(
    "name",
    [
        *sorted(COMMON - CHECKED),
        "nn",
        "models2",
        "top_k",
        "min_tokens",
        "stop_token_ids",
        "streams",
        "\u0435n",
        "x" * 70,
    ],
)
def test_any_other_field_is_accepted(name: str) -> None:
    assert check(body(**{name: 1}), BodyRules()).model == "m"
    check(body(stream_options={name: 1}), BodyRules())


@pytest.mark.parametrize("name", REMEDIES)
def test_a_field_that_is_read_in_place_of_a_checked_one_is_refused_with_what_to_use(name: str) -> None:
    error = refusal(body(**{name: 1}))
    assert error.param == name
    assert REMEDIES[name] in error.message
    assert refusal(body(**{name.upper(): 1})).param == name.upper()


@pytest.mark.parametrize(("vendor", "name"), [(vendor, name) for vendor, fields in BILLED.items() for name in fields])
def test_a_field_that_changes_what_the_upstream_bills_is_refused_unless_the_operator_allows_it(
    vendor: str, name: str
) -> None:
    value = BILLED[vendor][name]
    error = refusal(body(**{name: value}))
    assert error.param == name
    assert error.code == ("invalid_request" if name in REMEDIES else "unpriced_option")
    if name in MAY_ALLOW:
        check(body(**{name: value}), BodyRules(allow_fields=frozenset({name})))
    refusal(body(**{name.upper(): value}))


def test_every_such_field_is_in_the_table() -> None:
    assert {name for fields in BILLED.values() for name in fields} >= UNPRICED | {"tools", "service_tier"}


@pytest.mark.parametrize("name", NOT_BILLED)
def test_a_field_that_orders_nothing_else_is_accepted(name: str) -> None:
    check(body(**{name: NOT_BILLED[name]}), RULES)


@pytest.mark.parametrize(
    "tools",
    [
        b'[{"type":"function","function":{},"type":"web_search"}]',
        b'[{"type":"web_search","function":{},"type":"function"}]',
        b'[{"type":"function","function":{},"ty\\u0070e":"web_search"}]',
        b'[{"type":"function","function":{},"Type":"web_search"}]',
        b'[{"type":"function","function":{},"google_search":{}}]',
        b'[{"function":{}}]',
        b"1",
    ],
)
def test_no_tool_of_the_upstream_hides_in_one_of_the_caller(tools: bytes) -> None:
    raw = b'{"model":"m","messages":[{"role":"user"}],"stream":true,"tools":%b}' % tools
    assert (refusal(raw).code, refusal(raw).param) == ("unpriced_option", "tools")


def test_a_service_tier_with_a_price_is_accepted_and_auto_and_the_default_always() -> None:
    rules = BodyRules(service_tiers={"m": ("flex",)})
    for asked, kept in {"flex": "flex", "auto": "auto", "default": "", None: "", "": ""}.items():
        assert check(body(service_tier=asked), rules).service_tier == kept
    assert check(body(), rules).service_tier == ""
    assert "default or auto or flex" in refusal(body(service_tier="priority"), rules).message
    assert refusal(body(service_tier="flex", model="other"), rules).param == "service_tier"
    assert refusal(body(service_tier=1), rules).code == "invalid_request"


@pytest.mark.parametrize("name", REMEDIES)
def test_an_operator_may_allow_such_a_field_but_no_other_spelling_of_it(name: str) -> None:
    rules = BodyRules(allow_fields=frozenset({name}))
    parsed = check(body(**{name: ["a"]}), rules)
    assert json.loads(b"".join(parsed.upstream("m", "max_tokens", 1, ask_usage=True)))[name] == ["a"]
    assert refusal(body(**{name.swapcase(): 1}), rules).param == name.swapcase()
    other = next(each for each in REMEDIES if each != name)
    assert refusal(body(**{other: 1}), rules).param == other


def test_frequent_fields_are_not_other_spellings() -> None:
    assert {fold(name) for name in COMMON - CHECKED}.isdisjoint(
        {fold(name) for name in (*CHECKED, *REMEDIES, *UNPRICED)}
    )


@given(st.sampled_from(sorted(CHECKED)), st.data())
def test_folding_is_what_python_takes_for_equal(name: str, data: st.DataObject) -> None:
    letters = [chr(code) for code in range(0x80, 0x3000) if chr(code).casefold() in name]
    alike = {
        letter: [letter, letter.upper(), *(each for each in letters if each.casefold() == letter)] for letter in name
    }
    spelt = "".join(data.draw(st.sampled_from(alike[letter])) for letter in name)
    assert fold(spelt) == fold(name)
