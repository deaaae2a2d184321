"""The command `gateway`: one file for each subcommand. Imports `contract` and what lies below it.

The exit codes are in the file exits.py.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from gateway.cli.commands import program

    program()()
