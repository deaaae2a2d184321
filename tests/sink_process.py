"""A sink in a process of its own, for tests that kill it: `python -m tests.sink_process FOLDER URL`."""

from __future__ import annotations

import sys

from gateway.config.schema import Config
from gateway.usage import sink

if __name__ == "__main__":
    sink.main(Config(data=sys.argv[1]), sys.argv[2])
