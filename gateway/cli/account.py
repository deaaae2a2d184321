"""`gateway account`: accounts, their balances, budgets and limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from gateway.cli.account_file import TRANSACTION, FileOption, import_, run_file
from gateway.cli.account_tables import fields_of, print_account, print_accounts
from gateway.cli.allowance import (
    BudgetOption,
    LimitOption,
    budget_reports,
    given_budgets,
    given_limits,
    report_in_words,
)
from gateway.cli.archive import archive
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    amount,
    configuration,
    micros,
    print_fields,
    print_json,
    run_with_store,
)
from gateway.cli.ledger import ledger
from gateway.cli.named import account_of, known_group, names_in, note_models
from gateway.facts import Budgets
from gateway.store.accounts import Account, AccountError, AccountStatus, unknown
from gateway.store.money.results import Credit, Credited

if TYPE_CHECKING:
    from gateway.services import Store

account = typer.Typer(no_args_is_help=True, help="Manage accounts: create, credit, limit, suspend, close.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(account, name="account")


def _positive(text: str) -> int:
    value = micros(text)
    if value <= 0:
        raise typer.BadParameter("give more than 0; to lower a balance, use `gateway account adjust`")
    return value


def _not_negative(text: str) -> int:
    value = micros(text)
    if value < 0:
        raise typer.BadParameter("give 0 or more")
    return value


def _transaction(text: str) -> str:
    if not TRANSACTION.fullmatch(text):
        raise typer.BadParameter("a transaction id is 1 to 64 letters, digits and . _ : -")
    return text


IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The account's id, or `ext:` and its external id, as in ext:user-17.")
]
ExternalIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="What the account is called elsewhere: an e-mail address, a customer number. At most 200 bytes; unique.",
    ),
]
GroupOption = Annotated[str | None, typer.Option(help="The account's user group, one of those in the configuration.")]
_TRANSACTION: Final = typer.Option(
    parser=_transaction,
    metavar="ID",
    help="An id of your choice for this transaction. It is booked once: repeating the command is safe.",
)
TransactionOption = Annotated[str, _TRANSACTION]


@account.command()
def create(
    account_id: Annotated[
        str, typer.Argument(metavar="ID", help="The new account's id: 3 to 32 characters, a-z and 0-9.")
    ],
    budget: BudgetOption,
    group: GroupOption = None,
    credit: Annotated[
        int | None, typer.Option(parser=_positive, metavar="AMOUNT", help="Credit this amount at once, such as 5.00.")
    ] = None,
    external_id: ExternalIdOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an account. The amount of `--credit` is booked with the transaction id `opening-ID`.

    Example: `gateway account create alice --group default --credit 5.00`
    """
    group = known_group(config, group or "default")

    async def work(store: Store) -> Account:
        text = external_id or ""
        async with store.external_ids.claimed(account_id, text):
            await store.accounts.create(account_id, group, budgets=Budgets(**given_budgets(budget)), external_id=text)
        if credit is not None:
            await store.wallet.credit(account_id, f"opening-{account_id}", credit)
        return await _existing(store, account_id)

    print_account(run_with_store(config, work), as_json)


@account.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all accounts with their balances, and what these add up to.

    Columns that the terminal has no room for are in JSON, which has no total.

    Example: `gateway account list --json | jq -r 'select(.balance_micros <= 0).id'`
    """

    async def work(store: Store) -> list[Account]:
        return sorted([each async for each in store.accounts.all()], key=lambda each: each.id)

    accounts = run_with_store(config, work)
    if as_json:
        for each in accounts:
            print_json(each)
        return
    print_accounts(accounts)


@account.command()
def show(account_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show an account: status, balance, held amount, limits, and how much of each budget is used.

    Example: `gateway account show alice --json`
    """
    settings = configuration(config)
    account_id = account_of(config, account_id)

    async def work(store: Store) -> tuple[Account, list[dict[str, object]]]:
        found = await _existing(store, account_id)
        return found, await budget_reports(store, settings, found)

    found, reports = run_with_store(config, work)
    if as_json:
        print_json(msgspec.to_builtins(found) | {"budget_use": reports})
    else:
        print_fields(fields_of(found) | dict(map(report_in_words, reports)))


@account.command()
def credit(
    account_id: IdArgument = "",
    value: Annotated[
        int | None, typer.Argument(parser=_positive, metavar="AMOUNT", help="The amount, such as 5.00.")
    ] = None,
    transaction: Annotated[str | None, _TRANSACTION] = None,
    file: FileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an amount to the balance, once for each transaction id.

    Example: `gateway account credit alice 5.00 --transaction invoice-2041`, or `gateway account credit --from payments.csv`
    """
    if file is not None:
        run_file(file, config, as_json, create=False)
        raise typer.Exit
    if value is None or not transaction:
        raise typer.BadParameter("give an account, an amount and --transaction, or a file with --from")
    account_id = account_of(config, account_id)

    async def work(store: Store) -> Account:
        _check(account_id, transaction, await store.wallet.credit(account_id, transaction, value))
        return await _existing(store, account_id)

    print_account(run_with_store(config, work), as_json)


@account.command(context_settings={"ignore_unknown_options": True})
def adjust(
    account_id: IdArgument,
    value: Annotated[int, typer.Argument(parser=micros, metavar="AMOUNT", help="The amount, such as 0.50 or -0.50.")],
    transaction: TransactionOption,
    reason: Annotated[str, typer.Option(help="The reason, which is kept in the ledger.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Correct the balance up or down, once for each transaction id.

    Example: `gateway account adjust alice -0.50 --transaction fix-17 --reason "credited twice by hand"`
    """
    account_id = account_of(config, account_id)

    async def work(store: Store) -> Account:
        _check(account_id, transaction, await store.wallet.adjust(account_id, transaction, value, reason))
        return await _existing(store, account_id)

    print_account(run_with_store(config, work), as_json)


@account.command("set")
def set_(
    account_id: IdArgument,
    budget: BudgetOption,
    group: GroupOption = None,
    credit_line: Annotated[
        int | None,
        typer.Option(
            parser=_not_negative, metavar="AMOUNT", help="How far the balance may fall below zero, such as 1.00."
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Allow only these of the group's models, as in `a,b` or `gpt-*`. Empty for all.")
    ] = None,
    external_id: ExternalIdOption = None,
    requests_per_minute: LimitOption = None,
    tokens_per_minute: LimitOption = None,
    concurrent: LimitOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change an account's settings. What is not given stays as it is.

    A budget or a limit of its own replaces that of its group for the same window or kind. An empty text takes the external id away.

    Example: `gateway account set alice --group trial --credit-line 1.00 --budget month=20 --requests-per-minute 600`
    """
    if group is not None:
        group = known_group(config, group)
    changed = given_limits(requests_per_minute, tokens_per_minute, concurrent)
    account_id = account_of(config, account_id)

    async def change(store: Store, before: Account) -> Account:
        return await store.accounts.change(
            account_id,
            group=group,
            credit_line=credit_line,
            models=None if models is None else names_in(models),
            limits=msgspec.structs.replace(before.limits, **changed) if changed else None,
            budgets=msgspec.structs.replace(before.budgets, **given_budgets(budget)) if budget else None,
            external_id=external_id,
        )

    async def work(store: Store) -> Account:
        before = await _existing(store, account_id)
        if external_id is None:
            return await change(store, before)
        async with store.external_ids.claimed(account_id, external_id):
            return await change(store, before)

    result = run_with_store(config, work)
    if models is not None or group is not None:
        settings = configuration(config)
        allowed = settings.groups[result.group].models if result.group in settings.groups else ()
        note_models(settings, names_in(models or ""), result.models, allowed, whose=f"`{account_id}`")
    print_account(result, as_json)


@account.command()
def suspend(account_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Refuse an account's requests until it is resumed. Those in progress end within two seconds, charged for what they used.

    Example: `gateway account suspend alice`
    """
    _set_status(config, account_id, AccountStatus.SUSPENDED, as_json)


@account.command()
def resume(account_id: IdArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Resume a suspended account.

    Example: `gateway account resume alice`
    """
    _set_status(config, account_id, AccountStatus.ACTIVE, as_json)


@account.command()
def close(
    account_id: IdArgument, yes: YesOption = False, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Close an account permanently. Its requests in progress end as with `suspend`; its history is kept.

    Example: `gateway account close alice --yes`
    """
    account_id = account_of(config, account_id)
    result = run_with_store(config, lambda store: _existing(store, account_id))
    if not yes:
        text = f"Close `{account_id}`, balance {amount(result.balance_micros)}, permanently?"
        typer.confirm(text, abort=True, err=True)
    _set_status(config, account_id, AccountStatus.CLOSED, as_json)


account.command()(ledger)
account.command()(archive)
account.command("import")(import_)


def _set_status(config: Path | None, account_id: str, status: AccountStatus, as_json: bool) -> None:
    account_id = account_of(config, account_id)
    print_account(run_with_store(config, lambda store: store.accounts.set_status(account_id, status)), as_json)


async def _existing(store: Store, account_id: str) -> Account:
    result = await store.accounts.get(account_id)
    if result is None:
        raise unknown(account_id)
    return result


def _check(account_id: str, transaction: str, credited: Credited) -> None:
    if credited.outcome is Credit.NO_ACCOUNT:
        raise unknown(account_id)
    if credited.outcome is Credit.CONFLICT:
        raise AccountError(
            f"the transaction `{transaction}` was booked before with another amount: nothing was changed"
        ).of_kind("conflict")
    if credited.outcome is Credit.DONE:
        typer.echo(f"The transaction `{transaction}` was booked before: nothing was changed.", err=True)
