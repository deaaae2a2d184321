"""What `gateway serve` prints once it serves: what runs, where, and what to try and look at next."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import msgspec

from gateway.config.schema import Config
from gateway.runtime import request_lines
from gateway.runtime.demo import Opened


def program() -> str:
    """Return how this program was called, so that a command can be pasted into the same folder."""
    return shlex.quote(sys.argv[0]) if sys.argv[0].endswith("gateway") else "gateway"


def demo(config: Config, opened: Opened, base_url: str, path: Path) -> str:
    """Return what a newcomer needs for a first request to the demo, and to see what became of it."""
    message = {"role": "user", "content": "Tell me a story"}
    body = msgspec.json.encode({"model": next(iter(config.models)), "stream": True, "messages": [message]}).decode()
    pages = "Open the pages; this link lets one person in, once, within ten minutes:"
    given = f"--config {shlex.quote(str(path))}"
    return "\n".join(
        [
            "This is the demo: a gateway, its store, and an upstream that streams words.",
            "",
            f"  base address  {base_url}",
            f"  token         {opened.token}",
            "",
            "Paste this into another terminal (-N shows each word as it comes, -i the head):",
            "",
            f"  curl -iN {base_url}/chat/completions \\",
            f"    -H 'Authorization: Bearer {opened.token}' -H 'Content-Type: application/json' \\",
            f"    -d {shlex.quote(body)}",
            "",
            "Then look at each request that ends, at what became of one (ID is its",
            "x-request-id), and at what is left of the balance:",
            "",
            f"  {program()} usage tail {given}",
            f"  {program()} trace ID {given}",
            f"  {program()} account show {opened.account} {given}",
            "",
            *([pages, "", f"  {opened.link}", ""] if opened.link else ()),
        ]
    )


def on_terminal(config: Config, *, recorded: bool) -> str:
    """Return what a person at the terminal will see next. `recorded`: the chain writes the usage log."""
    lines = []
    if config.admin is not None:
        lines.append(f"The operator's port is {config.admin}: `{program()} admin link` lets you in at its pages,")
        lines.append(f"and programs use it with the token in {config.data_path / 'admin.token'}.")
    if recorded:
        lines += ["Each request that has ended is a line here:", f"{request_lines.COLUMNS}."]
    return "\n".join(lines)


LAST = "Stop with Ctrl-C; balances are kept."
