"""Channels: how each is, why, and the actions on it; and the configuration as it is served.

The configuration is the chain, models, prices, groups, and the file. The file rules: nothing is changed here.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from gateway.admin.actions import channels, served
from gateway.admin.actions.channels import Reason, Switch, Trial, Tried
from gateway.admin.pages.accounts import problem_of
from gateway.admin.pages.view import Page, Visit, body
from gateway.base.errors import GatewayError
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS


async def index(
    visit: Visit, problem: str | None = None, status: int = 200, tried: Tried | None = None, opened: str = ""
) -> web.Response:
    """Show all channels. `tried`: how the upstream answered to a trial that was asked for."""
    page = await channels.list_(visit.client)
    config = visit.client.config
    serving: dict[str, list[str]] = {}
    for name, model in config.models.items():
        for each in model.servings:
            serving.setdefault(each.use, []).append(name)
    return visit.page(
        "channels.html",
        status,
        page=page,
        addresses={name: channel.base_url for name, channel in config.channels.items()},
        serving=serving,
        tried=tried,
        problem=problem,
        opened=opened,
        form=visit.form,
        quoted={name: quote(name, safe="") for name in config.channels},
    )


async def disable(visit: Visit) -> web.StreamResponse:
    """Call a channel no more."""
    try:
        await channels.disable(visit.client, visit.path["name"], body=body(Reason, reason=visit.form["reason"]))
    except GatewayError as error:
        return await _refused(visit, error)
    return visit.go("/channels", "channel-disabled")


async def enable(visit: Visit) -> web.StreamResponse:
    """Call a channel again, and end its cool-down."""
    try:
        await channels.enable(visit.client, visit.path["name"])
    except GatewayError as error:
        return await _refused(visit, error)
    return visit.go("/channels", "channel-enabled")


async def credential(visit: Visit) -> web.StreamResponse:
    """Switch a credential off or on, or let one that was refused be tried again."""
    try:
        given = body(Switch, state=visit.form["state"])
        await channels.credential(visit.client, visit.path["name"], visit.path["number"], body=given)
    except GatewayError as error:
        return await _refused(visit, error)
    return visit.go("/channels", "changed")


async def test(visit: Visit) -> web.StreamResponse:
    """Send one small request to the channel's upstream, and show how it answers."""
    try:
        given = {"model": visit.form["model"]} if visit.form["model"] else {}
        tried = await channels.test(visit.client, visit.path["name"], body=body(Trial, **given))
    except GatewayError as error:
        return await _refused(visit, error)
    return await index(visit, tried=tried)


async def _refused(visit: Visit, error: GatewayError) -> web.Response:
    shown = problem_of(error)
    if shown.status in (403, 404):
        raise error
    return await index(visit, shown.message, shown.status, opened=visit.path["name"])


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", "/channels", index),
    ("POST", "/channels/{name}/disable", disable),
    ("POST", "/channels/{name}/enable", enable),
    ("POST", "/channels/{name}/test", test),
    ("POST", "/channels/{name}/credentials/{number}", credential),
)


async def show_configuration(visit: Visit) -> web.StreamResponse:
    """Show what is served, and why the last change of the file was not taken up."""
    client = visit.client
    return visit.page(
        "configuration.html",
        served=await served.read_config(client),
        plugins=(await served.list_plugins(client)).data,
        models=(await served.list_models(client)).data,
        groups=(await served.list_groups(client)).data,
        none_at_all=(NO_BUDGETS, NO_LIMITS),
    )


CONFIGURATION_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/configuration", show_configuration),)
