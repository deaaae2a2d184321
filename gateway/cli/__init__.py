"""The command `gateway`: one file per noun. Exit codes: 0 done, 1 refused or found wrong, 2 misused or misconfigured."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from gateway.cli.commands import program

    program()()
