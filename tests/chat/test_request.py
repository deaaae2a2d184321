"""The checks of a request body, and the body that is sent to the upstream."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.fields import MAY_ALLOW, fold
from gateway.chat.prompt import MESSAGE_ALLOWANCE, REQUEST_ALLOWANCE
from gateway.chat.request import Body, BodyRules, check

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
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5000}, 5000),
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


@pytest.mark.parametrize("raw", [b"[]", b"5", b'"model"', b"null", b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_refused(raw: bytes) -> None:
    assert refused(raw).code == "invalid_request"


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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_and_byte_order_marks_are_refused(encoding: str) -> None:
    assert refused(body().decode().encode(encoding)).code == "invalid_json"


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
