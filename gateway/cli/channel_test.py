"""`gateway channels test`: one small request to a channel's upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.client import ApiOption, run_without_store
from gateway.cli.common import ConfigOption, JsonOption, print_json

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.channels import Tried


def test(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel's name in the configuration.")],
    model: Annotated[
        str | None, typer.Option(help="A model of the configuration. Default: the first that this channel serves.")
    ] = None,
    credential: Annotated[int, typer.Option(min=0, help="The index in `api_keys`, counted from 0.")] = 0,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one small request to a channel's upstream and say how it answers. The upstream may bill it; no account is charged.

    It is sent also to a channel that is disabled or cools down, and does not change its condition. The exit code is 1 unless the
    upstream begins a stream.

    Example: `gateway channels test openai --model gpt-4o-mini`
    """

    async def work(client: ActionClient) -> Tried:
        from gateway.admin.actions import channels

        return await channels.test(client, name, body=channels.Trial(model, credential))

    tried = run_without_store(config, api, work)
    if as_json:
        print_json(tried)
    else:
        status = "" if tried.status is None else f" with {tried.status}"
        answer = "answers" if tried.good else "fails"
        typer.echo(f"{name} {answer}{status} after {tried.took_ms} ms for {tried.model}: {tried.text}")
    if not tried.good:
        raise typer.Exit(1)
