"""What the file says is shown as it is served: its lines, models with prices, groups, and the chain."""

from __future__ import annotations

import msgspec

from gateway.management import config, groups, models, plugins
from gateway.management.desk import LocalDesk, RefusedReload, Running


async def test_the_configuration_is_shown_with_the_change_that_was_refused(desk: LocalDesk) -> None:
    served = await config.read(desk)
    assert served.path.endswith("gateway.yaml")
    assert (served.generation, served.refused) == (None, None)
    assert "models:" in served.lines
    assert "canary" not in "".join(served.lines)
    running = Running(3, RefusedReload("gateway.yaml:2: wrong", 1_798_761_600.5))
    served = await config.read(LocalDesk(desk.loaded, desk.store, desk.actor, running=running))
    assert served.generation == 3
    assert msgspec.to_builtins(served.refused) == {"reason": "gateway.yaml:2: wrong", "at": "2027-01-01T00:00:00.500Z"}


async def test_models_have_prices_costs_channels_and_groups(desk: LocalDesk) -> None:
    (model,) = (await models.list_(desk)).data
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


async def test_groups_have_what_their_accounts_may_use(desk: LocalDesk) -> None:
    default, trial, old = (await groups.list_(desk)).data
    assert (default.enabled, default.served, default.models) == (True, ["gpt-4o-mini"], ["*"])
    assert (trial.budgets.month, trial.budgets.requests) == (5_000_000, 9)
    assert not old.enabled


async def test_the_chain_is_listed_in_its_order(desk: LocalDesk) -> None:
    quota, none = (await plugins.list_(desk)).data
    assert (quota.use, quota.error, quota.enabled) == ("quota", "", True)
    assert quota.about
    assert "Caller" in quota.needs
    assert (none.name, none.enabled, bool(none.error)) == ("other", False, True)
