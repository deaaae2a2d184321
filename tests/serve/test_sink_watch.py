"""A sink that takes no turn is logged and in the end killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.serve.serve import SinkWatch
from gateway.usage import completeness


def test_a_sink_that_hangs_is_logged_and_then_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gateway.serve.serve.time.monotonic", lambda: now[0])
    (tmp_path / completeness.LOCK).touch()
    killed: list[float] = []
    watch = SinkWatch(tmp_path, lambda: killed.append(now[0]))

    def pass_s(seconds: int, *, turns: bool) -> list[str]:
        with capture_logs() as logs:
            for _ in range(seconds):
                now[0] += 1
                if turns:
                    completeness.turn(tmp_path)
                watch.look()
        return [entry["event"] for entry in logs]

    assert pass_s(400, turns=True) == []
    assert pass_s(100, turns=False) == ["sink_hangs"]
    assert pass_s(1, turns=True) == ["sink_goes_on"]
    assert pass_s(301, turns=False) == ["sink_hangs", "sink_killed"]
    assert len(killed) == 1
    now[0] += 10_000  # this process was stopped, too
    assert pass_s(1, turns=False) == []
