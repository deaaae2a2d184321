"""`gateway token`: the tokens with which callers authenticate."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from msgspec import UNSET

from gateway.admin.actions.times import UNITS_S, local
from gateway.base.text import names_in
from gateway.cli.account_options import (
    BudgetOption,
    TokenLimitOption,
    budgets_in_words,
    given,
    given_budgets,
    given_limits,
    limits_in_words,
)
from gateway.cli.client import At, command, print_notes
from gateway.cli.common import print_fields, print_json

if TYPE_CHECKING:
    from gateway.admin.actions.tokens import ShownToken

LONGEST_OVERLAP_S: Final = 365 * 86_400

token = typer.Typer()


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
"""Tokens that are asked for at once, and of one table where all are listed."""

NEVER: Final = "none"
LATEST_S: Final = round(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")


class Expiry(NamedTuple):
    """One `--expires`: seconds from now, or a date in the configured time zone; neither for never."""

    text: str
    after_s: int = 0
    date: datetime | None = None

    def at(self, zone: tzinfo) -> datetime | None:
        """Return the time; None for never. Raises `typer.BadParameter` for one that is past."""
        if self.text == NEVER:
            return None
        now = time.time()
        moment = int(now) + self.after_s if self.date is None else round(self.date.replace(tzinfo=zone).timestamp())
        if moment <= now:
            raise typer.BadParameter(f"`{self.text}` is past: it is {local(now, zone)} now")
        if moment > LATEST_S:
            raise typer.BadParameter(f"`{self.text}` is too late: give a time before the year 9000")
        return datetime.fromtimestamp(moment, UTC)


def duration(text: str) -> int:
    """Convert a time such as `30d` to seconds. Raises `typer.BadParameter`."""
    parts = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    if parts is None:
        raise typer.BadParameter("write a time as in 30d, 12h, 90m or 45s")
    return int(parts[1]) * UNITS_S[parts[2]]


def expiry(text: str) -> Expiry:
    """Convert the value of `--expires`. Raises `typer.BadParameter`."""
    if text == NEVER:
        return Expiry(text)
    if _DATE.fullmatch(text):
        with suppress(ValueError):
            return Expiry(text, date=datetime.fromisoformat(text))
    with suppress(typer.BadParameter):
        return Expiry(text, duration(text))
    raise typer.BadParameter(
        f"`{text}` is not a time; write 30d, 12h or 90m, a date as in 2027-01-31 or 2027-01-31T18:00, or {NEVER}"
    )


def shown(moment: datetime | None, zone: tzinfo) -> str:
    """Return a time as people read it."""
    return "never" if moment is None else local(moment, zone)


ExpiresOption = Annotated[
    Expiry | None,
    typer.Option(
        parser=expiry,
        metavar="TIME",
        help="When the token expires: 30d, 12h, 90m, or 2027-01-31, 2027-01-31T18:00 in the configuration's time zone. "
        "A date alone is its first moment.",
    ),
]


@command(token)
async def create(
    at: At,
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
) -> None:
    """Create a token. It is printed now and cannot be shown again.

    Its budgets and limits apply in addition to those of its account.

    Example: `gateway token create alice --name laptop --expires 30d --models gpt-4o-mini --budget day=1`
    """
    made = await at.do(
        "tokens.create",
        account,
        name=name,
        expires_at=expires and expires.at(await at.zone()),
        models=names_in(models),
        addresses=names_in(addresses),
        budgets=given_budgets(budget),
        limits=given_limits(requests_per_minute, tokens_per_minute, concurrent),
    )
    print_notes(made.notes)
    await print_made(at, made, "\nThe token, which cannot be shown again:\n")


async def print_made(at: At, made: Any, said: str) -> None:
    """Print a new token, and its text below it."""
    await print_token(at, made)
    if not at.as_json:
        typer.echo(said, err=True)
        typer.echo(made.token)


@command(token, "list")
async def list_(
    at: At,
    account: Annotated[
        str | None,
        typer.Argument(metavar="ACCOUNT", help="The account's id, or `ext:` and its external id; none for all."),
    ] = None,
) -> None:
    """List an account's tokens, or those of all accounts by the accounts' ids.

    Example: `gateway token list alice`, or `gateway token list --json | jq -r 'select(.expires_at == null).id'`
    """
    if account is not None:
        empty = f"`{account}` has no tokens. Create one: gateway token create {account}"
        found = await at.lines("tokens.list_", account, size=PAGE)
        await at.print(found, COLUMNS, _cells, optional=OPTIONAL, empty=empty)
        return
    empty = "There are no tokens yet. Create one: gateway token create ACCOUNT"
    async for page in at.pages("tokens.list_all", size=PAGE):  # no more of them are in memory
        await at.print(page.data, COLUMNS, _cells, optional=OPTIONAL, empty=empty)


@command(token)
async def show(at: At, token_id: IdArgument) -> None:
    """Show one token: its state, when it was last used, what it may do; never the token itself.

    Example: `gateway token show alice-1a2b3c4d`
    """
    await print_token(at, await at.do("tokens.read", token_id))


@command(token, "set")
async def set_(
    at: At,
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
) -> None:
    """Change a token, from its next request on. What is not given stays as it is; `--expires none` lets it never expire.

    Example: `gateway token set alice-1a2b3c4d --expires 2027-01-31 --models gpt-* --budget day=1 --budget total=none`
    """
    changed = await at.change(
        "tokens.change",
        token_id,
        "gateway token set alice-1a2b3c4d --expires 30d",
        name=given(name),
        expires_at=UNSET if expires is None else expires.at(await at.zone()),
        models=UNSET if models is None else names_in(models),
        addresses=UNSET if addresses is None else names_in(addresses),
        budgets=given_budgets(budget),
        limits=given_limits(requests_per_minute, tokens_per_minute, concurrent),
    )
    await print_token(at, changed)


@command(token)
async def rotate(
    at: At,
    token_id: IdArgument,
    overlap: Annotated[
        int,
        typer.Option(
            parser=_overlap, metavar="TIME", help="For how long the old one is still accepted: 24h, 90m; 0 ends it now."
        ),
    ],
    expires: ExpiresOption = None,
) -> None:
    """Replace a token by a new one with the same settings, which is printed now and cannot be shown again.

    Both count in the same budgets and limits. With `--overlap 0`, requests in progress with the old one end as with `disable`.

    Example: `gateway token rotate alice-1a2b3c4d --overlap 24h`
    """
    expires_at = expires and expires.at(await at.zone())
    made = await at.do("tokens.rotate", token_id, overlap_s=overlap, expires_at=expires_at)
    until = "is no longer accepted" if not overlap else "is accepted until the overlap ends or it expires"
    await print_made(at, made, f"\n{token_id} {until}. The new token, which cannot be shown again:\n")


@command(token)
async def disable(at: At, token_id: IdArgument) -> None:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used.

    Example: `gateway token disable alice-1a2b3c4d`
    """
    await print_token(at, await at.do("tokens.disable", token_id))


@command(token)
async def enable(at: At, token_id: IdArgument) -> None:
    """Accept a disabled token again.

    Example: `gateway token enable alice-1a2b3c4d`
    """
    await print_token(at, await at.do("tokens.enable", token_id))


async def _delete(at: At, token_id: str) -> str:
    found = await at.do("tokens.read", token_id)
    return f"Delete `{found.id}` {found.name!r}?"


@command(token, sure=_delete)
async def delete(at: At, token_id: IdArgument) -> None:
    """Delete a token permanently. Its requests in progress end as with `disable`.

    Example: `gateway token delete alice-1a2b3c4d --yes`
    """
    await at.do("tokens.delete", token_id)
    if at.as_json:
        print_json({"id": token_id, "deleted": True})
    else:
        typer.echo(f"Deleted `{token_id}`.")


COLUMNS: Final = (
    *("id", "name", "status", "created", "expires", "last used (hour)"),
    *("models", "addresses", "budgets", "limits", "rotated"),
)
OPTIONAL: Final = ("rotated", "created", "addresses", "limits", "budgets", "models", "last used (hour)")
"""Columns that are left out where the terminal has no room, the first one first."""


async def print_token(at: At, token: ShownToken) -> None:
    """Print a token, for people or for scripts."""
    if at.as_json:
        from gateway.admin.actions.tokens import ShownToken

        fields = (*ShownToken.__struct_fields__, "token")
        print_json({name: getattr(token, name) for name in fields if hasattr(token, name)})
    else:
        print_fields(dict(zip(COLUMNS, _cells(token, await at.zone()), strict=True)))


def _cells(token: ShownToken, zone: tzinfo) -> tuple[str, ...]:
    return (
        token.id,
        token.name or "-",
        token.state,
        *(shown(moment, zone) for moment in (token.created_at, token.expires_at, token.last_used)),
        _restriction(token.models),
        _restriction(token.addresses),
        budgets_in_words(token.budgets, "-"),
        limits_in_words(token.limits, "-"),
        _rotation(token),
    )


def _rotation(token: ShownToken) -> str:
    """Return the successor of a token, or else its predecessor."""
    if token.replaced_by:
        return f"replaced by {token.replaced_by}"
    return f"replaces {token.replaces}" if token.replaces else "-"


def _restriction(names: Sequence[str]) -> str:
    return ", ".join(names) or "any"
