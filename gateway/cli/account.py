"""`gateway account`: accounts, their balances, budgets and limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import typer

from gateway.cli.account_file import FileOption, import_, run_file
from gateway.cli.account_link import link
from gateway.cli.account_options import (
    TRANSACTION_OPTION,
    ExternalIdOption,
    GroupOption,
    IdArgument,
    TransactionOption,
    not_negative,
    positive,
)
from gateway.cli.account_tables import fields_of, json_of, print_account, print_accounts
from gateway.cli.allowance import BudgetOption, LimitOption, given_budgets, given_limits, report_in_words
from gateway.cli.archive import archive
from gateway.cli.client import ApiOption, run_with_client
from gateway.cli.common import (
    ConfigOption,
    JsonOption,
    YesOption,
    amount,
    confirm,
    micros,
    nothing_given,
    print_fields,
    print_json,
)
from gateway.cli.ledger import ledger
from gateway.cli.named import account_at, names_in, print_notes

if TYPE_CHECKING:
    from gateway.admin.actions.accounts import AccountNow, ChangedAccount
    from gateway.admin.actions.action import ActionClient
    from gateway.admin.actions.money import Booked
    from gateway.store.accounts import Account

PAGE: Final = 1000
"""Accounts that are asked for at once."""

account = typer.Typer(no_args_is_help=True, help="Manage accounts: create, credit, limit, suspend, close.")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(account, name="account")


@account.command()
def create(
    account_id: Annotated[
        str, typer.Argument(metavar="ID", help="The new account's id: 3 to 32 characters, a-z and 0-9.")
    ],
    budget: BudgetOption,
    group: GroupOption = None,
    credit: Annotated[
        int | None, typer.Option(parser=positive, metavar="AMOUNT", help="Credit this amount at once, such as 5.00.")
    ] = None,
    external_id: ExternalIdOption = None,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an account. The amount of `--credit` is booked with the transaction id `opening-ID`.

    Example: `gateway account create alice --group default --credit 5.00`
    """

    async def work(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts, money
        from gateway.admin.actions.accounts import NewAccount
        from gateway.admin.actions.inputs import GivenBudgets
        from gateway.admin.actions.money import NewCredit

        budgets = GivenBudgets(**given_budgets(budget))
        body = NewAccount(account_id, group or "default", budgets=budgets, external_id=external_id or "")
        created = await accounts.create(client, body=body)
        if credit is None:
            return created
        await money.credit(client, account_id, body=NewCredit(f"opening-{account_id}", credit))
        return await accounts.read(client, account_id)

    print_account(run_with_client(config, api, work), as_json)


@account.command("list")
def list_(config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False) -> None:
    """List all accounts with their balances, and what these add up to.

    Columns that the terminal has no room for are in JSON, which has no total.

    Example: `gateway account list --json | jq -r 'select(.balance_micros <= 0).id'`
    """

    async def work(client: ActionClient) -> list[Account]:
        from gateway.admin.actions import accounts
        from gateway.admin.actions.accounts import AccountQuery

        found: list[Account] = []
        after: str | None = ""
        while after is not None:
            page = await accounts.list_(client, query=AccountQuery(PAGE, after))
            found += page.data
            after = page.next
        return found

    found = run_with_client(config, api, work)
    if as_json:
        for each in found:
            print_json(each)
        return
    print_accounts(found)


@account.command()
def show(
    account_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Show an account: status, balance, held amount, limits, and how much of each budget is used.

    Example: `gateway account show alice --json`
    """

    async def work(client: ActionClient) -> AccountNow:
        from gateway.admin.actions import accounts

        return await accounts.read(client, await account_at(client, account_id))

    found = run_with_client(config, api, work)
    if as_json:
        print_json(json_of(found) | {"budget_use": found.budget_use})
    else:
        print_fields(fields_of(found) | dict(map(report_in_words, msgspec.to_builtins(found.budget_use))))


@account.command()
def credit(
    account_id: IdArgument = "",
    value: Annotated[
        int | None, typer.Argument(parser=positive, metavar="AMOUNT", help="The amount, such as 5.00.")
    ] = None,
    transaction: Annotated[str | None, TRANSACTION_OPTION] = None,
    file: FileOption = None,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an amount to the balance, once for each transaction id.

    Example: `gateway account credit alice 5.00 --transaction invoice-2041`, or `gateway account credit --from payments.csv`
    """
    if file is not None:
        run_file(file, config, api, as_json, create=False)
        raise typer.Exit
    if value is None or not transaction:
        raise typer.BadParameter("give an account, an amount and --transaction, or a file with --from")

    async def work(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts, money
        from gateway.admin.actions.money import NewCredit

        name = await account_at(client, account_id)
        _note(await money.credit(client, name, body=NewCredit(transaction, value)))
        return await accounts.read(client, name)

    print_account(run_with_client(config, api, work), as_json)


@account.command(context_settings={"ignore_unknown_options": True})
def adjust(
    account_id: IdArgument,
    value: Annotated[int, typer.Argument(parser=micros, metavar="AMOUNT", help="The amount, such as 0.50 or -0.50.")],
    transaction: TransactionOption,
    reason: Annotated[str, typer.Option(help="The reason, which is kept in the ledger.")],
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Correct the balance up or down, once for each transaction id.

    Example: `gateway account adjust alice -0.50 --transaction fix-17 --reason "credited twice by hand"`
    """

    async def work(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts, money
        from gateway.admin.actions.money import NewAdjustment

        name = await account_at(client, account_id)
        _note(await money.adjust(client, name, body=NewAdjustment(transaction, value, reason)))
        return await accounts.read(client, name)

    print_account(run_with_client(config, api, work), as_json)


@account.command("set")
def set_(
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
    requests_per_minute: LimitOption = None,
    tokens_per_minute: LimitOption = None,
    concurrent: LimitOption = None,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change an account's settings. What is not given stays as it is.

    A budget or a limit of its own replaces that of its group for the same window or kind. An empty text takes the external id away.

    Example: `gateway account set alice --group trial --credit-line 1.00 --budget month=20 --requests-per-minute 600`
    """
    limits = given_limits(requests_per_minute, tokens_per_minute, concurrent)

    async def work(client: ActionClient) -> ChangedAccount:
        from gateway.admin.actions import accounts
        from gateway.admin.actions.accounts import AccountChange
        from gateway.admin.actions.inputs import GivenBudgets, GivenLimits

        given = {
            "group": group,
            "credit_line_micros": credit_line,
            "models": None if models is None else tuple(names_in(models)),
            "limits": GivenLimits(**limits) if limits else None,
            "budgets": GivenBudgets(**given_budgets(budget)) if budget else None,
            "external_id": external_id,
        }
        body = AccountChange(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if body == AccountChange():
            raise nothing_given("gateway account set alice --group trial")
        return await accounts.change(client, await account_at(client, account_id), body=body)

    changed = run_with_client(config, api, work)
    print_notes(changed.notes)
    print_account(changed, as_json)


@account.command()
def suspend(
    account_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Refuse an account's requests until it is resumed. Those in progress end within two seconds, charged for what they used.

    Example: `gateway account suspend alice`
    """
    _set_status(config, api, account_id, "suspended", as_json)


@account.command()
def resume(
    account_id: IdArgument, config: ConfigOption = None, api: ApiOption = None, as_json: JsonOption = False
) -> None:
    """Resume a suspended account.

    Example: `gateway account resume alice`
    """
    _set_status(config, api, account_id, "active", as_json)


@account.command()
def close(
    account_id: IdArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    api: ApiOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close an account permanently. Its requests in progress end as with `suspend`; its history is kept.

    Example: `gateway account close alice --yes`
    """

    async def look(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts

        return await accounts.read(client, await account_at(client, account_id))

    async def work(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts

        return await accounts.close(client, await account_at(client, account_id))

    if not yes:
        found = run_with_client(config, api, look)
        text = f"Close `{found.id}`, balance {amount(found.balance_micros)}, permanently?"
        confirm(text)
    print_account(run_with_client(config, api, work), as_json)


account.command()(ledger)
account.command()(archive)
account.command()(link)
account.command("import")(import_)


def _set_status(
    config: Path | None, api: str | None, account_id: str, status: Literal["active", "suspended"], as_json: bool
) -> None:
    async def work(client: ActionClient) -> Account:
        from gateway.admin.actions import accounts
        from gateway.admin.actions.accounts import AccountChange

        return await accounts.change(client, await account_at(client, account_id), body=AccountChange(status=status))

    print_account(run_with_client(config, api, work), as_json)


def _note(booked: Booked) -> None:
    if booked.booked_before:
        typer.echo(f"The transaction `{booked.transaction}` was booked before: nothing was changed.", err=True)
