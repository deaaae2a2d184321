"""Fields that an upstream may read in place of a checked one are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import Refused
from gateway.chat.fields import CHECKED, COMMON, REMEDIES, fold
from gateway.chat.request import BodyRules, check

RULES = BodyRules()


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user"}], "stream": True, **fields}).encode()


def refusal(raw: bytes, rules: BodyRules = RULES) -> Refused:
    with pytest.raises(Refused) as caught:
        check(raw, rules)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
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
        "modalities",
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


@pytest.mark.parametrize("name", REMEDIES)
def test_an_operator_may_allow_such_a_field_but_no_other_spelling_of_it(name: str) -> None:
    rules = BodyRules(allow_fields=frozenset({name}))
    parsed = check(body(**{name: ["a"]}), rules)
    assert json.loads(b"".join(parsed.upstream("m", "max_tokens", 1, ask_usage=True)))[name] == ["a"]
    assert refusal(body(**{name.swapcase(): 1}), rules).param == name.swapcase()
    other = next(each for each in REMEDIES if each != name)
    assert refusal(body(**{other: 1}), rules).param == other


def test_frequent_fields_are_not_other_spellings() -> None:
    assert {fold(name) for name in COMMON - CHECKED}.isdisjoint({fold(name) for name in (*CHECKED, *REMEDIES)})


@given(st.sampled_from(sorted(CHECKED)), st.data())
def test_folding_is_what_python_takes_for_equal(name: str, data: st.DataObject) -> None:
    letters = [chr(code) for code in range(0x80, 0x3000) if chr(code).casefold() in name]
    alike = {
        letter: [letter, letter.upper(), *(each for each in letters if each.casefold() == letter)] for letter in name
    }
    spelt = "".join(data.draw(st.sampled_from(alike[letter])) for letter in name)
    assert fold(spelt) == fold(name)
