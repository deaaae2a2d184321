"""What the file says is shown as it is served: models with prices, groups, and the chain."""

from __future__ import annotations

import msgspec

from gateway.admin.actions import served
from gateway.admin.actions import served as config
from gateway.admin.actions.local import GatewayState, LocalClient
from gateway.runtime.handover import RefusedReload


async def test_the_configuration_is_shown_with_the_change_that_was_refused(local_client: LocalClient) -> None:
    served = await config.read_config(local_client)
    assert served.path.endswith("gateway.yaml")
    assert (served.generation, served.refused) == (None, None)
    running = GatewayState(3, RefusedReload("gateway.yaml:2: wrong", 1_798_761_600.5))
    served = await config.read_config(
        LocalClient(local_client.loaded, local_client.store, local_client.actor, running=running)
    )
    assert served.generation == 3
    assert msgspec.to_builtins(served.refused) == {"reason": "gateway.yaml:2: wrong", "at": "2027-01-01T00:00:00.500Z"}


async def test_models_have_prices_costs_channels_and_groups(local_client: LocalClient) -> None:
    (model,) = (await served.list_models(local_client)).data
    assert (model.name, model.max_output_tokens) == ("gpt-4o-mini", 4096)
    assert model.price is not None
    assert (model.price.input_micros, model.price.output_micros, model.price.cached_input_micros) == (
        150_000,
        600_000,
        None,
    )
    (channel,) = model.channels
    assert (channel.channel, channel.model) == ("one", "mini")
    assert channel.cost is not None
    assert channel.cost.output_micros == 400_000
    assert model.groups == {"default": "1", "trial": "1", "old": "1"}


async def test_groups_have_what_their_accounts_may_use(local_client: LocalClient) -> None:
    default, trial, old = (await served.list_groups(local_client)).data
    assert (default.enabled, default.served, default.models) == (True, ["gpt-4o-mini"], ["*"])
    assert (trial.budgets.month, trial.budgets.requests) == (5_000_000, 9)
    assert not old.enabled


async def test_the_chain_is_listed_in_its_order(local_client: LocalClient) -> None:
    quota, none = (await served.list_plugins(local_client)).data
    assert (quota.use, quota.error, quota.enabled) == ("quota", "", True)
    assert quota.about
    assert "Caller" in quota.needs
    assert (none.name, none.enabled, bool(none.error)) == ("other", False, True)
