"""Channels: how each is, why, and the actions on it; and the configuration as it is served.

The configuration is the chain, models, prices, groups, and the file. The file rules: nothing is changed here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from aiohttp import web

from gateway.admin.actions import channels, served, usage
from gateway.admin.actions.channels import ChannelTest, ChannelTestResult, DisablingReason, Switch
from gateway.admin.actions.usage import SumsQuery
from gateway.admin.pages.now import TONES
from gateway.admin.pages.view import Page, View, attempt, body, problem_of
from gateway.base.errors import GatewayError, Refused
from gateway.domain.facts import NO_BUDGETS, NO_LIMITS


async def index(
    view: View, problem: str | None = None, status: int = 200, tried: ChannelTestResult | None = None, opened: str = ""
) -> web.Response:
    """Show all channels. `tried`: how the upstream answered to a test that was asked for."""
    page = await channels.list_(view.client)
    config = view.client.config
    serving: dict[str, list[str]] = {}
    for name, model in config.models.items():
        for each in model.servings:
            serving.setdefault(each.use, []).append(name)
    today = datetime.now(UTC).date().isoformat()
    sums = await usage.summary(view.client, query=body(SumsQuery, by="channel", since=today))
    cached = {line.channel: line.cached_tokens / line.prompt_tokens for line in sums.data if line.cached_tokens}
    return view.page(
        "channels.html",
        status,
        page=page,
        addresses={name: channel.base_url for name, channel in config.channels.items()},
        serving=serving,
        tried=tried,
        tones=TONES,
        cached=cached,
        problem=problem,
        opened=opened,
        form=view.form,
        quoted={name: quote(name, safe="") for name in config.channels},
    )


async def _refuse(view: View, refused: Refused) -> web.Response:
    return await index(view, refused.message, refused.status, opened=view.path["name"])


_attempt: Final = attempt(_refuse, lambda _: "/channels")


@_attempt
async def disable(view: View) -> str:
    """Call a channel no more."""
    given = body(DisablingReason, reason=view.form["reason"])
    await channels.disable(view.client, view.path["name"], body=given)
    return "channel-disabled"


@_attempt
async def enable(view: View) -> str:
    """Call a channel again, and end its cool-down."""
    await channels.enable(view.client, view.path["name"])
    return "channel-enabled"


@_attempt
async def credential(view: View) -> str:
    """Switch a credential off or on, or let one that was refused be tried again."""
    given = body(Switch, state=view.form["state"])
    await channels.credential(view.client, view.path["name"], view.path["number"], body=given)
    return "changed"


async def test(view: View) -> web.StreamResponse:
    """Send one small request to the channel's upstream, and show how it answers."""
    try:
        given = {"model": view.form["model"]} if view.form["model"] else {}
        tried = await channels.test(view.client, view.path["name"], body=body(ChannelTest, **given))
    except GatewayError as error:
        return await _refuse(view, problem_of(error))
    return await index(view, tried=tried)


PAGES: Final[tuple[tuple[str, str, Page], ...]] = (
    ("GET", "/channels", index),
    ("POST", "/channels/{name}/disable", disable),
    ("POST", "/channels/{name}/enable", enable),
    ("POST", "/channels/{name}/test", test),
    ("POST", "/channels/{name}/credentials/{number}", credential),
)


async def show_configuration(view: View) -> web.StreamResponse:
    """Show what is served, and why the last change of the file was not taken up."""
    client = view.client
    return view.page(
        "configuration.html",
        served=await served.read_config(client),
        plugins=(await served.list_plugins(client)).data,
        models=(await served.list_models(client)).data,
        groups=(await served.list_groups(client)).data,
        none_at_all=(NO_BUDGETS, NO_LIMITS),
    )


CONFIGURATION_PAGES: Final[tuple[tuple[str, str, Page], ...]] = (("GET", "/configuration", show_configuration),)
