"""`gateway account`: accounts with their money, limits, budgets, ledgers and archives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer
from msgspec import UNSET

from gateway.admin.actions.times import local
from gateway.base.amounts import amount
from gateway.base.ids import utc
from gateway.base.text import counted, names_in, printable
from gateway.cli.access import account_link
from gateway.cli.account_file import FileOption, import_, run_file
from gateway.cli.account_options import (
    TRANSACTION_OPTION,
    BudgetOption,
    ExternalIdOption,
    GroupOption,
    IdArgument,
    LimitOption,
    NameOption,
    TransactionOption,
    budgets_in_words,
    given,
    given_budgets,
    given_limits,
    limits_in_words,
    not_negative,
    positive,
    report_in_words,
)
from gateway.cli.client import USUAL, At, command, noted
from gateway.cli.common import (
    micros,
    point_in_time,
    print_csv,
    print_fields,
    print_json,
    print_table,
    refuse,
)
from gateway.store.money.archive import YOUNGEST_S, Archive, ArchiveError, Archiver

if TYPE_CHECKING:
    from gateway.admin.actions.accounts import ListedAccount
    from gateway.admin.actions.money import Ledger
    from gateway.store.accounts import Account
    from gateway.store.money.ledger import Line

PAGE: Final = 1000
"""Accounts or lines of a ledger that are asked for at once."""


account = typer.Typer()


@command(account)
async def create(
    at: At,
    budget: BudgetOption,
    account_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The new account's id: 3 to 32 characters, a-z and 0-9. Without one, it is made."
        ),
    ] = "",
    group: GroupOption = None,
    credit: Annotated[
        int | None, typer.Option(parser=positive, metavar="AMOUNT", help="Credit this amount at once, such as 5.00.")
    ] = None,
    external_id: ExternalIdOption = None,
    name: NameOption = None,
) -> None:
    """Create an account. The amount of `--credit` is booked with the transaction id `opening-ID`.

    Example: `gateway account create alice --group default --credit 5.00`
    """
    fields = {"id": account_id, "group": group or "default", "external_id": external_id or "", "name": name or ""}
    made = await at.do("accounts.create", **fields, budgets=given_budgets(budget))
    if credit is not None:
        await at.do("money.credit", made.id, transaction=f"opening-{made.id}", amount_micros=credit)
        made = await at.do("accounts.read", made.id)
    await print_account(at, made)


@command(account, "list")
async def list_(
    at: At,
    sort: Annotated[
        Literal["id", "balance", "used"],
        typer.Option(help="By id, the lowest balance first, or the fullest budget first."),
    ] = "id",
) -> None:
    """List all accounts with their balances, and what these add up to.

    `budget used`: of the fullest budget, of the account or of its group. Columns that the terminal has no room for are
    in JSON, which has no total.

    Examples: `gateway account list --sort used`, `gateway account list --json | jq -r 'select(.balance_micros <= 0).id'`
    """
    found = await at.lines("accounts.list_", size=PAGE)
    if sort == "balance":
        found.sort(key=lambda each: each.balance_micros)
    elif sort == "used":
        found.sort(key=lambda each: each.fullest.share if each.fullest else -1, reverse=True)
    if at.as_json:
        for each in found:
            print_json(json_of(each) | {"budget_use": each.budget_use})
    else:
        print_accounts(found)


@command(account)
async def show(at: At, account_id: IdArgument) -> None:
    """Show an account: status, balance, held amount, limits, and how much of each budget is used.

    Example: `gateway account show alice --json`
    """
    found = await at.do("accounts.read", account_id)
    if at.as_json:
        print_json(json_of(found) | {"budget_use": found.budget_use})
    else:
        fields = fields_of(found, await at.zone())
        fields["balance"] = f"{fields['balance']} {found.currency}".rstrip()
        print_fields(fields | dict(map(report_in_words, msgspec.to_builtins(found.budget_use))))


@command(account)
async def credit(
    at: At,
    account_id: IdArgument = "",
    value: Annotated[
        int | None, typer.Argument(parser=positive, metavar="AMOUNT", help="The amount, such as 5.00.")
    ] = None,
    transaction: Annotated[str | None, TRANSACTION_OPTION] = None,
    file: FileOption = None,
) -> None:
    """Add an amount to the balance, once for each transaction id.

    Example: `gateway account credit alice 5.00 --transaction invoice-2041`, or `gateway account credit --from payments.csv`
    """
    if file is not None:
        await run_file(at, file, create=False)
        return
    if value is None or not transaction:
        raise typer.BadParameter("give an account, an amount and --transaction, or a file with --from")
    await _booked(at, "money.credit", account_id, transaction=transaction, amount_micros=value)


@command(account, context_settings={"ignore_unknown_options": True})
async def adjust(
    at: At,
    account_id: IdArgument,
    value: Annotated[int, typer.Argument(parser=micros, metavar="AMOUNT", help="The amount, such as 0.50 or -0.50.")],
    transaction: TransactionOption,
    reason: Annotated[str, typer.Option(help="The reason, which is kept in the ledger.")],
) -> None:
    """Correct the balance up or down, once for each transaction id.

    Example: `gateway account adjust alice -0.50 --transaction fix-17 --reason "credited twice by hand"`
    """
    await _booked(at, "money.adjust", account_id, transaction=transaction, amount_micros=value, reason=reason)


@command(account)
async def refund(
    at: At,
    account_id: IdArgument,
    transaction: Annotated[str, typer.Argument(metavar="TRANSACTION", help="The id of the credit.")],
    value: Annotated[
        int | None,
        typer.Argument(parser=positive, metavar="AMOUNT", help="How much of it; without it, all that is left."),
    ] = None,
    number: Annotated[int, typer.Option(min=1, help="2 for a second refund of the credit, and so on.")] = 1,
) -> None:
    """Take a credit back, or a part of it, once for each number. The balance stops at what is held, or at zero.

    Example: `gateway account refund alice invoice-2041`
    """
    booked = await at.do("money.refund", account_id, transaction, amount_micros=value, number=number)
    told = (
        f"was refunded before: nothing was changed; --number {number + 1} is a further refund"
        if booked.booked_before
        else "is refunded"
    )
    typer.echo(f"{amount(-booked.amount_micros)} {told}.", err=True)
    await print_account(at, await at.do("accounts.read", account_id))


async def _booked(at: At, action: str, account_id: str, **fields: Any) -> None:
    """Book a transaction, and print the account after it."""
    booked = await at.do(action, account_id, **fields)
    if booked.booked_before:
        typer.echo(f"The transaction `{booked.transaction}` was booked before: nothing was changed.", err=True)
    await print_account(at, await at.do("accounts.read", account_id))


@command(account, "set")
async def set_(
    at: At,
    account_id: IdArgument,
    budget: BudgetOption,
    group: GroupOption = None,
    credit_line: Annotated[
        int | None,
        typer.Option(
            parser=not_negative, metavar="AMOUNT", help="How far the balance may fall below zero, such as 1.00."
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Allow only these of the group's models, as in `a,b` or `gpt-*`. Empty for all.")
    ] = None,
    external_id: ExternalIdOption = None,
    name: NameOption = None,
    requests_per_minute: LimitOption = None,
    tokens_per_minute: LimitOption = None,
    concurrent: LimitOption = None,
) -> None:
    """Change an account's settings. What is not given stays as it is.

    A budget or a limit of its own replaces that of its group for the same window or kind. An empty text takes the external id
    or the name away.

    Example: `gateway account set alice --group trial --credit-line 1.00 --budget month=20 --requests-per-minute 600`
    """
    changed = await at.change(
        "accounts.change",
        account_id,
        "gateway account set alice --group trial",
        group=given(group),
        credit_line_micros=given(credit_line),
        models=UNSET if models is None else names_in(models),
        limits=given_limits(requests_per_minute, tokens_per_minute, concurrent),
        budgets=given_budgets(budget),
        external_id=given(external_id),
        name=given(name),
    )
    await print_account(at, changed)


@command(account)
async def suspend(at: At, account_id: IdArgument) -> None:
    """Refuse an account's requests until it is resumed. Those in progress end within two seconds, charged for what they used.

    Example: `gateway account suspend alice`
    """
    await print_account(at, await at.do("accounts.change", account_id, status="suspended"))


@command(account)
async def resume(at: At, account_id: IdArgument) -> None:
    """Resume a suspended account.

    Example: `gateway account resume alice`
    """
    await print_account(at, await at.do("accounts.change", account_id, status="active"))


async def _close(at: At, account_id: str) -> str:
    found = await at.do("accounts.read", account_id)
    return f"Close `{found.id}`, balance {amount(found.balance_micros)}, permanently?"


@command(account, sure=_close)
async def close(at: At, account_id: IdArgument) -> None:
    """Close an account permanently. Its requests in progress end as with `suspend`; its history is kept.

    Example: `gateway account close alice --yes`
    """
    await print_account(at, await at.do("accounts.close", account_id))


OPTIONAL: Final = ("own limits", "own budgets", "credit line", "held")
"""Columns that are left out where the terminal has no room, the first one first."""


async def print_account(at: At, account: Account) -> None:
    """Print an account, for people or for scripts."""
    if at.as_json:
        print_json(json_of(account))
    else:
        print_fields(fields_of(account, await at.zone()))


def json_of(account: Account) -> dict[str, Any]:
    """Return what scripts read of an account: also of one with further fields, these alone."""
    from gateway.store.accounts import Account

    return {name: getattr(account, name) for name in Account.__struct_fields__}


def fields_of(account: Account, zone: tzinfo) -> dict[str, str]:
    """Return what people read of an account, by its names."""
    own = {
        "name": account.name,
        "external id": account.external_id,
        "created": account.created_at and local(account.created_at, zone),
    }
    return {
        "id": account.id,
        **{name: printable(text) for name, text in own.items() if text},
        "status": account.status,
        "group": account.group,
        "balance": amount(account.balance_micros),
        "held": f"{amount(account.held_micros)} by {counted(account.holds, 'request')}",
        "credit line": amount(account.credit_line_micros),
        "models": ", ".join(account.models) or "all that the group allows",
        "own budgets": budgets_in_words(account.budgets),
        "own limits": limits_in_words(account.limits),
    }


def print_accounts(accounts: Sequence[ListedAccount]) -> None:
    """Print accounts, and below several of them the sums of their balances and of what is held.

    There is a column for external ids if there are any.
    """
    external = any(account.external_id for account in accounts)
    columns = ["id", "status", "group", "balance", "held", "budget used", "credit line", "own budgets", "own limits"]
    rows = [
        [
            each.id,
            str(each.status),
            each.group,
            amount(each.balance_micros),
            amount(each.held_micros),
            f"{100 * used.share:.0f} % of {used.name}" if (used := each.fullest) else "-",
            amount(each.credit_line_micros),
            budgets_in_words(each.budgets, "-"),
            limits_in_words(each.limits, "-"),
        ]
        for each in accounts
    ]
    if several := len(rows) > 1:
        balance, held = sum(each.balance_micros for each in accounts), sum(each.held_micros for each in accounts)
        rows.append(["total", "", "", amount(balance), amount(held), "", "", "", ""])
    if external:
        names = [printable(each.external_id) or "-" for each in accounts]
        columns.insert(1, "external id")
        for name, row in zip([*names, ""], rows, strict=False):
            row.insert(1, name)
    print_table(
        columns,
        rows,
        total=several,
        optional=OPTIONAL,
        empty="There are no accounts yet. Create one: gateway account create alice --credit 5.00",
    )


ARCHIVED: Final = "archived"


@command(account, options=(*USUAL, "as_csv"))
async def ledger(
    at: At,
    account_id: Annotated[str, typer.Argument(metavar="ID", help="The account's id.")],
    kind: Annotated[
        Literal["credit", "adjust", "charge", "release", "expiry", "late"] | None,
        typer.Option(help="Only the lines of this kind."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many lines to list at most.")] = 50,
) -> None:
    """List what changed an account's balance, newest first: credits, adjustments, and the charge of each request.

    `charge`: what a request cost. `release`: a request that cost nothing. `expiry`: a request that was not settled, because its
    gateway died, and what was charged for it; `late`: the correction of that. The last line sums up what was archived.

    Example: `gateway account ledger alice --limit 1000 --csv > alice.csv`
    """
    pages = [page async for page in at.pages("money.ledger", account_id, size=PAGE, most=limit, kind=kind)]
    rows = [*(_row(line) for page in pages for line in page.data), *_archived(pages[-1])]
    if at.as_csv:
        print_csv(rows)
    else:
        which = f"no line of the kind `{kind}`" if kind else "no lines yet"
        empty = f"The ledger of `{account_id}` has {which}."
        await at.print(rows, ("time", "kind", "amount", "request or transaction"), _cells, empty=empty)
    if pages[-1].next:
        typer.echo(f"note: there are older lines; --limit {limit * 10} lists more of them", err=True)


def _row(line: Line) -> dict[str, Any]:
    return msgspec.structs.asdict(line)


def _archived(found: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the line for what was archived, where the list reaches it."""
    archived = found.archived
    if archived is not None and not found.next:
        from gateway.store.money.ledger import Line

        text = f"{archived.lines} older lines, moved by `gateway account archive`"
        yield _row(Line("", archived.until, ARCHIVED, archived.amount_micros, reason=text))


def _cells(row: dict[str, Any], zone: tzinfo) -> Sequence[str]:
    subject = " ".join(filter(None, (row["request_id"], row["transaction"], row["reason"])))
    return local(row["at"], zone), row["kind"], amount(row["amount_micros"]), printable(subject)


def _before_ms(text: str) -> int:
    before_ms = point_in_time(text)
    if before_ms > (time.time() - YOUNGEST_S) * 1000:
        raise typer.BadParameter(
            f"give a time at least {YOUNGEST_S / 60:.0f} minutes ago: until then, a charge may be repeated"
        )
    return before_ms


@command(account, options=("config", "as_json"))
async def archive(
    at: At,
    before: Annotated[
        int,
        typer.Option(
            parser=_before_ms,
            metavar="TIME",
            help="Move lines from before this time: 90d, or a day as in 2026-11-21 (UTC).",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The archive folder. Always use the same one, on a disk that is backed up."),
    ],
    account_id: Annotated[str | None, typer.Argument(metavar="ID", help="The account's id, or give `--all`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Archive all accounts.")] = False,
) -> None:
    """Move old ledger lines into `DIR/ID.jsonl` to free memory of the store. Balances do not change.

    Lines are written to the disk before the store deletes them. If the command is interrupted, run it again. To check the files,
    run `gateway verify --archive DIR`.

    Example: `gateway account archive --all --before 90d --to /var/lib/sluicegate/archive`
    """
    if every == (account_id is not None):
        raise typer.BadParameter("give the id of one account, or --all")
    store = at.local.store
    if account_id is not None:
        account_id = (await at.do("accounts.read", account_id)).id
    archiver, failed = Archiver(store.settling, Archive(to)), 0
    names = [account_id] if account_id else sorted([each.id async for each in store.accounts.all()])
    async with noted(store, "accounts.archive", account=account_id or "(all)", before=utc(before), to=str(to)):
        for name in names:
            lines, error, file = 0, "", archiver.archive.file(name)
            try:
                lines = await archiver.move(name, before)
            except ArchiveError as wrong:  # in its file, which does not stop the others
                error, failed = str(wrong), failed + 1
            if at.as_json:
                print_json({"account": name, "file": file, "lines": lines, "error": error})
            elif error:
                typer.echo(f"gateway: {error}", err=True)
            elif lines:
                typer.echo(f"{name}: {counted(lines, 'line')} moved to {file}")
    if failed:
        raise refuse(f"{failed} ledgers were not archived completely")


command(account, "link")(account_link)
command(account, "import")(import_)
