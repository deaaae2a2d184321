"""A failure is described with the plugin, its hook, and the line of its file that failed or that called what failed."""

from __future__ import annotations

import json
from pathlib import Path

from gateway import Exchange, Plugin
from gateway.chain.entry import Entry, describe_error, origin_of
from gateway.testing import exchange

HERE = str(Path(__file__))


class Parses(Plugin):
    """Fails in a library."""

    async def on_request(self, exchange: Exchange) -> None:
        self.parse("no JSON")

    def parse(self, text: str) -> None:
        json.loads(text)

    def on_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        raise SystemExit(3)


def line_of(text: str) -> int:
    lines = Path(HERE).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


async def test_the_line_is_that_of_the_plugin_which_called_a_library() -> None:
    entry = Entry("parser", Parses())
    try:
        await entry.plugin.on_request(exchange())
    except ValueError as error:
        at = f"{HERE}, line {line_of('json.loads(text)')}"
        assert origin_of(error) == {"plugin": "parser", "hook": "on_request", "at": at}
        assert describe_error(error) == f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({at})"


def test_what_a_plugin_exited_with_is_the_cause() -> None:
    entry = Entry("parser", Parses())
    try:
        try:
            entry.plugin.on_chunk(exchange(), b"")
        except SystemExit as exited:
            raise RuntimeError("'parser' raised SystemExit") from exited
    except RuntimeError as error:
        assert origin_of(error, "parser")["at"] == f"{HERE}, line {line_of('raise SystemExit(3)')}"


def test_what_comes_from_no_plugin_names_none() -> None:
    try:
        json.loads("no JSON")
    except ValueError as error:
        assert {"plugin", "hook"}.isdisjoint(origin_of(error))
        assert origin_of(error, "known", "end_step")["plugin"] == "known"
