"""`gateway token`: the tokens with which callers authenticate."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from gateway.cli.allowance import (
    BudgetOption,
    TokenLimitOption,
    budgets_in_words,
    given_budgets,
    given_limits,
    limits_in_words,
)
from gateway.cli.common import (
    UNITS_S,
    ConfigOption,
    JsonOption,
    YesOption,
    print_fields,
    print_json,
    print_table,
    run_with_store,
)
from gateway.facts import AccountLimits, Budgets
from gateway.services import Store
from gateway.store.known_tokens import Token, TokenStatus
from gateway.store.tokens import Created

LONGEST_OVERLAP_S: Final = 365 * 86_400

token = typer.Typer(no_args_is_help=True, help="Manage tokens: create, list, set, rotate, disable, enable, delete.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(token, name="token")


def _duration(text: str) -> int:
    parts = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if parts is None:
        raise typer.BadParameter("write a time as in 30d, 12h, 90m or 45s")
    return int(parts[1]) * UNITS_S[parts[2]]


def _overlap(text: str) -> int:
    seconds = 0 if re.fullmatch(r"0[smhd]?", text) else _duration(text)
    if seconds > LONGEST_OVERLAP_S:
        raise typer.BadParameter("an overlap is at most 365d: afterwards the old one is to be accepted no more")
    return seconds


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The token's id, as in alice-1a2b3c4d; not the token itself.")
]
AccountArgument = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's id.")]


@token.command()
def create(
    account: AccountArgument,
    budget: BudgetOption,
    name: Annotated[str, typer.Option(help="A name, to recognise the token by.")] = "",
    expires: Annotated[
        int | None,
        typer.Option(parser=_duration, metavar="TIME", help="Let the token expire after this time: 30d, 12h, 90m."),
    ] = None,
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

    async def work(store: Store) -> Created:
        return await store.tokens.create(
            account,
            name=name,
            expires_at=None if expires is None else int(time.time()) + expires,
            models=_names(models),
            addresses=_names(addresses),
            budgets=Budgets(**given_budgets(budget)),
            limits=AccountLimits(**given_limits(requests_per_minute, tokens_per_minute, concurrent)),
        )

    created = run_with_store(config, work)
    _print(created, as_json)
    if not as_json:
        typer.echo("\nThe token, which cannot be shown again:\n", err=True)
        typer.echo(created.token)


@token.command("list")
def list_(account: AccountArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List an account's tokens.

    Example: `gateway token list alice`
    """
    tokens = run_with_store(config, lambda store: store.tokens.all_of(account))
    if as_json:
        for each in tokens:
            print_json(each)
        return
    print_table(
        (
            "id",
            "name",
            "status",
            "created",
            "expires",
            "last used (hour)",
            "models",
            "addresses",
            "budgets",
            "limits",
            "rotated",
        ),
        (tuple(_fields(each).values()) for each in tokens),
        empty=f"`{account}` has no tokens. Create one: gateway token create {account}",
    )


@token.command("set")
def set_(
    token_id: IdArgument,
    budget: BudgetOption,
    requests_per_minute: TokenLimitOption = None,
    tokens_per_minute: TokenLimitOption = None,
    concurrent: TokenLimitOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the budgets and limits of a token, from its next request on. What is not given stays as it is.

    Example: `gateway token set alice-1a2b3c4d --budget day=1 --budget total=none --concurrent 2`
    """
    limits = given_limits(requests_per_minute, tokens_per_minute, concurrent)
    _print(
        run_with_store(config, lambda store: store.tokens.set_allowance(token_id, given_budgets(budget), limits)),
        as_json,
    )


@token.command()
def rotate(
    token_id: IdArgument,
    overlap: Annotated[
        int,
        typer.Option(
            parser=_overlap, metavar="TIME", help="For how long the old one is still accepted: 24h, 90m; 0 ends it now."
        ),
    ],
    expires: Annotated[
        int | None,
        typer.Option(
            parser=_duration,
            metavar="TIME",
            help="Let the new one expire after this time, not when the old one would have.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a token by a new one with the same settings, which is printed now and cannot be shown again.

    Both count in the same budgets and limits. With `--overlap 0`, requests in progress with the old one end as with `disable`.

    Example: `gateway token rotate alice-1a2b3c4d --overlap 24h`
    """
    expires_at = None if expires is None else int(time.time()) + expires
    created = run_with_store(config, lambda store: store.tokens.rotate(token_id, overlap, expires_at))
    _print(created, as_json)
    if not as_json:
        until = "is no longer accepted" if not overlap else "is accepted until the overlap ends or it expires"
        typer.echo(f"\n{token_id} {until}. The new token, which cannot be shown again:\n", err=True)
        typer.echo(created.token)


@token.command()
def disable(token_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used.

    Example: `gateway token disable alice-1a2b3c4d`
    """
    _print(run_with_store(config, lambda store: store.tokens.set_status(token_id, TokenStatus.DISABLED)), as_json)


@token.command()
def enable(token_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Accept a disabled token again.

    Example: `gateway token enable alice-1a2b3c4d`
    """
    _print(run_with_store(config, lambda store: store.tokens.set_status(token_id, TokenStatus.ACTIVE)), as_json)


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


def _print(result: Token, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print_fields(_fields(result))


def _fields(result: Token) -> dict[str, str]:
    return {
        "id": result.id,
        "name": result.name or "-",
        "status": result.state,
        "created": _date(result.created_at),
        "expires": _date(result.expires_at),
        "last used (hour)": _date(result.last_used),
        "models": _restriction(result.models),
        "addresses": _restriction(result.addresses),
        "budgets": budgets_in_words(result.budgets, "-"),
        "limits": limits_in_words(result.limits, "-"),
        "rotated": _rotation(result),
    }


def _rotation(result: Token) -> str:
    """Return the successor of a token, or else its predecessor."""
    if result.replaced_by:
        return f"replaced by {result.replaced_by}"
    return f"replaces {result.replaces}" if result.replaces else "-"


def _date(seconds: int | None) -> str:
    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _restriction(names: Sequence[str]) -> str:
    return ", ".join(names) or "any"
