"""Access of operators and programs: links to the pages, management tokens, and the audit log of who changed what."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from gateway.admin.actions.action import LARGEST_LONG_PAGE, Scope
from gateway.admin.actions.times import local
from gateway.base.amounts import with_amounts
from gateway.base.errors import Misconfigured
from gateway.base.text import names_in
from gateway.cli.account_options import IdArgument
from gateway.cli.client import At, command, print_notes
from gateway.cli.common import point_in_time, print_fields, print_json
from gateway.cli.token import ExpiresOption, shown
from gateway.config.schema import SCOPES

if TYPE_CHECKING:
    from gateway.admin.actions.audit import AuditEntry
    from gateway.admin.actions.links import Link
    from gateway.admin.actions.management_tokens import ManagementToken


admin = typer.Typer()


@command(admin, options=("api", "config", "as_json"))
async def link(
    at: At,
    scopes: Annotated[
        str, typer.Option(metavar="NAMES", help="What may be done there, as in read,money. Default: everything.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Whom it lets in, for the audit log, which also says who made the link.")
    ] = "",
) -> None:
    """Print an address that lets one person in at the pages, once, within ten minutes.

    They stay in for twelve hours, until they leave, or until the token that the link was made with is revoked or changed.

    Example: `gateway admin link --scopes read,money --name alice`
    """
    names = names_in(scopes)
    if unknown := sorted(set(names) - set(SCOPES)):
        raise typer.BadParameter(f"there is no scope `{unknown[0]}`; there are {', '.join(SCOPES)}")
    from gateway.admin.actions.links import ENTER

    if at.api is None and at.config.admin is None:
        raise Misconfigured("the file has `admin: null`, so that there are no pages")
    made = await at.do("links.create", name=name, scopes=tuple(map(Scope, names)) or None)
    await print_link(at, made, f"{at.api.rstrip('/')}{ENTER}{made.url.partition(ENTER)[2]}" if at.api else made.url)


async def print_link(at: At, made: Link, url: str) -> None:
    """Print the address of a link, for people or for scripts."""
    if at.as_json:
        print_json({"url": url, "expires_at": made.expires_at, "name": made.name, "scopes": made.scopes})
    else:
        typer.echo(url)
        typer.echo(f"It lets one person in, once, until {local(made.expires_at, await at.zone())}.", err=True)


async def account_link(at: At, account_id: IdArgument) -> None:
    """Print an address that lets a caller in at the pages of its own account, once, within ten minutes.

    They show its use, its requests, its budgets and its ledger, and make and delete its tokens. The caller stays in for twelve
    hours, until it leaves, or until the token that the link was made with is revoked or changed. The address is that of `portal:`
    in the gateway's file, or else of the operator's port.

    Example: `gateway account link alice`
    """
    from gateway.admin.actions.links import address_of

    made = await at.do("links.own", account_id)
    await print_link(at, made, made.url)
    if not at.api and (portal := address_of(at.config, portal=True)) and not _answers(portal):
        print_notes([f"nothing answers at {portal}: a gateway serves `portal:` once it has been started with it"])


def _answers(listen: str) -> bool:
    """Return whether something takes connections at what a port listens on."""
    from gateway.admin.actions.links import base

    at = urlsplit(base(listen))
    try:
        socket.create_connection((at.hostname or "", at.port or 0), 2).close()
    except OSError:
        return False
    return True


@command(options=("config", "api"), needs="nothing")
async def docs(at: At) -> None:
    """Print the address at which a running gateway serves its documents.

    They are at the operator's port, with a search, and need no token.

    Example: `gateway docs`
    """
    from gateway.admin.actions.links import address_of, base

    address = at.api or (address_of(at.config) and base(str(address_of(at.config))))
    if address is None:
        raise Misconfigured("the file has `admin: null`, so that no documents are served")
    typer.echo(f"{address.rstrip('/')}/docs")


TOKEN_COLUMNS = ("id", "name", "scopes", "created", "expires", "made by")

management_tokens = typer.Typer()


@command(management_tokens)
async def create(
    at: At,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it, as in `shop`: it is in the audit log.")],
    scopes: Annotated[
        str,
        typer.Option(
            metavar="SCOPES",
            help="With commas: read, accounts, tokens, money, channels, metrics, admin (these tokens and the audit log).",
        ),
    ],
    expires: ExpiresOption = None,
) -> None:
    """Create a management token. It is printed now and cannot be shown again.

    Example: `gateway management-tokens create shop --scopes accounts,money,tokens --expires 90d`
    """
    given = names_in(scopes)
    if not given or not set(given) <= set(Scope):
        raise typer.BadParameter(f"--scopes: some of {', '.join(Scope)}, with commas")
    expires_at = expires and expires.at(await at.zone())
    made = await at.do("management_tokens.create", name=name, scopes=tuple(map(Scope, given)), expires_at=expires_at)
    if at.as_json:
        print_json(made)
        return
    print_fields(dict(zip(TOKEN_COLUMNS, _cells(made, await at.zone()), strict=True)))
    typer.echo("\nThe token, which cannot be shown again:\n", err=True)
    typer.echo(made.token or "(it was shown when it was made)")


@command(management_tokens, "list")
async def list_tokens(at: At) -> None:
    """List the management tokens, also those that have expired. The admin token is not among them.

    Example: `gateway management-tokens list`
    """
    found = await at.lines("management_tokens.list_", size=1000)
    empty = "There are none yet. Create one: gateway management-tokens create NAME --scopes read"
    await at.print(found, TOKEN_COLUMNS, _cells, empty=empty, optional=("made by", "created"))


async def _revoke(_: At, token_id: str) -> str:
    return f"Revoke `{token_id}`?"


@command(management_tokens, sure=_revoke)
async def revoke(
    at: At, token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id; not the token itself.")]
) -> None:
    """Revoke a management token: nothing is accepted with it from now on.

    Example: `gateway management-tokens revoke 1a2b3c4d5e6f --yes`
    """
    await at.do("management_tokens.revoke", token_id)
    if at.as_json:
        print_json({"id": token_id, "revoked": True})
    else:
        typer.echo(f"Revoked `{token_id}`.")


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

audit = typer.Typer()


@command(audit, "list")
async def list_audit(
    at: At,
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
) -> None:
    """Show who changed what, newest first: by commands, over the API and at the pages. JSON has it as it was before and after.

    Example: `gateway audit list --target alice --since 7d`
    """
    fields: dict[str, Any] = {"actor": actor, "operation": operation, "target": target, "by": by}
    lines = await at.lines("audit.list_", size=LARGEST_LONG_PAGE, most=limit, since=(since or 0) // 1000, **fields)
    empty = "Nothing was changed yet, or nothing of that kind."
    await at.print(lines, AUDIT_COLUMNS, _audit_cells, empty=empty, optional=("changed",))


def _audit_cells(entry: AuditEntry, zone: tzinfo) -> tuple[str, ...]:
    outcome = entry.code or entry.outcome
    return local(entry.at, zone), entry.actor, entry.operation, entry.target, outcome, _changed(entry)


def _changed(entry: AuditEntry) -> str:
    """Return the fields that differ, with their values before and after."""
    if not isinstance(entry.before, dict) or not isinstance(entry.after, dict):
        return "-"
    return ", ".join(_differences("", with_amounts(entry.before), with_amounts(entry.after))) or "-"


def _differences(prefix: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name, was in before.items():
        becomes = after.get(name, was)
        if isinstance(was, dict) and isinstance(becomes, dict):
            yield from _differences(f"{prefix}{name}.", was, becomes)
        elif was != becomes:
            yield f"{prefix}{name}: {_short(was)} -> {_short(becomes)}"


def _short(value: Any) -> str:
    text = "none" if value in (None, "", [], {}) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
