"""What is wrong with the hooks of a class is said with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import Exchange, Plugin, Reply, Route
from gateway.chain.chain import warnings
from gateway.chain.entry import HOOKS, Entry, api_of, may_answer, wrong_facts, wrong_hooks
from tests import faulty
from tests.faulty import Answers, Blocks, Good, Misspelt, NamesFacts, TakesTooLittle, Waits

API = 1


def line_of(kind: type[Plugin], hook: str) -> str:
    """Return where a hook is, as errors name it."""
    return f" ({Path(faulty.__file__)}, line {vars(kind)[hook].__code__.co_firstlineno})"


class Flushes(Plugin):
    """Has a method that is named like a hook."""

    async def on_flush_all(self) -> None: ...


class Routes(Plugin):
    """Provides the route."""

    provides = (Route,)


def test_the_hooks_are_the_methods_of_the_base_class() -> None:
    assert {"start", "stop", "on_request", "request_step", "on_chunk", "on_end", "end_step"} <= set(HOOKS)


@pytest.mark.parametrize(
    ("kind", "hook", "text"),
    [
        (Blocks, "on_request", "`on_request` must be `async def`"),
        (Waits, "on_chunk", "`on_chunk` must be `def`"),
        (TakesTooLittle, "on_chunk", "`on_chunk` must take (self, exchange, chunk)"),
        (
            Misspelt,
            "on_requests",
            "`on_requests` is not a hook and is never called: did you mean `on_request`?",
        ),
    ],
)
def test_a_hook_that_the_gateway_cannot_call_is_named_with_its_line(kind: type[Plugin], hook: str, text: str) -> None:
    assert list(wrong_hooks(kind)) == [text + line_of(kind, hook)]


def test_a_method_with_the_name_of_a_hook_is_no_helper() -> None:
    (found,) = wrong_hooks(Flushes)
    assert found.startswith("`on_flush_all` is not a hook and is never called: ")


def test_a_good_class_has_nothing_wrong() -> None:
    assert [*wrong_hooks(Good), *wrong_facts(Good)] == []
    (found,) = wrong_facts(NamesFacts)
    assert found == "`requires` must be a tuple of types, such as `(Caller,)`"


def test_the_api_of_a_plugin_is_in_its_class_or_in_its_module() -> None:
    class Newer(Plugin):
        API = 2

    assert (api_of(Flushes), api_of(Newer), api_of(Good)) == (1, 2, None)


def test_a_plugin_that_answers_above_the_routing_is_warned_of() -> None:
    class Quiet(Plugin):
        API = 1

        async def on_request(self, exchange: Exchange) -> None: ...

    class Annotated(Plugin):
        API = 1

        async def on_request(self, exchange: Exchange) -> Reply | None:
            return None

    assert (may_answer(Answers), may_answer(Annotated), may_answer(Quiet)) == (True, True, False)
    routing = Entry("routing", Routes())
    assert warnings([Entry("quiet", Quiet()), routing, Entry("cache", Annotated())]) == []
    assert warnings([Entry("cache", Annotated()), routing]) == [
        "`cache` answers requests above `routing`: it answers also for models that the caller may not use; "
        "move it below `routing`"
    ]


def test_a_plugin_that_names_no_api_is_accepted_with_a_note() -> None:
    assert warnings([Entry("routing", Routes()), Entry("good", Good())]) == [
        "`good` does not say which API of plugins it is made for: write `API = 1` in its class"
    ]
