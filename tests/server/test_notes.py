"""What a list may lack is said in words for callers."""

from __future__ import annotations

from pathlib import Path

from gateway.server.own_records import notes_of
from gateway.usage.completeness import Away, save

DAY_MS = 86_400_000


def test_other_gateways_that_may_have_more_are_named_without_their_hosts(tmp_path: Path) -> None:
    away = [Away("0a1b2c3d", "host-one", 10 * DAY_MS), Away("4e5f6a7b", "host-two", 2 * DAY_MS, 0, 3 * DAY_MS)]
    save(tmp_path, away)
    assert notes_of(tmp_path, [], 4 * DAY_MS, 18 * DAY_MS) == [
        "Gateway 0a1b2c3d was last heard of at 1970-01-11T00:00:00.000Z: requests of it may be missing here."
    ]
    assert notes_of(tmp_path, [], 0, 5 * DAY_MS) == [
        "Gateway 4e5f6a7b was last heard of at 1970-01-03T00:00:00.000Z and forgotten at 1970-01-04T00:00:00.000Z: "
        "what it had then is lost."
    ]
    assert len(notes_of(tmp_path, [])) == 2
