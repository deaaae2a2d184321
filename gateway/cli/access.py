"""Access of operators and programs: links to the pages, management tokens, and the audit log of who changed what."""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.base.errors import Misconfigured
from gateway.cli.account_options import IdArgument
from gateway.cli.client import ApiOption, account_at, names_in, run_with_client, zone_at
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    configuration,
    confirm,
    point_in_time,
    print_fields,
    print_json,
    print_table,
)
from gateway.cli.token import ExpiresOption, shown
from gateway.config.schema import SCOPES

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.audit import AuditEntry
    from gateway.admin.actions.links import Link
    from gateway.admin.actions.management_tokens import MadeManagementToken, ManagementToken


admin = typer.Typer(no_args_is_help=True, help="Let people in at the pages of the operator's port: link.")


def _scopes_of_link(text: str) -> list[str]:
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

    names = _scopes_of_link(scopes)

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


def account_link(
    account_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Print an address that lets a caller in at the pages of its own account, once, within ten minutes.

    They show its use, its requests, its budgets and its ledger, and make and delete its tokens. The caller stays in for twelve
    hours, until it leaves, or until the token that the link was made with is revoked or changed. The address is that of `portal:`
    in the file, or else of the operator's port, or of `--api`.

    Example: `gateway account link alice`
    """

    async def work(client: ActionClient) -> Link:
        from gateway.admin.actions import links

        return await links.own(client, await account_at(client, account_id))

    made = run_with_client(config, api, work)
    if not api:
        settings = configuration(config)
        api = address_of_pages(settings.portal or settings.admin)
    print_link(made, api, as_json)

TOKEN_COLUMNS = ("id", "name", "scopes", "created", "expires", "made by")

management_tokens = typer.Typer(
    no_args_is_help=True, help="Manage the tokens with which programs use the operator's API: create, list, revoke."
)


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
    given = _scopes_of_token(scopes)

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
    print_fields(dict(zip(TOKEN_COLUMNS, _cells(made, zone), strict=True)))
    typer.echo("\nThe token, which cannot be shown again:\n", err=True)
    typer.echo(made.token or "(it was shown when it was made)")


@management_tokens.command("list")
def list_tokens(config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False) -> None:
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
    print_table(TOKEN_COLUMNS, (_cells(token, zone) for token in found), empty=empty, optional=("made by", "created"))


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


def _scopes_of_token(text: str) -> list[str]:
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

AUDIT_COLUMNS = ("at", "actor", "operation", "target", "outcome", "changed")

audit = typer.Typer(no_args_is_help=True, help="Show who changed what, and how it was before: list.")


@audit.command("list")
def list_audit(
    actor: Annotated[str, typer.Option(help="Only those of whoever's name begins so, as in `command of alice`.")] = "",
    operation: Annotated[str, typer.Option(help="Only this operation, as in tokens.create, or tokens for all.")] = "",
    target: Annotated[
        str, typer.Option(help="Only what was done to this account with its tokens, or this token.")
    ] = "",
    since: Annotated[
        int | None,
        typer.Option(parser=point_in_time, metavar="TIME", help="Only later ones: 12h, 7d, 2026-11-21 (UTC)."),
    ] = None,
    by: Annotated[
        Literal["operators", "callers"] | None,
        typer.Option(help="Only what operators changed, or what callers changed at their own pages."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 50,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who changed what, newest first: by commands, over the API and at the pages. JSON has it as it was before and after.

    Example: `gateway audit list --target alice --since 7d`
    """

    async def work(client: ActionClient) -> list[AuditEntry]:
        from gateway.admin.actions.action import LARGEST_LONG_PAGE
        from gateway.admin.actions.audit import AuditLines, list_

        found: list[AuditEntry] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            query = AuditLines(
                min(limit - len(found), LARGEST_LONG_PAGE),
                after,
                actor,
                operation,
                target,
                (since or 0) // 1000,
                by,
            )
            page = await list_(client, query=query)
            found += page.data
            after = page.next
        return found

    entries = run_with_client(config, api, work)
    if as_json:
        for entry in entries:
            print_json(entry)
        return
    print_table(
        AUDIT_COLUMNS,
        (
            (entry.at[:19], entry.actor, entry.operation, entry.target, entry.code or entry.outcome, _changed(entry))
            for entry in entries
        ),
        empty="Nothing was changed yet, or nothing of that kind.",
        optional=("changed",),
    )


def _changed(entry: AuditEntry) -> str:
    """Return the fields that differ, with their values before and after."""
    before, after = entry.before, entry.after
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "-"
    names = [name for name in before if name in after and before[name] != after[name]]
    return ", ".join(f"{name}: {_short(before[name])} -> {_short(after[name])}" for name in names) or "-"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(admin, name="admin")
    app.add_typer(management_tokens, name="management-tokens")
    app.add_typer(audit, name="audit")
