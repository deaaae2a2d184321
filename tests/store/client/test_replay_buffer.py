"""The buffer of acknowledged writes keeps recent lines within its limits."""

from __future__ import annotations

import random

import pytest

from gateway.store.client.durability import RETENTION_S, SEGMENT_BYTES, SEGMENT_S, ReplayBuffer


class Clock:
    """A clock that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_lines_are_returned_in_order() -> None:
    recent = ReplayBuffer()
    for line in (b'["a"]', b"{}", b'["b"]'):
        recent.add(line)
    assert list(recent) == list(recent) == [b'["a"]', b"{}", b'["b"]']


def test_lines_are_in_order_across_segments() -> None:
    recent = ReplayBuffer()
    lines = [b"%d %s" % (number, b"x" * 500) for number in range(4 * SEGMENT_BYTES // 500)]
    for line in lines:
        recent.add(line)
    assert list(recent) == lines


@pytest.mark.parametrize("apart_s", [0.01, 0.9, 7, SEGMENT_S, 3 * SEGMENT_S])
def test_a_line_is_kept_long_enough_and_not_much_longer(clock: Clock, apart_s: float) -> None:
    recent = ReplayBuffer()
    added: list[float] = []
    for number in range(int(4 * RETENTION_S / apart_s)):
        clock.now = 1000 + number * apart_s
        added.append(clock.now)
        recent.add(b"%.2f %s" % (clock.now, b"x" * 100))
        if number % 50 == 0:
            oldest = float(next(iter(recent)).split()[0])
            assert (
                oldest == added[0]
                or clock.now - RETENTION_S - SEGMENT_S - 1 <= oldest <= clock.now - RETENTION_S + apart_s + 1
            )


def test_after_a_long_idle_time_the_buffer_is_empty(clock: Clock) -> None:
    recent = ReplayBuffer()
    recent.add(b"a")
    clock.now += SEGMENT_S
    recent.add(b"b")
    clock.now += RETENTION_S
    assert list(recent) == [b"a", b"b"]
    clock.now += SEGMENT_S
    assert list(recent) == [b"b"]
    clock.now += 1
    assert list(recent) == []
    recent.add(b"c")
    assert list(recent) == [b"c"]


def test_a_full_buffer_drops_whole_segments() -> None:
    max_bytes = 3 * SEGMENT_BYTES
    recent = ReplayBuffer(max_bytes)
    drawn = random.Random(7)
    lines = [drawn.randbytes(500).replace(b"\n", b" ") for _ in range(10 * SEGMENT_BYTES // 500)]
    for line in lines:
        recent.add(line)
    kept = list(recent)
    assert kept == lines[-len(kept) :]
    assert max_bytes - 2 * SEGMENT_BYTES < len(kept) * 500 < max_bytes + SEGMENT_BYTES
