"""Only a plugin that declares it may change the request, in `on_request` and in `explain`."""

from __future__ import annotations

import msgspec
import pytest

from gateway import Caller, Exchange, Plugin, Route, Step
from gateway.base.errors import GatewayError
from gateway.chain.chain import Chain
from gateway.chain.entry import Entry
from gateway.chain.request_hooks import RequestHooks
from gateway.testing import exchange
from plugins.model_routing import ModelRouting


class Edits(Plugin):
    """Sets the model."""

    edits = True
    model: str = "other"
    """The model."""

    async def on_request(self, exchange: Exchange) -> None:
        await exchange.edit({"model": self.model, "max_tokens": 7}, drop=["user"])

    async def explain(self, exchange: Exchange) -> str:
        await self.on_request(exchange)
        return f"the model is {self.model}"


class EditsInAStep(Plugin):
    edits = True

    async def request_step(self, exchange: Exchange) -> Step | None:
        await exchange.edit({"model": "other"})
        return None


async def run(of: Exchange, *plugins: Plugin) -> None:
    entries = [Entry(f"{type(plugin).__name__}-{index}", plugin) for index, plugin in enumerate(plugins)]
    await RequestHooks(of, entries, [], None).run()  # type: ignore[arg-type]


async def test_a_change_that_changes_nothing_is_not_recorded() -> None:
    of = exchange({"max_tokens": 7})
    await run(of, Edits(model="m"))
    assert (of.changed_by, of.requested_model) == ((), "")


async def test_a_step_may_be_planned_twice_and_so_cannot_edit() -> None:
    with pytest.raises(GatewayError, match="'EditsInAStep-0' changes the request in `request_step`: use `on_request`"):
        await run(exchange(), EditsInAStep())


async def test_nothing_is_edited_after_the_request_hooks() -> None:
    of = exchange()
    await run(of, Edits())
    with pytest.raises(GatewayError, match="outside of `on_request`"):
        await of.edit({"model": "late"})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"messages": []}, "'messages' is required"),
        ({"Max_Tokens": 9}, "some upstreams take it for 'max_tokens'"),
        ({"max_tokens ": 9}, "some upstreams take it for 'max_tokens'"),
        ({"max\u00a0tokens": 9}, "some upstreams take it for 'max_tokens'"),
        ({"n_predict": 9}, "use 'max_tokens' instead"),
        ({"Stream": False}, "some upstreams take it for 'stream'"),
        ({"temperature": float("inf")}, "`temperature` is no JSON"),
        ({"x": msgspec.Raw(b'1, "stream": false')}, "`x` is no JSON"),
        ({"seed": [[[]]] * 60_000}, "more than 100000 arrays"),
    ],
)
async def test_a_change_that_makes_the_request_invalid_is_the_plugins_fault(
    fields: dict[str, object], why: str
) -> None:
    class Breaks(Plugin):
        edits = True

        async def on_request(self, exchange: Exchange) -> None:
            await exchange.edit(fields)

    of = exchange()
    with pytest.raises(GatewayError, match="'Breaks-0' makes a request that is not valid: ") as error:
        await run(of, Breaks())
    assert why in str(error.value)
    assert (await of.body()).top["messages"]
    assert of.changed_by == ()


async def test_a_test_may_call_the_hook_itself() -> None:
    of = exchange()
    await Edits().on_request(of)
    assert (of.model, of.changed_by) == ("other", ("test",))


def test_the_chain_refuses_an_editor_below_routing() -> None:
    class Identifies(Plugin):
        provides = (Caller,)

    plugins = (Identifies(), ModelRouting(), Edits())
    with pytest.raises(GatewayError, match="move 'Edits' above 'ModelRouting'"):
        Chain([Entry(type(plugin).__name__, plugin) for plugin in plugins])
    assert Route in ModelRouting.provides
