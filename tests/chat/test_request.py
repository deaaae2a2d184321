"""Requests: their checks, fields, and the body that is sent to the upstream."""

from __future__ import annotations

import json
import time
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.fields import CHECKED, COMMON, MAY_ALLOW, REMEDIES, UNPRICED, fold
from gateway.chat.prompt import MESSAGE_ALLOWANCE, REQUEST_ALLOWANCE
from gateway.chat.request import Body, BodyRules, check, edited

# The checks of a request body, and the body that is sent to the upstream.
RULES = BodyRules()
BASE = b'"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true'


def with_field(field: str | bytes) -> bytes:
    return b"{" + BASE + b"," + (field.encode() if isinstance(field, str) else field) + b"}"


def body(**fields: Any) -> bytes:
    given_fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    return json.dumps({name: value for name, value in given_fields.items() if value is not ...}).encode()


def checked(raw: bytes, rules: BodyRules = RULES) -> Body:
    return check(raw, rules)


def refused(raw: bytes, rules: BodyRules = RULES) -> Refused:
    with pytest.raises(Refused) as caught:
        check(raw, rules)
    assert caught.value.status == 400
    return caught.value


def sent(
    raw: bytes,
    model: str = "m",
    *,
    ceiling_field: str = "max_tokens",
    ceiling: int | None = None,
    ask_usage: bool = False,
    rules: BodyRules = RULES,
) -> bytes:
    return b"".join(check(raw, rules).upstream(model, ceiling_field, ceiling, ask_usage=ask_usage))


# What is read


def test_the_known_fields_are_read() -> None:
    raw = body(max_tokens=50, n=2, stream_options={"include_usage": True}, temperature=0.5)
    parsed = checked(raw)
    assert (parsed.model, parsed.stream, parsed.max_tokens, parsed.n) == ("m", True, 50, 2)
    assert parsed.asked_usage and parsed.size == len(raw) and parsed.messages == 1


def test_what_is_left_out_or_null_is_not_given() -> None:
    for raw in (body(), body(max_tokens=None, n=None, stream_options=None, temperature=None)):
        parsed = checked(raw)
        assert (parsed.max_tokens, parsed.n, parsed.asked_usage) == (None, 1, False)


def test_max_tokens_may_have_either_name_or_both_if_they_agree() -> None:
    assert checked(body(max_completion_tokens=9)).max_tokens == 9
    assert checked(body(max_completion_tokens=9, max_tokens=9)).max_tokens == 9


def test_the_prompt_is_bounded_by_the_bytes_of_the_body() -> None:
    raw = b'{"model":"m","stream":true,"messages": [{"role":"user","content":"\\u4f60"}, {"role":"user"}] ,"stop":[]}'
    assert checked(raw).prompt_tokens_bound() == len(raw) - 3 + 2 * MESSAGE_ALLOWANCE + REQUEST_ALLOWANCE


def test_the_estimate_outlives_the_values_of_the_fields() -> None:
    parsed = checked(body(functions=["x" * 10_000]))
    estimate = parsed.prompt_tokens_estimate
    parsed.drop_values()
    assert parsed.prompt_tokens_estimate == estimate > 2_000


# What the upstream is sent


def test_every_value_is_sent_byte_for_byte() -> None:
    values = [
        b'{ "a" : [ 1.0e+2 , -0.0 , 1E400 ] }',
        b'"\\u00e9\\/\xc3\xa9"',
        b"123456789012345678901234567890",
        b"null",
    ]
    raw = with_field(b",".join(b'"f%d" :\n %s ' % (number, value) for number, value in enumerate(values)))
    for number, value in enumerate(values):
        assert b'"f%d":%s' % (number, value) in sent(raw)


def test_an_unchanged_body_is_sent_as_it_is() -> None:
    assert sent(b"{" + BASE + b"}") == b"{" + BASE + b"}"


def test_the_model_has_the_channels_name_for_it() -> None:
    assert json.loads(sent(body(), 'other/"model"'))["model"] == 'other/"model"'


@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_is_requested_if_the_caller_did_not_request_it(options: object) -> None:
    raw = body(stream_options=options)
    assert json.loads(sent(raw, ask_usage=True))["stream_options"] == {"include_usage": True}
    kept = {"include_usage": False} if options == {"include_usage": None} else options
    assert json.loads(sent(raw)).get("stream_options", ...) == kept


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 100),
        ({"max_tokens": None, "max_completion_tokens": None}, 100),
        *(({"max_tokens": 5}, 5), ({"max_completion_tokens": 5}, 5)),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        *(({"max_tokens": 5, "max_completion_tokens": None}, 5), ({"max_tokens": 5000}, 5000)),
    ],
)
def test_a_ceiling_is_always_sent_under_the_one_name_that_the_upstream_reads(
    field: str, given: dict[str, Any], expected: int
) -> None:
    received = json.loads(sent(body(**given), ceiling_field=field, ceiling=100))
    assert {name: received[name] for name in received if name.startswith("max_")} == {field: expected}


def test_without_any_ceiling_none_is_sent() -> None:
    assert "max_tokens" not in json.loads(sent(body(max_tokens=None)))


def test_settings_are_written_as_they_were_checked() -> None:
    raw = b'{"model":"\\u006d\\/1","messages":[{"role":"user"}],"stream": true,"n":null,"stream_options":{"include_usage":null}}'
    assert sent(raw, "m/1") == (
        b'{"model":"m/1","messages":[{"role":"user"}],"stream":true,"n":1,"stream_options":{"include_usage":false}}'
    )


def test_other_stream_options_are_kept_byte_for_byte() -> None:
    raw = with_field('"stream_options":{"x": 1.0 ,"include_usage":false,"y":[ 2 ]}')
    assert b'"stream_options":{"x":1.0,"include_usage":true,"y":[ 2 ]}' in sent(raw, ask_usage=True)


def test_a_duplicate_key_is_sent_once_as_it_was_checked() -> None:
    raw = with_field('"mod\\u0065l":"last","max_tokens":5,"max\\u005ftokens":6')
    parsed, upstream = checked(raw), sent(raw, "last")
    assert (parsed.model, parsed.max_tokens) == ("last", 6)
    assert upstream.count(b"model") == upstream.count(b"max_tokens") == 1
    assert json.loads(upstream)["model"] == "last" and json.loads(upstream)["max_tokens"] == 6


def test_a_duplicate_include_usage_is_sent_once_as_it_was_checked() -> None:
    raw = with_field('"stream_options":{"include_usage":false,"include_\\u0075sage":true}')
    assert checked(raw).asked_usage
    assert b'"stream_options":{"include_usage":true}' in sent(raw)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(
            lambda name: fold(name) not in {fold(each) for each in (*MAY_ALLOW, "n", "model", "stream")}
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_any_other_field_has_the_same_value_upstream(fields: dict[str, Any], ascii_only: bool) -> None:
    whole = {**fields, **json.loads(body())}
    raw = json.dumps(whole, ensure_ascii=ascii_only).encode()
    assert json.loads(sent(raw, "m2", ask_usage=True)) == {
        **whole,
        "model": "m2",
        "stream_options": {"include_usage": True},
    }


def test_a_large_value_is_sent_without_a_copy() -> None:
    small = {f"field {number}": number for number in range(100)}
    raw = body(user="x" * 2_000_000, messages=[{"role": "user", "content": "\u00e9" * 500_000}], metadata=small, n=2)
    parsed = checked(raw)
    tracemalloc.start()
    parts = parsed.upstream("other", "max_tokens", None, ask_usage=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    received = json.loads(b"".join(parts))
    assert received == {**json.loads(raw), "model": "other", "stream_options": {"include_usage": True}}
    assert json.loads(b"".join(parsed.upstream("m", "max_tokens", None, ask_usage=False))) == json.loads(raw)


# What is refused


@pytest.mark.parametrize("stream_value", ["false", "null", '"true"', "1", "0", "[true]", "{}", ...])
def test_stream_must_be_true_and_the_message_shows_the_line_to_add(stream_value: Any) -> None:
    raw = body(stream=... if stream_value is ... else json.loads(stream_value))
    error = refused(raw)
    assert (error.code, error.param) == ("stream_required", "stream")
    assert '"stream": true' in error.message


def test_without_streaming_which_an_operator_may_allow_no_stream_options_are_sent() -> None:
    rules = BodyRules(allow_non_streaming=True)
    for value in (..., None, False):
        parsed = checked(body(stream=value), rules)
        assert not parsed.stream
        assert b"stream_options" not in b"".join(parsed.upstream("m", "max_tokens", None, ask_usage=True))
    assert checked(body(), rules).stream
    assert refused(body(stream="no"), rules).param == "stream"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("model", ["", None, 5, ["m"], "m" * 257, "a\nb", "a\x00", "a\x7f", "a\u202eb", ...]),
        ("messages", [[], None, {}, "hi", [1], [[]], [{}], [{"role": 5}], [{"role": None}], [{"role": "u"}, "x"], ...]),
        ("temperature", [True, "0.5", [], {}]),
        ("max_tokens", [-1, 0, 5.0, 1.5, 10**18, "5", True, [], 1_000_001]),
        ("max_completion_tokens", [-1, 0, 5.0, 1.5, 10**18, "5", True, [], 1_000_001]),
        ("n", [-1, 0, 1.0, 17, 10**6, "1", True]),
        ("stream_options", [[], True, "include_usage", 1]),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_and_named(field: str, values: list[object]) -> None:
    for value in values:
        error = refused(body(**{field: value}))
        assert (error.code, error.param) == ("invalid_request", field), value
        assert f"'{field}'" in error.message


@pytest.mark.parametrize("number", ["1e18", "1E3", "-0", "9" * 5000, "1" + "0" * 400 + ".5"])
def test_max_tokens_is_a_plain_integer(number: str) -> None:
    assert refused(with_field(f'"max_tokens":{number}')).param == "max_tokens"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400])
def test_a_temperature_beyond_the_range_of_a_float_is_refused(number: str) -> None:
    assert refused(with_field(f'"temperature":{number}')).param == "temperature"


def test_the_largest_allowed_values_are_accepted() -> None:
    assert checked(body(max_tokens=1_000_000, n=16, model="é" * 256, temperature=-2)).n == 16


def test_max_tokens_and_max_completion_tokens_that_differ_are_refused() -> None:
    error = refused(body(max_tokens=5, max_completion_tokens=6))
    assert (error.code, error.param) == ("invalid_request", "max_tokens")


def test_include_usage_is_a_boolean() -> None:
    assert refused(body(stream_options={"include_usage": 1})).param == "stream_options.include_usage"


# Valid and invalid JSON, at any depth of a value that is not decoded

VALID = [
    "[]", "[ ]", " [1 , 2]\t\r\n", "{}", '{"":0}', '{"a":{"a":[{"a":null}]}}', "-0", "-1", "0", "10.5e-3", "1E+2",
    "0.1", "1e999", "123123e100000", "-" + "9" * 400, '""', '"\\""', '"\\\\\\/\\b\\f\\n\\r\\t"', '"\\u0000"', '"\\uD834\\uDD1E"',
    '"\\u2028\\uFFFF"', '"\x7f"', '"\u2028"', '"é中🎈"', '"\uffff"', "true", "false", "null", '[[[],{}],"]"]', '"[{"',
    '{"a":1,"a":2}', '"// no comment"',
]  # fmt: skip
INVALID = [
    "", ",", "[", "]", "{", "}", "[1,]", "[,1]", "[1,,2]", "[1 2]", "[1:2]", '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}',
    "{1:1}", "{a:1}", "{'a':1}", '{"a" 1}', '{"a"::1}', '{"a":1 "b":2}', "+1", "-", "01", "-01", "1.", ".5", "1e", "1e+",
    "1.e1", "0x1", "1_000", "1a", "--1", "1 000", "NaN", "-NaN", "Infinity", "-Infinity", "nan", "True", "tru", "nul", "None",
    "undefined", "'a'",
    '"', '"a', '"\n"', '"\t"', '"\x00"', '"\x1f"', '"\\x41"', '"\\"', '"\\u"', '"\\u12"', '"\\u123g"', '"\\U0041"',
    '"\\ud800"', '"\\udc00"', '"\\ud800\\ud800"', '"\\ud800x"', '"\\udd1e\\ud834"', "// c\n1", "/* c */1", "1//c", "#", "\ufeff1",
    "\x0b1", "\xa01", "[1}", '{"a":1]', "[1]]", '{"a":1}}', "1;", "[\x00]", "<a>", "\\u0031", "*",
]  # fmt: skip
PLACES = [
    b'{"x":%s,' + BASE + b"}",
    b"{" + BASE + b',"x":%s}',
    b"{" + BASE + b',"x":[[{"y":[0,%s]}]]}',
    b'{"model":"m","stream":true,"messages":[{"role":"user","content":%s}]}',
]


@pytest.mark.parametrize("place", PLACES)
def test_valid_json_is_accepted(place: bytes) -> None:
    for text in VALID:
        raw = place % text.encode()
        assert json.loads(sent(raw)) == json.loads(raw), text


@pytest.mark.parametrize("place", PLACES)
def test_invalid_json_is_refused_anywhere(place: bytes) -> None:
    for text in INVALID:
        assert refused(place % text.encode()).code == "invalid_json", text


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"\x80", b"\xc0\xaf", b"\xc3", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80", b"\xe9"],
)  # fmt: skip
def test_invalid_utf_8_is_refused_in_values_and_in_keys(text: bytes) -> None:
    for field in (b'"x":"%s"', b'"x":{"%s":1}', b'"%s":1', b'"x":[{"y":"a%s"}]'):
        error = refused(with_field(field % text))
        assert error.code == "invalid_json" and "UTF-8" in error.message


@pytest.mark.parametrize("after", [b"x", b"{}", b",", b"\x00", b"]"])
def test_only_white_space_may_follow_the_object(after: bytes) -> None:
    assert refused(body() + after).code == "invalid_json"
    assert checked(b" \r\n\t" + body() + b" \r\n").model == "m"


# How deep it may be nested


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]}":"\\\\\\"]",\n"b":', b"} ]")])
def test_a_hundred_levels_are_accepted_and_one_more_is_refused(opened: bytes, closed: bytes) -> None:
    levels = opened.count(b"[") + opened.count(b"{")
    for field, within in ((b'"x":%s', 1), (b'"messages":[{"role":"user","y":%s}]', 3)):
        fitting = (RULES.max_depth - within) // levels
        rest = b"[" * (RULES.max_depth - within - fitting * levels)
        value = rest + opened * fitting + b"0" + closed * fitting + b"]" * len(rest)
        assert checked(with_field(field % value)).model == "m"
        error = refused(with_field(field % (b"[" + value + b"]")))
        assert error.code == "invalid_request" and "100 levels" in error.message


def test_many_brackets_side_by_side_or_in_text_are_not_deep() -> None:
    brackets = "[{" * 300
    tools = [
        {"type": "function", "function": {"parameters": {"a": [], "b": brackets, "c\\": '"' + brackets, "d": "\\"}}}
    ] * 200
    assert checked(body(tools=tools, messages=[{"role": "user", "content": brackets}] * 200)).messages == 200


@pytest.mark.parametrize("opened", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("field", ["x", "messages", "model", "n", "stream_options", "temperature"])
def test_a_depth_bomb_is_refused_at_once(opened: bytes, field: str) -> None:
    start = time.process_time()
    error = refused(with_field(b'"%s":' % field.encode() + opened * 100_000))
    assert error.code in ("invalid_request", "invalid_json")
    assert time.process_time() - start < 1, "a bomb takes milliseconds"


@pytest.mark.parametrize(
    ("field", "what"),
    [
        (b",".join(b'"%x":1' % number for number in range(60_000)), "strings"),
        (b'"a":[' + b",".join([b'""'] * 60_000) + b"]", "strings"),
        (b'"a":[' + b",".join([b"[]"] * 120_000) + b"]", "arrays and objects"),
    ],
    ids=["keys", "strings", "arrays"],
)
def test_a_body_that_takes_long_to_parse_is_refused_early(field: bytes, what: str) -> None:
    error = refused(with_field(field))
    assert error.code == "invalid_request"
    assert what in error.message


@pytest.mark.parametrize("text", ['\\"', "[{", "\\\\[{"], ids=["quotes", "brackets", "escapes and brackets"])
def test_long_texts_that_contain_json_are_accepted(text: str) -> None:
    checked(body(messages=[{"role": "user", "content": text * 200_000}]))


# Fields that an upstream may read in place of a checked one are refused, and those that it bills beside the tokens.
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


def fields_body(**fields: Any) -> bytes:
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
        *(("Model", "model"), ("MODEL", "model"), ("N", "n"), ("Max_Tokens", "max_tokens")),
        *(("max_to\u212aens", "max_tokens"), ("max_token\u017f", "max_tokens"), ("\u017ftream", "stream")),
        *(("\ufb06ream", "stream"), ("\uff4dodel", "model"), ("Stream_Options", "stream_options")),
        ("MAX_COMPLETION_TOKENS", "max_completion_tokens"),
        ("max_complet\u0131on_tokens", "max_completion_tokens"),
        *(("MAX_COMPLET\u0130ON_TOKENS", "max_completion_tokens"), ("maxTokens", "max_tokens")),
        *(("max-tokens", "max_tokens"), ("_model", "model")),
        ("m" + "_" * 1000 + "odel", "model"),
        *(("model\0", "model"), ("N\0anything", "n"), ("Temperature", "temperature"), ("Messages", "messages")),
        *(("max_tokens ", "max_tokens"), (" max tokens", "max_tokens"), ("\u00a0max_tokens\t", "max_tokens")),
        *(("max_\u200btokens\ufeff", "max_tokens"), ("n_predict\n", "max_tokens"), ("model\x1f", "model")),
    ],
)
def test_another_spelling_of_a_checked_field_is_refused_and_the_right_one_named(name: str, meant: str) -> None:
    for value in (1, None, "x"):
        error = refusal(fields_body(**{name: value}))
        assert error.param == ascii(name[:64])[1:-1]
        assert f"'{meant}'" in error.message


def test_a_name_with_escapes_is_another_spelling_too() -> None:
    error = refusal(b'{"model":"m","messages":[{"role":"user"}],"stream":true,"\\u004dodel":"x"}')
    assert error.param == "Model"


@pytest.mark.parametrize("name", ["Include_Usage", "include_u\u017fage", "includeUsage", "INCLUDE-USAGE"])
def test_another_spelling_within_stream_options_is_refused(name: str) -> None:
    error = refusal(fields_body(stream_options={name: False, "include_usage": True}))
    assert error.param == f"stream_options.{ascii(name)[1:-1]}"
    assert "'stream_options.include_usage'" in error.message


def test_the_prototype_of_an_object_is_refused() -> None:
    assert refusal(fields_body(**{"__proto__": {"n": 16}})).param == "__proto__"
    assert refusal(fields_body(stream_options={"__proto__": {}})).param == "stream_options.__proto__"


def test_a_long_name_is_shortened() -> None:
    assert refusal(fields_body(**{"_" * 300 + "n": 1})).param == "_" * 64


@pytest.mark.parametrize(
    "name",
    [
        *sorted(COMMON - CHECKED),
        *("nn", "models2", "top_k", "min_tokens", "stop_token_ids", "streams", "\u0435n"),
        "x" * 70,
    ],
)
def test_any_other_field_is_accepted(name: str) -> None:
    assert check(fields_body(**{name: 1}), BodyRules()).model == "m"
    check(fields_body(stream_options={name: 1}), BodyRules())


@pytest.mark.parametrize("name", REMEDIES)
def test_a_field_that_is_read_in_place_of_a_checked_one_is_refused_with_what_to_use(name: str) -> None:
    error = refusal(fields_body(**{name: 1}))
    assert error.param == name
    assert REMEDIES[name] in error.message
    assert refusal(fields_body(**{name.upper(): 1})).param == name.upper()


@pytest.mark.parametrize(("vendor", "name"), [(vendor, name) for vendor, fields in BILLED.items() for name in fields])
def test_a_field_that_changes_what_the_upstream_bills_is_refused_unless_the_operator_allows_it(
    vendor: str, name: str
) -> None:
    value = BILLED[vendor][name]
    error = refusal(fields_body(**{name: value}))
    assert error.param == name
    assert error.code == ("invalid_request" if name in REMEDIES else "unpriced_option")
    if name in MAY_ALLOW:
        check(fields_body(**{name: value}), BodyRules(allow_fields=frozenset({name})))
    refusal(fields_body(**{name.upper(): value}))


def test_every_such_field_is_in_the_table() -> None:
    assert {name for fields in BILLED.values() for name in fields} >= UNPRICED | {"tools", "service_tier"}


@pytest.mark.parametrize("name", NOT_BILLED)
def test_a_field_that_orders_nothing_else_is_accepted(name: str) -> None:
    check(fields_body(**{name: NOT_BILLED[name]}), RULES)


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
        assert check(fields_body(service_tier=asked), rules).service_tier == kept
    assert check(fields_body(), rules).service_tier == ""
    assert "default or auto or flex" in refusal(fields_body(service_tier="priority"), rules).message
    assert refusal(fields_body(service_tier="flex", model="other"), rules).param == "service_tier"
    assert refusal(fields_body(service_tier=1), rules).code == "invalid_request"


@pytest.mark.parametrize("name", REMEDIES)
def test_an_operator_may_allow_such_a_field_but_no_other_spelling_of_it(name: str) -> None:
    rules = BodyRules(allow_fields=frozenset({name}))
    parsed = check(fields_body(**{name: ["a"]}), rules)
    assert json.loads(b"".join(parsed.upstream("m", "max_tokens", 1, ask_usage=True)))[name] == ["a"]
    assert refusal(fields_body(**{name.swapcase(): 1}), rules).param == name.swapcase()
    other = next(each for each in REMEDIES if each != name)
    assert refusal(fields_body(**{other: 1}), rules).param == other


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


# A changed body is the old one with some fields set and others dropped; all other values stay as the caller wrote them.
RAW = b'{"model":"m", "stream":true,"messages":[{"role":"user","content":"\\u0068i"}],"top_p":1.0e0,"user":"u"}'


def edit_body(raw: bytes = RAW) -> Any:
    return check(raw, BodyRules())


def test_fields_are_set_and_dropped_and_the_others_stay_byte_for_byte() -> None:
    made = edited(edit_body(), {"model": "other", "seed": 7}, ["user", "never-there"])
    assert made == (
        b'{"model":"other","stream":true,"messages":[{"role":"user","content":"\\u0068i"}],"top_p":1.0e0,"seed":7}'
    )


def test_a_change_that_changes_nothing_is_none() -> None:
    assert edited(edit_body(), {}, []) is None
    assert edited(edit_body(), {"model": "m", "user": msgspec.Raw(b'"u"')}, ["seed"]) is None


@pytest.mark.parametrize("name", ["stream", "stream_options"])
def test_how_the_answer_is_delivered_cannot_be_changed(name: str) -> None:
    with pytest.raises(ValueError, match="the caller decides how its answer is delivered"):
        edited(edit_body(), {name: None}, [])
    with pytest.raises(ValueError, match=f"`{name}` cannot be changed"):
        edited(edit_body(), {}, [name])


def test_a_value_without_json_or_a_text_for_a_list_of_names_is_an_error() -> None:
    with pytest.raises(ValueError, match="`seed` is no JSON"):
        edited(edit_body(), {"seed": object()}, [])
    with pytest.raises(TypeError, match=r"a list of names: \['user'\]"):
        edited(edit_body(), {}, "user")


DEEP: list[object] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"temperature": float("nan")}, "`temperature` is no JSON: Out of range float"),
        ({"x": {"y": [1, float("-inf")]}}, "`x` is no JSON"),
        ({"user": "\ud800"}, "`user` is no JSON: 'utf-8' codec"),
        ({"x": [{"\udfff": 1}]}, "`x` is no JSON"),
        ({"\ud800": 1}, r"`\\ud800` is no JSON"),
        ({7: 1}, "`` is no JSON: 'int' object"),
        ({"stop": {"a", "b"}}, "`stop` is no JSON: a set"),
        ({"x": [b"bytes"]}, "`x` is no JSON: a bytes"),
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "`x` is no JSON: a datetime"),
        ({"x": Decimal(1)}, "`x` is no JSON: a Decimal"),
        ({"x": DEEP}, "`x` is no JSON: Circular reference"),
        ({"x": msgspec.Raw(b'1,"stream":false')}, "`x` is no JSON: JSON is malformed: trailing characters"),
        ({"x": [msgspec.Raw(b"NaN")]}, "`x` is no JSON: JSON is malformed: invalid character"),
        ({"x": msgspec.Raw(b"[" * 200_000)}, "`x` is no JSON"),
    ],
)
def test_a_field_that_json_does_not_have_is_refused_by_its_name(field: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        edited(edit_body(), field, [])


def test_every_value_that_json_has_is_accepted() -> None:
    value: dict[str, Any] = {
        "a": [None, True, 1, -0.5, 10**30, "\u00e9\U0001f600", (1, [])],
        "": {},
        "raw": msgspec.Raw(b" [1.0e0] "),
    }
    made = edited(edit_body(), {"x": value}, [])
    assert made is not None
    assert msgspec.json.decode(made)["x"]["a"] == [None, True, 1, -0.5, 10**30, "\u00e9\U0001f600", [1, []]]


def test_the_fields_of_a_body_are_changed_by_nothing_else() -> None:
    read = edit_body()
    with pytest.raises(TypeError, match="does not support item assignment"):
        read.top["max_tokens"] = msgspec.Raw(b"9")
    for method in ("clear", "pop", "popitem", "update", "setdefault"):
        assert not hasattr(read.top, method)
    with pytest.raises(AttributeError):
        read.top = {}
    assert memoryview(read.top["messages"]).readonly


def test_a_body_whose_values_were_freed_cannot_be_changed() -> None:
    freed = edit_body()
    freed.drop_values()
    with pytest.raises(ValueError, match="values were freed"):
        edited(freed, {"seed": 1}, [])
