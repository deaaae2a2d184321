"""What a person reads while a gateway stops."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.metrics.registry import Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.serve.terminal import SILENT_S, Farewell


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
