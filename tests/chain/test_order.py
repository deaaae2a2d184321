"""A plugin that changes requests stands above those that count, hold money or route by what they say."""

from __future__ import annotations

from typing import ClassVar

import pytest

from gateway import Caller, Exchange, Plugin, Route
from gateway.base.errors import Misconfigured
from gateway.chain.chain import check_order
from gateway.chain.entry import Entry, wrong_hooks
from plugins.model_routing import ModelRouting
from plugins.quota import Quota
from plugins.rate_limit import RateLimit
from plugins.redact import Redact


class Identifies(Plugin):
    provides: ClassVar[tuple[type, ...]] = (Caller,)


class Routes(Plugin):
    provides: ClassVar[tuple[type, ...]] = (Route,)


class EditsNothing(Plugin):
    edits = True


class CountsAndEdits(Plugin):
    edits = True
    counts = True

    async def on_request(self, exchange: Exchange) -> None: ...


def entries(*plugins: Plugin) -> list[Entry]:
    return [Entry(type(plugin).__name__, plugin) for plugin in plugins]


def test_an_editor_above_what_counts_is_accepted() -> None:
    check_order(entries(Identifies(), Redact(), CountsAndEdits(), RateLimit(), Quota(), ModelRouting()))


@pytest.mark.parametrize("counter", [RateLimit, Quota, Routes, CountsAndEdits])
def test_an_editor_below_what_counts_is_refused_with_the_cure(counter: type[Plugin]) -> None:
    name = counter.__name__
    with pytest.raises(Misconfigured) as refused:
        check_order(entries(Identifies(), counter(), Redact(), Routes()))
    assert str(refused.value) == (
        f"'Redact' changes the request below '{name}', which decides by what it says: move 'Redact' above '{name}'"
    )


def test_an_editor_needs_the_hook_in_which_it_edits() -> None:
    assert list(wrong_hooks(EditsNothing)) == [
        "`edits = True` is declared, but there is no `on_request` that changes the request"
    ]
