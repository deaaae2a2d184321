"""`gateway token`: the tokens with which callers authenticate."""

from __future__ import annotations

import re
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import UNSET

from gateway.cli.allowance import BudgetOption, TokenLimitOption, given_budgets, given_limits
from gateway.cli.common import ConfigOption, JsonOption, YesOption, configuration, print_json, run_with_store
from gateway.cli.expiry import ExpiresOption, duration
from gateway.cli.named import account_of, names_in, note_models
from gateway.cli.token_tables import print_token, print_tokens
from gateway.config.time_zone import time_zone
from gateway.facts import AccountLimits, Budgets
from gateway.store.known_tokens import Token, TokenStatus

if TYPE_CHECKING:
    from gateway.config.schema import Config
    from gateway.services import Store
    from gateway.store.tokens import Created

LONGEST_OVERLAP_S: Final = 365 * 86_400

token = typer.Typer(no_args_is_help=True, help="Manage tokens: create, list, set, rotate, disable, enable, delete.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(token, name="token")


def _overlap(text: str) -> int:
    seconds = 0 if re.fullmatch(r"0[smhd]?", text) else duration(text)
    if seconds > LONGEST_OVERLAP_S:
        raise typer.BadParameter("an overlap is at most 365d: afterwards the old one is to be accepted no more")
    return seconds


IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The token's id, as in alice-1a2b3c4d; not the token itself.")
]
AccountArgument = Annotated[
    str, typer.Argument(metavar="ACCOUNT", help="The account's id, or `ext:` and its external id.")
]
PAGE: Final = 500
"""Tokens of a table, where all are listed."""


@token.command()
def create(
    account: AccountArgument,
    budget: BudgetOption,
    name: Annotated[str, typer.Option(help="A name, to recognise the token by.")] = "",
    expires: ExpiresOption = None,
    models: Annotated[str, typer.Option(help="Allow only these models, as in `a,b` or `gpt-*`. Empty for all.")] = "",
    addresses: Annotated[
        str, typer.Option(help="Allow only these addresses, as in `192.0.2.7,10.0.0.0/8`. Empty for any.")
    ] = "",
    requests_per_minute: TokenLimitOption = None,
    tokens_per_minute: TokenLimitOption = None,
    concurrent: TokenLimitOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token. It is printed now and cannot be shown again.

    Its budgets and limits apply in addition to those of its account.

    Example: `gateway token create alice --name laptop --expires 30d --models gpt-4o-mini --budget day=1`
    """
    settings, zone = _settings(config)
    account = account_of(config, account)
    expires_at = expires and expires.at(zone)

    async def work(store: Store) -> Created:
        return await store.tokens.create(
            account,
            name=name,
            expires_at=expires_at,
            models=names_in(models),
            addresses=names_in(addresses),
            budgets=Budgets(**given_budgets(budget)),
            limits=AccountLimits(**given_limits(requests_per_minute, tokens_per_minute, concurrent)),
        )

    created = run_with_store(config, work)
    if models:
        _note_models(config, settings, created)
    print_token(created, zone, as_json)
    if not as_json:
        typer.echo("\nThe token, which cannot be shown again:\n", err=True)
        typer.echo(created.token)


@token.command("list")
def list_(
    account: Annotated[
        str | None,
        typer.Argument(metavar="ACCOUNT", help="The account's id, or `ext:` and its external id; none for all."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List an account's tokens, or those of all accounts by the accounts' ids.

    Example: `gateway token list alice`, or `gateway token list --json | jq -r 'select(.expires_at == null).id'`
    """
    zone = _settings(config)[1]
    if account is None:
        run_with_store(config, lambda store: _list_all(store, zone, as_json))
        return
    name = account_of(config, account)
    tokens = run_with_store(config, lambda store: store.tokens.all_of(name))
    print_tokens(tokens, zone, as_json, empty=f"`{name}` has no tokens. Create one: gateway token create {name}")


async def _list_all(store: Store, zone: tzinfo, as_json: bool) -> None:
    """Print the tokens of all accounts in tables of `PAGE`, so that no more of them are in memory."""
    page: list[Token] = []
    empty = "There are no tokens yet. Create one: gateway token create ACCOUNT"
    async for token in store.tokens.all():
        page.append(token)
        if len(page) == PAGE:
            print_tokens(page, zone, as_json, empty="")
            page, empty = [], ""
    if page or empty:
        print_tokens(page, zone, as_json, empty=empty)


@token.command("set")
def set_(
    token_id: IdArgument,
    budget: BudgetOption,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    expires: ExpiresOption = None,
    models: Annotated[
        str | None, typer.Option(help="Allow only these models, as in `a,b` or `gpt-*`. Empty for all.")
    ] = None,
    addresses: Annotated[
        str | None, typer.Option(help="Allow only these addresses, as in `192.0.2.7,10.0.0.0/8`. Empty for any.")
    ] = None,
    requests_per_minute: TokenLimitOption = None,
    tokens_per_minute: TokenLimitOption = None,
    concurrent: TokenLimitOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a token, from its next request on. What is not given stays as it is; `--expires none` lets it never expire.

    Example: `gateway token set alice-1a2b3c4d --expires 2027-01-31 --models gpt-* --budget day=1 --budget total=none`
    """
    settings, zone = _settings(config)
    limits = given_limits(requests_per_minute, tokens_per_minute, concurrent)
    expires_at = UNSET if expires is None else expires.at(zone)

    async def work(store: Store) -> Token:
        return await store.tokens.change(
            token_id,
            name=name,
            expires_at=expires_at,
            models=None if models is None else names_in(models),
            addresses=None if addresses is None else names_in(addresses),
            budgets=given_budgets(budget),
            limits=limits,
        )

    changed = run_with_store(config, work)
    if models:
        _note_models(config, settings, changed)
    print_token(changed, zone, as_json)


@token.command()
def rotate(
    token_id: IdArgument,
    overlap: Annotated[
        int,
        typer.Option(
            parser=_overlap, metavar="TIME", help="For how long the old one is still accepted: 24h, 90m; 0 ends it now."
        ),
    ],
    expires: ExpiresOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a token by a new one with the same settings, which is printed now and cannot be shown again.

    Both count in the same budgets and limits. With `--overlap 0`, requests in progress with the old one end as with `disable`.

    Example: `gateway token rotate alice-1a2b3c4d --overlap 24h`
    """
    zone = _settings(config)[1]
    expires_at = expires and expires.at(zone)
    created = run_with_store(config, lambda store: store.tokens.rotate(token_id, overlap, expires_at))
    print_token(created, zone, as_json)
    if not as_json:
        until = "is no longer accepted" if not overlap else "is accepted until the overlap ends or it expires"
        typer.echo(f"\n{token_id} {until}. The new token, which cannot be shown again:\n", err=True)
        typer.echo(created.token)


@token.command()
def disable(token_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used.

    Example: `gateway token disable alice-1a2b3c4d`
    """
    _set_status(config, token_id, TokenStatus.DISABLED, as_json)


@token.command()
def enable(token_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Accept a disabled token again.

    Example: `gateway token enable alice-1a2b3c4d`
    """
    _set_status(config, token_id, TokenStatus.ACTIVE, as_json)


@token.command()
def delete(
    token_id: IdArgument, yes: YesOption = False, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Delete a token permanently. Its requests in progress end as with `disable`.

    Example: `gateway token delete alice-1a2b3c4d --yes`
    """
    result = run_with_store(config, lambda store: store.tokens.get(token_id))
    if not yes:
        typer.confirm(f"Delete `{result.id}` {result.name!r}?", abort=True, err=True)
    run_with_store(config, lambda store: store.tokens.delete(token_id))
    if as_json:
        print_json({"id": token_id, "deleted": True})
    else:
        typer.echo(f"Deleted `{token_id}`.")


def _set_status(config: Path | None, token_id: str, status: TokenStatus, as_json: bool) -> None:
    result = run_with_store(config, lambda store: store.tokens.set_status(token_id, status))
    print_token(result, _settings(config)[1], as_json)


def _settings(config: Path | None) -> tuple[Config, tzinfo]:
    settings = configuration(config)
    return settings, time_zone(settings.time_zone)


def _note_models(config: Path | None, settings: Config, changed: Token) -> None:
    """Warn of models of a token that there are not, or that its account may not use."""
    account = run_with_store(config, lambda store: store.accounts.get(changed.id.rpartition("-")[0]))
    group = settings.groups.get(account.group) if account else None
    others = (account.models if account else (), group.models if group else ())
    note_models(settings, changed.models, *others, whose=f"`{changed.id}`")
