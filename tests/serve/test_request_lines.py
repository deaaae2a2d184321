"""A terminal shows a line for each request that has ended, and what a person reads while a gateway stops."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.domain.exchange import Outcome
from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.serve import terminal
from gateway.serve.terminal import SILENT_S, Farewell
from gateway.usage.database import UsageFiles
from tests.records import arrival, end, usage_database

FIELDS = {"first_byte_ms": 312, "duration_ms": 2140, "charge_micros": 123, "account": "demo", "model": "words"}


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_line_has_what_a_person_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    record = end(arrival(), **FIELDS, arrived_at="2026-11-22T10:11:12.345Z")
    clock, rest = terminal.line_of(record).split("  ", 1)
    assert clock.endswith(":12")
    assert rest == f"demo  words  200  312 ms  2.1 s  0.000123  {record.id}"


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({"status": 402, "outcome": Outcome.REFUSED, "error_code": "insufficient_balance"}, "402 insufficient_balance"),
        ({"outcome": Outcome.CALLER_GONE}, "200 caller_gone"),
        ({"outcome": Outcome.GATEWAY_CRASHED, "status": 0}, "- gateway_crashed"),
        ({"model": "", "operation": "models"}, "demo  models  200"),
        ({"operation": "counted", "events": 8, "error_code": "token_invalid", "status": 401},
         "401 token_invalid and 7 more like it"),
        ({"first_byte_ms": None}, "200  -  2.1 s"),
    ],
)  # fmt: skip
def test_a_line_says_what_went_wrong(changes: dict[str, object], cells: str) -> None:
    assert cells in terminal.line_of(end(arrival(), **(FIELDS | changes)))


def test_a_code_of_an_upstream_cannot_forge_a_line() -> None:
    line = terminal.line_of(end(arrival(), **FIELDS, error_code="bad\n\x1b[2Jcode"))
    assert line.isprintable()


def test_it_follows_the_log_from_its_start_and_writes_the_last_ones_after_sigterm(tmp_path: Path) -> None:
    rows = usage_database(tmp_path)
    before, after, last = [[end(arrival(), **FIELDS)] for _ in range(3)]
    rows.write(before)

    def write_and_stop() -> None:
        rows.write(last)
        signal.raise_signal(signal.SIGTERM)

    output = Terminal(write_and_stop)
    terminal.work(UsageFiles(tmp_path), output)(lambda: rows.write(after))
    rows.close()
    assert output.getvalue().splitlines() == [terminal.line_of(each) for each in (*after, *last)]


def test_many_at_once_are_counted(tmp_path: Path) -> None:
    rows = usage_database(tmp_path)
    output = Terminal(lambda: signal.raise_signal(signal.SIGTERM))
    terminal.work(UsageFiles(tmp_path), output)(lambda: rows.write([end(arrival(), **FIELDS) for _ in range(30)]))
    rows.close()
    assert len(output.getvalue().splitlines()) == terminal.AT_ONCE + 1
    assert output.getvalue().endswith("... and 5 more requests: `gateway usage list` has all of them\n")


def test_a_terminal_that_is_gone_does_not_end_it_before_sigterm(tmp_path: Path) -> None:
    def gone() -> None:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        raise OSError("Input/output error")

    rows = usage_database(tmp_path)
    terminal.work(UsageFiles(tmp_path), Terminal(gone))(lambda: rows.write([end(arrival(), **FIELDS)]))
    rows.close()


def test_the_log_has_a_line_for_each_request_of_this_gateway(tmp_path: Path) -> None:
    rows = usage_database(tmp_path)
    mine, theirs = (end(arrival(), **FIELDS | {"gateway": name}) for name in ("1a2b3c4d", "5e6f7a8b"))

    def write_and_stop() -> None:
        rows.write([mine, theirs])
        signal.raise_signal(signal.SIGTERM)

    with capture_logs() as lines:
        terminal.work(UsageFiles(tmp_path), log_of="1a2b3c4d")(write_and_stop)
    rows.close()
    (line,) = lines
    assert (line["event"], line["request_id"], line["charge_micros"]) == ("request_ended", mine.id, mine.charge_micros)


class Terminal(io.StringIO):
    """A terminal where something happens once, after the first lines."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = [then]

    def flush(self) -> None:
        while self.getvalue() and self._then:
            self._then.pop()()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def workers() -> list[Metrics]:
    return [Metrics(SharedNumbers(64 * 1024)) for _ in range(2)]


@pytest.fixture
def farewell(said: list[str], workers: list[Metrics], monkeypatch: pytest.MonkeyPatch) -> Farewell:
    farewell = Farewell([worker.shared for worker in workers], 30, said.append)
    now = time.monotonic()
    farewell.look(cut=False)
    assert said == [], "a short stop says nothing"
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * SILENT_S)
    return farewell


def has_open(worker: Metrics, requests: int, streams: int) -> None:
    worker.set("open_requests", requests)
    worker.set("open_streams", streams)


def test_it_says_how_many_streams_it_waits_for_once(
    farewell: Farewell, workers: list[Metrics], said: list[str]
) -> None:
    for worker in workers:
        has_open(worker, 1, 1)
    farewell.look(cut=False)
    farewell.look(cut=False)
    assert said == ["\nwaiting for 2 streams, up to 30 s; Ctrl-C again cuts them"]
    has_open(workers[0], 0, 0)
    farewell.look(cut=False)
    assert said[1:] == ["waiting for 1 stream, up to 30 s; Ctrl-C again cuts it"]
    farewell.look(cut=True)
    farewell.look(cut=True)
    farewell.end(Path("data"))
    assert said[2:] == [
        "the open streams are cut; each gets an error, and is charged for what it was sent",
        "stopped; balances and records are in data",
    ]


def test_what_does_not_stream_is_a_request(farewell: Farewell, workers: list[Metrics], said: list[str]) -> None:
    has_open(workers[0], 3, 2)
    farewell.look(cut=False)
    assert said == ["\nwaiting for 3 requests, up to 30 s; Ctrl-C again cuts them"]


def test_nothing_open_is_not_waited_for(farewell: Farewell, said: list[str]) -> None:
    farewell.look(cut=False)
    farewell.end(Path("data"))
    assert said == ["\nstopped; balances and records are in data"]
