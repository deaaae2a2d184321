"""`gateway admin`: let a person in at the pages of the operator's port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.base.errors import Misconfigured
from gateway.cli.client import ApiOption, run_with_client
from gateway.cli.common import ConfigOption, JsonOption, configuration, print_json
from gateway.config.schema import SCOPES

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.links import Link

admin = typer.Typer(no_args_is_help=True, help="Let people in at the pages of the operator's port: link.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(admin, name="admin")


def _scopes(text: str) -> list[str]:
    names = [name for part in text.split(",") if (name := part.strip())]
    if unknown := sorted(set(names) - set(SCOPES)):
        raise typer.BadParameter(f"there is no scope `{unknown[0]}`; there are {', '.join(SCOPES)}")
    return names


@admin.command()
def link(
    scopes: Annotated[
        str, typer.Option(metavar="NAMES", help="What may be done there, as in read,money. Default: everything.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Whom it lets in, for the audit log, which also says who made the link.")
    ] = "",
    api: ApiOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an address that lets one person in at the pages, once, within ten minutes.

    They stay in for twelve hours, until they leave, or until the token that the link was made with is revoked or changed.

    Example: `gateway admin link --scopes read,money --name alice`
    """

    names = _scopes(scopes)

    async def work(client: ActionClient) -> Link:
        from gateway.admin.actions import links
        from gateway.admin.actions.action import Scope

        named = tuple(Scope(each) for each in names)
        return await links.create(client, body=links.NewLink(name=name, scopes=named or None))

    address = api or address_of_pages(configuration(config).admin)
    print_link(run_with_client(config, api, work), address, as_json)


def print_link(made: Link, address: str, as_json: bool) -> None:
    """Print a link at an address, for people or for scripts."""
    url = f"{address.rstrip('/')}{made.path}"
    if as_json:
        print_json({"url": url, "expires_at": made.expires_at, "name": made.name, "scopes": made.scopes})
    else:
        typer.echo(url)
        typer.echo(f"It lets one person in, once, until {made.expires_at[11:16]} UTC.", err=True)


def address_of_pages(address: str | None) -> str:
    """Return the address of a port's pages in a browser on this machine. Raises `Misconfigured` where there is no such port."""
    from gateway.admin.actions.links import base

    if address is None:
        raise Misconfigured("the file has `admin: null`, so that there are no pages")
    return base(address)
