"""A sink in a process of its own, for tests that kill it: `python -m tests.sink_process FOLDER URL [DATABASE]`."""

from __future__ import annotations

import sys

from gateway.config.schema import Config, UsageSettings
from gateway.runtime.process import run_until_terminated
from gateway.usage import sink

if __name__ == "__main__":
    config = Config(data=sys.argv[1], usage=UsageSettings(database="".join(sys.argv[3:])))
    run_until_terminated(lambda stop: sink.run(config, sys.argv[2], stop))
