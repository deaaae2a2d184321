"""`gateway management-tokens`: the tokens with which programs and people use the operator's API."""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.client import ApiOption, run_with_client, zone_at
from gateway.cli.common import ConfigOption, JsonOption, YesOption, confirm, print_fields, print_json, print_table
from gateway.cli.expiry import ExpiresOption, shown
from gateway.cli.named import names_in

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.management_tokens import MadeManagementToken, ManagementToken

COLUMNS = ("id", "name", "scopes", "created", "expires", "made by")

management_tokens = typer.Typer(
    no_args_is_help=True, help="Manage the tokens with which programs use the operator's API: create, list, revoke."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(management_tokens, name="management-tokens")


@management_tokens.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it, as in `shop`: it is in the audit log.")],
    scopes: Annotated[
        str,
        typer.Option(
            metavar="SCOPES",
            help="What it may do, with commas: read, accounts, tokens, money, channels, admin (these tokens and the audit log).",
        ),
    ],
    expires: ExpiresOption = None,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a management token. It is printed now and cannot be shown again.

    Example: `gateway management-tokens create shop --scopes accounts,money,tokens --expires 90d`
    """
    given = _scopes(scopes)

    async def work(client: ActionClient) -> tuple[MadeManagementToken, tzinfo]:
        from gateway.admin.actions import management_tokens
        from gateway.admin.actions.action import Scope
        from gateway.admin.actions.management_tokens import NewManagementToken

        zone = await zone_at(client)
        body = NewManagementToken(name, tuple(map(Scope, given)), expires and expires.at(zone))
        return await management_tokens.create(client, body=body), zone

    made, zone = run_with_client(config, api, work)
    if as_json:
        print_json(made)
        return
    print_fields(dict(zip(COLUMNS, _cells(made, zone), strict=True)))
    typer.echo("\nThe token, which cannot be shown again:\n", err=True)
    typer.echo(made.token or "(it was shown when it was made)")


@management_tokens.command("list")
def list_(config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False) -> None:
    """List the management tokens, also those that have expired. The admin token is not among them.

    Example: `gateway management-tokens list`
    """

    async def work(client: ActionClient) -> tuple[list[ManagementToken], tzinfo]:
        from gateway.admin.actions import management_tokens
        from gateway.admin.actions.management_tokens import ManagementTokenList

        found: list[ManagementToken] = []
        after: str | None = ""
        while after is not None:
            page = await management_tokens.list_(client, query=ManagementTokenList(1000, after))
            found += page.data
            after = page.next
        return found, await zone_at(client)

    found, zone = run_with_client(config, api, work)
    if as_json:
        for token in found:
            print_json(token)
        return
    empty = "There are none yet. Create one: gateway management-tokens create NAME --scopes read"
    print_table(COLUMNS, (_cells(token, zone) for token in found), empty=empty, optional=("made by", "created"))


@management_tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id; not the token itself.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a management token: nothing is accepted with it from now on.

    Example: `gateway management-tokens revoke 1a2b3c4d5e6f --yes`
    """
    if not yes:
        confirm(f"Revoke `{token_id}`?")

    async def work(client: ActionClient) -> None:
        from gateway.admin.actions import management_tokens

        await management_tokens.revoke(client, token_id)

    run_with_client(config, api, work)
    if as_json:
        print_json({"id": token_id, "revoked": True})
    else:
        typer.echo(f"Revoked `{token_id}`.")


def _scopes(text: str) -> list[str]:
    from gateway.admin.actions.action import Scope

    given = names_in(text)
    if not given or not set(given) <= set(Scope):
        raise typer.BadParameter(f"--scopes: some of {', '.join(Scope)}, with commas")
    return list(given)


def _cells(token: ManagementToken, zone: tzinfo) -> tuple[str, ...]:
    return (
        token.id,
        token.name,
        ", ".join(token.scopes),
        shown(token.created_at, zone),
        shown(token.expires_at, zone),
        token.made_by,
    )
