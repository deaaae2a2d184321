"""What a usage object says: its counts, the split of the prompt, the stated cost; numbers that are none; dialects that differ."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat.usage import MAX_COUNT, MAX_KEPT, Counts, read_counts

COUNTED = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}


def read(reported: object) -> Counts | None:
    return read_counts(json.dumps(reported).encode())


def numbers(reported: object) -> tuple[int, int, int] | None:
    """Return what is told of prompt, output and total."""
    counts = read(reported)
    return None if counts is None else (counts.prompt, counts.completion, counts.total)


def split(**reported: object) -> tuple[int, int, int, int]:
    """Return prompt, cached, written and output."""
    counts = read(reported)
    assert counts is not None
    return counts.prompt, counts.cached, counts.written, counts.completion


@pytest.mark.parametrize(
    ("reported", "counts"),
    [
        (COUNTED, (7, 11, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 11}, (7, 11, 0)),
        ({"input_tokens": 7, "output_tokens": 11, "total_tokens": 18}, (7, 11, 0)),
        ({"prompt_tokens": 7, "total_tokens": 18}, (7, 11, 0)),
        ({"completion_tokens": 11, "total_tokens": 18}, (7, 11, 0)),
        ({"total_tokens": 18}, (0, 0, 18)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 18}, (0, 0, 18)),
        ({"prompt_tokens": None, "completion_tokens": 11}, (0, 11, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 0}, (7, 0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 18}, (7, 11, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 0}, (7, 11, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 3}, (7, 11, 0)),
        ({"prompt_tokens": 7.0, "completion_tokens": 11.0, "total_tokens": 1.8e1}, (7, 11, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        *(({}, None), ([], None), (5, None), ("7", None), (None, None)),
    ],
)
def test_a_usage_object_has_counts_or_none(reported: object, counts: tuple[int, int, int] | None) -> None:
    assert numbers(reported) == counts
    assert counts is None or read(reported).certain  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reported", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": -1}, (7, 0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 1.5}, (7, 2, 0)),
        ({"prompt_tokens": 6.01, "completion_tokens": 11}, (7, 11, 0)),
        ({"prompt_tokens": 1e300, "completion_tokens": -1.0}, None),
        ({"prompt_tokens": 7, "completion_tokens": "11"}, (7, 0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": True}, (7, 0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 1 << 60}, (7, 0, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": -18}, (7, 3, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 17.5}, (7, 11, 0)),
        ({"prompt_tokens": 7, "completion_tokens": [1], "total_tokens": 18}, (7, 11, 0)),
    ],
)
def test_a_number_that_is_no_count_is_as_good_as_none_and_nothing_is_certain(
    reported: object, counts: tuple[int, int, int] | None
) -> None:
    assert numbers(reported) == counts
    assert counts is None or not read(reported).certain  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "raw",
    [b'{"prompt_tokens":1e999}', b'{"prompt_tokens":1%b}' % (b"0" * 400), b'{"prompt_tokens":7', b"\xff", b"[" * 9999],
)
def test_usage_that_cannot_be_read_never_raises(raw: bytes) -> None:
    assert read_counts(raw) is None


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_tokens_details": {"cached_tokens": 64}},
        {"prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0, "cache_write_tokens": 0}},
        {"prompt_token_details": {"cached_tokens": 64}},
        {"input_tokens_details": {"cached_tokens": 64}},
        {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        {"cached_tokens": 64},
        {"num_cached_tokens": 64},
        {"cache_read_input_tokens": 64, "cache_creation_input_tokens": 0},
        {"cached_tokens": 64, "prompt_tokens_details": {"cached_tokens": 0}},
        {"cached_tokens": 64, "prompt_tokens_details": None},
        {"cached_tokens": 90, "prompt_tokens_details": {"cached_tokens": 64}},
        {"cached_tokens": 64.9},
    ],
)
def test_cached_tokens_are_part_of_the_prompt_under_any_name(told: dict[str, Any]) -> None:
    assert split(prompt_tokens=100, completion_tokens=5, total_tokens=105, **told) == (100, 64, 0, 5)


@pytest.mark.parametrize(
    "told",
    [
        {"prompt_tokens_details": {"cache_write_tokens": 64}},
        {"prompt_tokens_details": {"cache_creation_input_tokens": 64, "cache_type": "ephemeral"}},
        {"cache_creation_input_tokens": 64},
        {"cache_creation_input_tokens": 60, "prompt_tokens_details": {"cache_write_tokens": 64}},
        {"cache_creation_input_tokens": 63.5},
        {"cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 4, "other": None}},
        {
            "prompt_tokens_details": {
                "cache_creation": {"ephemeral_5m_input_tokens": 64},
                "cache_creation_input_tokens": 64,
            }
        },
    ],
)
def test_written_tokens_are_part_of_the_prompt_under_any_name(told: dict[str, Any]) -> None:
    assert split(prompt_tokens=100, completion_tokens=5, total_tokens=105, **told) == (100, 0, 64, 5)


@pytest.mark.parametrize("wrong", [-1, -0.5, 0, 1e300, 1 << 41, "64", True, None, [], {}])
def test_a_wrong_number_of_cached_tokens_gives_no_discount(wrong: object) -> None:
    told = {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": wrong, "prompt_tokens_details": wrong}
    assert split(**told) == (100, 0, 0, 5)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # Anthropic's own names: `input_tokens` does not contain them.
        ({"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}, (100, 90, 0, 5)),
        (
            {
                "input_tokens": 10,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 3,
                "output_tokens": 5,
                "total_tokens": 23,
            },
            (18, 5, 3, 5),
        ),
        # The same numbers under OpenAI's names, told beside or within by the total.
        (
            {"prompt_tokens": 100, "cache_read_input_tokens": 50, "completion_tokens": 5, "total_tokens": 155},
            (150, 50, 0, 5),
        ),
        (
            {"prompt_tokens": 100, "cache_read_input_tokens": 50, "completion_tokens": 5, "total_tokens": 105},
            (100, 50, 0, 5),
        ),
        ({"prompt_tokens": 100, "cache_read_input_tokens": 50, "completion_tokens": 5}, (100, 50, 0, 5)),
        # The total counts reasoning, which is as much as was cached.
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 50},
                "completion_tokens": 5,
                "total_tokens": 155,
            },
            (100, 50, 0, 55),
        ),
        # More than the prompt: they cannot be within.
        ({"prompt_tokens": 10, "cached_tokens": 90, "completion_tokens": 5, "total_tokens": 15}, (100, 90, 0, 5)),
        ({"prompt_tokens": 10, "cached_tokens": 90, "completion_tokens": 5, "total_tokens": 115}, (100, 90, 0, 15)),
        (
            {"prompt_tokens": 10, "cached_tokens": 6, "cache_creation_input_tokens": 6, "completion_tokens": 5},
            (22, 6, 6, 5),
        ),
        # Of a prompt that is not told nothing is known to be cached.
        ({"completion_tokens": 5, "cached_tokens": 90}, (0, 0, 0, 5)),
        ({"total_tokens": 105, "cached_tokens": 90}, (0, 0, 0, 0)),
        ({"completion_tokens": 5, "total_tokens": 105, "cached_tokens": 90}, (100, 90, 0, 5)),
    ],
)
def test_what_is_told_beside_the_prompt_is_added_to_it(told: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert split(**told) == expected


@pytest.mark.parametrize(
    ("told", "micros"),
    [
        *(({"cost": 0.95}, 950_000), ({"cost": 0.00014}, 140), ({"cost": 1.4e-7}, 1), ({"cost": 0}, 0)),
        ({"cost": 2}, 2_000_000),
        ({"cost": {"input_tokens_cost": 0.001, "total_cost": 0.006021}}, 6021),
        ({"cost": {"input_tokens_cost": 0.001}}, None),
        *(({"estimated_cost": 0.000011}, 11), ({"cost_in_usd_ticks": 37_756_000}, 3776)),
        *(({"cost_in_usd_ticks": 200_000_000, "cost": 7}, 20_000), ({"cost": None}, None), ({"cost": -0.5}, None)),
        *(({"cost": "0.5"}, None), ({"cost": True}, None), ({"cost": 1e300}, None)),
        ({"cost": 10**14}, None),
        ({}, None),
    ],
)
def test_the_cost_that_the_upstream_states_is_exact_and_rounded_up(told: dict[str, Any], micros: int | None) -> None:
    counts = read({**COUNTED, **told})
    assert counts is not None
    assert counts.cost_micros == micros


def test_the_object_is_kept_as_it_came_unless_it_is_large() -> None:
    raw = b'{ "prompt_tokens":7 ,"completion_tokens": 11.0,"service_tier":"flex\\u00e9", "x":[1,{"y":null}]}'
    counts = read_counts(raw)
    assert counts is not None
    assert counts.text == raw
    filled = raw[:-1] + b',"z":"' + b"z" * (MAX_KEPT - len(raw) - len(',"z":""')) + b'"}'
    assert len(filled) == MAX_KEPT
    assert read_counts(filled).text == filled  # type: ignore[union-attr]
    large = read_counts(filled.replace(b'"z"', b'"zz"'))
    assert large is not None
    assert (large.prompt, large.text) == (7, b"")


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-100, 300),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, 0.5, 1, MAX_COUNT, MAX_COUNT + 1, -1, "7", []]),
)
details = st.one_of(values, st.dictionaries(st.sampled_from(["cached_tokens", "cache_write_tokens"]), values))
objects = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"), values
        ),
        **dict.fromkeys(("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"), values),
        **dict.fromkeys(("cache_creation_input_tokens", "cost"), values),
        "prompt_tokens_details": details,
    },
)


@settings(max_examples=400, deadline=None)
@given(objects)
def test_any_object_has_a_split_within_its_prompt_and_never_fewer_tokens_than_it_tells(told: dict[str, Any]) -> None:
    counts = read(told)
    if counts is None:
        return
    assert 0 <= counts.cached + counts.written <= counts.prompt
    assert counts.prompt >= 0 <= counts.completion
    without = read({name: value for name, value in told.items() if "cache" not in name and "details" not in name})
    assert without is not None
    assert counts.prompt >= without.prompt
    assert counts.prompt + counts.completion >= without.prompt + without.completion
    assert counts.completion >= min(without.completion, _whole(told.get("completion_tokens")))
    # What is not discounted is at least what it would be if the whole split were part of the prompt.
    assert counts.prompt - counts.cached >= min(without.prompt, without.prompt - counts.cached)


def _whole(value: object) -> int:
    return value if type(value) is int and 0 < value <= MAX_COUNT else 0
