"""The command `gateway`: a file for each subject. Imports `serve` and what lies below it.

The exit codes are in the file exits.py. A command whose output is closed before its end, as by `| head`, ends by SIGPIPE without a
word.
"""

from __future__ import annotations

import gc
from typing import Final

COLLECT_AFTER: Final = 50_000
"""Objects. With the default of 700, the collector takes a tenth of the time of a short command, for what imports create."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    try:
        from gateway.cli.commands import program
        from gateway.cli.exits import ending_by_sigpipe

        with ending_by_sigpipe():
            program()()
    except KeyboardInterrupt:  # before there is a command that says something
        raise SystemExit(130) from None
