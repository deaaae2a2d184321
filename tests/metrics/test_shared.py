"""Numbers are shared with child processes, outlive the process that wrote them, and stay within their memory."""

from __future__ import annotations

import os

from structlog.testing import capture_logs

from gateway.metrics.shared import SharedHistogram, SharedNumbers


def forked(work: object) -> None:
    """Run `work` in a child process and wait for it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()  # type: ignore[operator]
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_a_parent_reads_what_a_child_counted_and_the_next_child_continues() -> None:
    shared = SharedNumbers()

    def count() -> None:
        shared.at(("requests", "a"))[0] += 1
        shared.at(("waits",), 3)[2] += 0.5

    forked(count)
    assert dict(shared) == {("requests", "a"): [1.0], ("waits",): [0.0, 0.0, 0.5]}
    forked(count)
    assert dict(shared) == {("requests", "a"): [2.0], ("waits",): [0.0, 0.0, 1.0]}


def test_a_key_has_the_same_numbers_each_time() -> None:
    shared = SharedNumbers()
    shared.at(("a",))[0] = 1
    shared.at(("ä", "\n", '"'))[0] = 2
    shared.at(("a",))[0] += 1
    assert list(shared) == [(("a",), [2.0]), (("ä", "\n", '"'), [2.0])]


def test_series_beyond_the_memory_are_not_shared_and_that_is_logged_once() -> None:
    shared = SharedNumbers(size=4096)
    with capture_logs() as lines:
        for number in range(1000):
            shared.at((f"series {number}",))[0] += number
    stored = dict(shared)
    assert 50 < len(stored) < 1000
    assert all(numbers == [float(key[0].split()[1])] for key, numbers in stored.items())
    assert [line["event"] for line in lines] == ["metrics_full"]


def test_a_value_equal_to_a_bound_is_counted_in_its_range() -> None:
    shared = SharedNumbers()
    histogram = SharedHistogram(shared.at(("h",), 4), (0.1, 1.0))
    for value in (0.05, 0.1, 0.2, 5.0):
        histogram.observe(value)
    ((_, numbers),) = shared
    assert numbers == [2.0, 1.0, 1.0, 5.35]


def test_an_entry_that_cannot_be_read_is_skipped() -> None:
    shared = SharedNumbers()
    shared.at(("errors", None))  # type: ignore[arg-type]
    shared.at(("errors", "none"))[0] = 1
    assert dict(shared) == {("errors", "none"): [1.0]}
