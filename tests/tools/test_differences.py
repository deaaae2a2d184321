"""What a plugin changed in a request is shown as lines that were, and lines that are."""

from __future__ import annotations

import msgspec

from gateway.tools.explain import MOST_CHARACTERS, MOST_LINES, differences


def top(**fields: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def test_only_what_differs_is_shown() -> None:
    before = top(model="a", user="u", messages=[{"role": "user", "content": "1"}, {"role": "user", "content": "2"}])
    after = top(model="b", messages=[{"role": "user", "content": "1"}, {"role": "user", "content": "x"}], seed=1)
    assert differences(before, after) == [
        '-model: "a"',
        '+model: "b"',
        '-user: "u"',
        '-    "content": "2"',
        '+    "content": "x"',
        "+seed: 1",
    ]
    assert differences(before, before) == []


def test_a_large_difference_is_cut() -> None:
    lines = differences(top(), top(text="x" * 10_000, many=list(range(1000))))
    assert len(lines) == MOST_LINES + 1
    assert len(lines[0]) == MOST_CHARACTERS + 3
    assert lines[-1] == "  (803 more lines)"
