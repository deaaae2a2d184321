"""`gateway token`: the tokens with which callers authenticate."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from msgspec import UNSET

from gateway.admin.actions.times import UNITS_S
from gateway.cli.account_options import (
    BudgetOption,
    TokenLimitOption,
    budgets_in_words,
    given_budgets,
    given_limits,
    limits_in_words,
)
from gateway.cli.client import ApiOption, account_at, names_in, print_notes, run_with_client, zone_at
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    confirm,
    nothing_given,
    print_fields,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from gateway.admin.actions.action import ActionClient, Page
    from gateway.admin.actions.tokens import ChangedToken, MadeToken
    from gateway.store.tokens import Token

LONGEST_OVERLAP_S: Final = 365 * 86_400

token = typer.Typer(no_args_is_help=True, help="Manage tokens: create, list, set, rotate, disable, enable, delete.")


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
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token. It is printed now and cannot be shown again.

    Its budgets and limits apply in addition to those of its account.

    Example: `gateway token create alice --name laptop --expires 30d --models gpt-4o-mini --budget day=1`
    """

    async def work(client: ActionClient) -> tuple[MadeToken, tzinfo]:
        from gateway.admin.actions import tokens
        from gateway.admin.actions.inputs import GivenBudgets, GivenLimits
        from gateway.admin.actions.tokens import NewToken

        zone = await zone_at(client)
        body = NewToken(
            name=name,
            expires_at=expires and expires.at(zone),
            models=tuple(names_in(models)),
            addresses=tuple(names_in(addresses)),
            budgets=GivenBudgets(**given_budgets(budget)),
            limits=GivenLimits(**given_limits(requests_per_minute, tokens_per_minute, concurrent)),
        )
        return await tokens.create(client, await account_at(client, account), body=body), zone

    created, zone = run_with_client(config, api, work)
    print_notes(created.notes)
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
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """List an account's tokens, or those of all accounts by the accounts' ids.

    Example: `gateway token list alice`, or `gateway token list --json | jq -r 'select(.expires_at == null).id'`
    """

    async def all_of(client: ActionClient, name: str) -> tuple[str, list[Token], tzinfo]:
        from gateway.admin.actions import tokens
        from gateway.admin.actions.tokens import TokenList

        account_id = await account_at(client, name)
        found: list[Token] = []
        async for page in _pages(lambda after: tokens.list_(client, account_id, query=TokenList(PAGE, after))):
            found += page.data
        return account_id, found, await zone_at(client)

    if account is None:
        run_with_client(config, api, lambda client: _print_all(client, as_json))
        return
    name, found, zone = run_with_client(config, api, lambda client: all_of(client, account))
    print_tokens(found, zone, as_json, empty=f"`{name}` has no tokens. Create one: gateway token create {name}")


async def _print_all(client: ActionClient, as_json: bool) -> None:
    """Print the tokens of all accounts in tables of `PAGE`, so that no more of them are in memory."""
    from gateway.admin.actions import tokens
    from gateway.admin.actions.tokens import TokenList

    zone = await zone_at(client)
    empty = "There are no tokens yet. Create one: gateway token create ACCOUNT"
    async for page in _pages(lambda after: tokens.list_all(client, query=TokenList(PAGE, after))):
        print_tokens(page.data, zone, as_json, empty=empty)


async def _pages(read: Callable[[str], Awaitable[Page[Token]]]) -> AsyncIterator[Page[Token]]:
    """Yield all pages of a list, which `read` returns by the `next` of the one before."""
    after: str | None = ""
    while after is not None:
        page = await read(after)
        yield page
        after = page.next


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
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a token, from its next request on. What is not given stays as it is; `--expires none` lets it never expire.

    Example: `gateway token set alice-1a2b3c4d --expires 2027-01-31 --models gpt-* --budget day=1 --budget total=none`
    """
    limits = given_limits(requests_per_minute, tokens_per_minute, concurrent)

    async def work(client: ActionClient) -> tuple[ChangedToken, tzinfo]:
        from gateway.admin.actions import tokens
        from gateway.admin.actions.inputs import GivenBudgets, GivenLimits
        from gateway.admin.actions.tokens import TokenChange

        zone = await zone_at(client)
        body = TokenChange(
            name=UNSET if name is None else name,
            expires_at=UNSET if expires is None else expires.at(zone),
            models=UNSET if models is None else tuple(names_in(models)),
            addresses=UNSET if addresses is None else tuple(names_in(addresses)),
            budgets=GivenBudgets(**given_budgets(budget)),
            limits=GivenLimits(**limits),
        )
        if body == TokenChange(budgets=GivenBudgets(), limits=GivenLimits()):
            raise nothing_given("gateway token set alice-1a2b3c4d --expires 30d")
        return await tokens.change(client, token_id, body=body), zone

    changed, zone = run_with_client(config, api, work)
    print_notes(changed.notes)
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
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a token by a new one with the same settings, which is printed now and cannot be shown again.

    Both count in the same budgets and limits. With `--overlap 0`, requests in progress with the old one end as with `disable`.

    Example: `gateway token rotate alice-1a2b3c4d --overlap 24h`
    """

    async def work(client: ActionClient) -> tuple[MadeToken, tzinfo]:
        from gateway.admin.actions import tokens
        from gateway.admin.actions.tokens import Rotation

        zone = await zone_at(client)
        return await tokens.rotate(client, token_id, body=Rotation(overlap, expires and expires.at(zone))), zone

    created, zone = run_with_client(config, api, work)
    print_token(created, zone, as_json)
    if not as_json:
        until = "is no longer accepted" if not overlap else "is accepted until the overlap ends or it expires"
        typer.echo(f"\n{token_id} {until}. The new token, which cannot be shown again:\n", err=True)
        typer.echo(created.token)


@token.command()
def disable(
    token_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Refuse requests with a token until it is enabled. Those in progress end within two seconds, charged for what they used.

    Example: `gateway token disable alice-1a2b3c4d`
    """

    async def work(client: ActionClient) -> tuple[Token, tzinfo]:
        from gateway.admin.actions import tokens

        return await tokens.disable(client, token_id), await zone_at(client)

    print_token(*run_with_client(config, api, work), as_json)


@token.command()
def enable(
    token_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Accept a disabled token again.

    Example: `gateway token enable alice-1a2b3c4d`
    """

    async def work(client: ActionClient) -> tuple[Token, tzinfo]:
        from gateway.admin.actions import tokens

        return await tokens.enable(client, token_id), await zone_at(client)

    print_token(*run_with_client(config, api, work), as_json)


@token.command()
def delete(
    token_id: IdArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a token permanently. Its requests in progress end as with `disable`.

    Example: `gateway token delete alice-1a2b3c4d --yes`
    """

    async def look(client: ActionClient) -> Token:
        from gateway.admin.actions import tokens

        return await tokens.read(client, token_id)

    async def work(client: ActionClient) -> None:
        from gateway.admin.actions import tokens

        await tokens.delete(client, token_id)

    if not yes:
        found = run_with_client(config, api, look)
        confirm(f"Delete `{found.id}` {found.name!r}?")
    run_with_client(config, api, work)
    if as_json:
        print_json({"id": token_id, "deleted": True})
    else:
        typer.echo(f"Deleted `{token_id}`.")

NEVER: Final = "none"
LATEST_S: Final = round(datetime(9000, 1, 1, tzinfo=UTC).timestamp())
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")


class Expiry(NamedTuple):
    """One `--expires`: seconds from now, or a date in the configured time zone; neither for never."""

    text: str
    after_s: int = 0
    date: datetime | None = None

    def at(self, zone: tzinfo) -> int | None:
        """Return the time in seconds since 1970; None for never. Raises `typer.BadParameter` for one that is past."""
        if self.text == NEVER:
            return None
        now = time.time()
        moment = int(now) + self.after_s if self.date is None else round(self.date.replace(tzinfo=zone).timestamp())
        if moment <= now:
            raise typer.BadParameter(f"`{self.text}` is past: it is {shown(round(now), zone)} now")
        if moment > LATEST_S:
            raise typer.BadParameter(f"`{self.text}` is too late: give a time before the year 9000")
        return moment


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


def shown(seconds: int | None, zone: tzinfo) -> str:
    """Return a time in words: to the minute, with the name of its zone unless it is UTC."""
    if seconds is None:
        return "never"
    moment = datetime.fromtimestamp(seconds, zone)
    return moment.strftime("%Y-%m-%d %H:%M" if zone is UTC else "%Y-%m-%d %H:%M %Z")


ExpiresOption = Annotated[
    Expiry | None,
    typer.Option(
        parser=expiry,
        metavar="TIME",
        help="When the token expires: 30d, 12h, 90m, or 2027-01-31, 2027-01-31T18:00 in the configuration's time zone. "
        "A date alone is its first moment.",
    ),
]

COLUMNS: Final = (
    *("id", "name", "status", "created", "expires", "last used (hour)"),
    *("models", "addresses", "budgets", "limits", "rotated"),
)
OPTIONAL: Final = ("rotated", "created", "addresses", "limits", "budgets", "models", "last used (hour)")
"""Columns that are left out where the terminal has no room, the first one first."""


def print_token(token: Token, zone: tzinfo, as_json: bool) -> None:
    """Print a token, for people with times in a time zone, or for scripts."""
    if as_json:
        from gateway.store.tokens import Created

        print_json({name: getattr(token, name) for name in Created.__struct_fields__ if hasattr(token, name)})
    else:
        print_fields(dict(zip(COLUMNS, _cells(token, zone), strict=True)))


def print_tokens(tokens: Sequence[Token], zone: tzinfo, as_json: bool, *, empty: str) -> None:
    """Print tokens as a table, or for scripts one on each line."""
    if as_json:
        for token in tokens:
            print_json(token)
    else:
        print_table(COLUMNS, (_cells(token, zone) for token in tokens), optional=OPTIONAL, empty=empty)


def _cells(token: Token, zone: tzinfo) -> tuple[str, ...]:
    return (
        token.id,
        token.name or "-",
        token.state,
        *(shown(seconds, zone) for seconds in (token.created_at, token.expires_at, token.last_used)),
        _restriction(token.models),
        _restriction(token.addresses),
        budgets_in_words(token.budgets, "-"),
        limits_in_words(token.limits, "-"),
        _rotation(token),
    )


def _rotation(token: Token) -> str:
    """Return the successor of a token, or else its predecessor."""
    if token.replaced_by:
        return f"replaced by {token.replaced_by}"
    return f"replaces {token.replaces}" if token.replaces else "-"


def _restriction(names: Sequence[str]) -> str:
    return ", ".join(names) or "any"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(token, name="token")
