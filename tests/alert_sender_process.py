"""A process that sends alerts, for tests that kill it: `python -m tests.alert_sender_process FILE URL`."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.config.schema import load
from gateway.metrics.shared import SharedNumbers
from gateway.runtime.handover import Handover
from gateway.runtime.process import run_until_terminated
from gateway.serve import alert_sender

if __name__ == "__main__":
    loaded, handover = load(Path(sys.argv[1])), Handover(1)
    run_until_terminated(lambda stop: alert_sender.run(loaded, handover, sys.argv[2], SharedNumbers(), stop))
