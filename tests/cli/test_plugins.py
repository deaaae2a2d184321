"""`gateway plugins` lists the plugins with their settings."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

import msgspec
from typer.testing import CliRunner

from gateway import Caller, Plugin, Route
from gateway.admin.actions.served import describe
from gateway.cli.commands import program


class Example(Plugin):
    """Does this and
    that.

    At length.
    """

    requires: ClassVar[tuple[type, ...]] = (Caller,)
    provides: ClassVar[tuple[type, ...]] = (Route,)

    must: str
    most: Annotated[int, msgspec.Meta(ge=1)] = 5
    price: Decimal | None = None
    way: Literal["in", "out"] = "in"
    names: list[str] = msgspec.field(default_factory=list)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(program(), ["plugins", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plugin_is_described_in_words() -> None:
    assert describe("example", Example) == {
        "name": "example",
        "about": "Does this and that.",
        "needs": ["Caller"],
        "provides": ["Route"],
        "settings": [
            {"name": "must", "type": "text"},
            {"name": "most", "type": "a whole number", "default": 5},
            {"name": "price", "type": "a number or null", "default": None},
            {"name": "way", "type": "in or out", "default": "in"},
            {"name": "names", "type": "a list of text", "default": []},
        ],
    }


def test_scripts_get_one_object_a_line() -> None:
    plugins = {plugin["name"]: plugin for plugin in map(json.loads, run("--json").splitlines())}
    assert set(plugins) >= {"usage-logger", "auth", "rate-limit", "quota", "model-routing"}
    assert plugins["auth"]["provides"] == plugins["quota"]["needs"] == ["Caller"]
    assert {"name": "on_crash", "type": "release or charge_floor", "default": "release"} in plugins["quota"]["settings"]
    for plugin in plugins.values():
        assert plugin["about"].endswith("."), "a whole sentence"


def test_people_get_settings_with_types_and_defaults() -> None:
    text = run()
    assert "quota: Refuses requests" in text
    assert "  needs Caller\n" in text
    assert "  max_hold: a number or null (null)\n" in text
    assert '  on_crash: release or charge_floor ("release")\n' in text
