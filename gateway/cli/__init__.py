"""The command `gateway`: one file for each subcommand. Imports `contract` and what lies below it.

Exit codes are in `gateway.cli.exits`.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from gateway.cli.commands import program

    program()()
