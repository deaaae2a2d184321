"""What is kept of the gaps in the reading of the stream."""

from __future__ import annotations

import time
from pathlib import Path

from gateway.usage import gaps


def test_a_damaged_file_about_the_reading_is_a_gap_of_all_before(tmp_path: Path) -> None:
    (tmp_path / gaps.FILE).write_bytes(b"{")
    (gap,) = gaps.load(tmp_path).gaps
    assert gap.first_ms == 0
    assert gap.may_have(round(time.time() * 1000))


def test_many_gaps_are_kept_as_few() -> None:
    many = gaps.merged([gaps.Gap(10 * number, 10 * number + 5) for number in range(1, 200)])
    assert len(many) == gaps.MAX_GAPS
    assert (many[0].first_ms, many[-1].last_ms) == (10, 1995)
    assert gaps.merged([gaps.Gap(5, 9), gaps.Gap(1, 6)]) == [gaps.Gap(1, 9)]
