"""What is remembered of what a store acknowledged: lately, and not too much."""

from __future__ import annotations

import pytest

from gateway.store.incarnation import Recent


def test_lines_are_remembered_in_their_order() -> None:
    recent = Recent()
    for line in (b'["a"]', b"{}", b'["b"]'):
        recent.add(line)
    assert list(recent) == [b'["a"]', b"{}", b'["b"]']


def test_what_is_too_old_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    recent = Recent()
    for now in (1000.0, 1000.9, 1001.0, 1120.9, 1121.0):
        recent.add(b"%.1f" % now)
    assert list(recent) == [b"1001.0", b"1120.9", b"1121.0"]


def test_what_is_too_much_is_forgotten_by_whole_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    recent = Recent(most=25)
    for now in (0.0, 0.5, 1.0, 2.0, 2.5):
        recent.add(b"%.5f" % now)
    assert list(recent) == [b"1.00000", b"2.00000", b"2.50000"]
    for _ in range(5):
        recent.add(b"more in one second")
    assert len(list(recent)) == 7, "the second that is under way is never forgotten"
