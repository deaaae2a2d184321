"""The arguments and options of the account commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import typer
from msgspec import UNSET, UnsetType

from gateway.cli.account_file import TRANSACTION
from gateway.cli.common import amount, micros
from gateway.config.schema import LARGEST_BUDGET, LARGEST_BUDGET_AMOUNT, LARGEST_RATE
from gateway.domain.budgets import OF_REQUESTS
from gateway.domain.facts import AccountLimits, Budgets

if TYPE_CHECKING:
    from gateway.admin.actions.inputs import GivenBudgets, GivenLimits

Result = TypeVar("Result")


def positive(text: str) -> int:
    """Convert an amount of more than 0 to micros. Raises `typer.BadParameter`."""
    value = micros(text)
    if value <= 0:
        raise typer.BadParameter("give more than 0; to lower a balance, use `gateway account adjust`")
    return value


def not_negative(text: str) -> int:
    """Convert an amount of 0 or more to micros. Raises `typer.BadParameter`."""
    value = micros(text)
    if value < 0:
        raise typer.BadParameter("give 0 or more")
    return value


def transaction(text: str) -> str:
    """Return a transaction id. Raises `typer.BadParameter` for what is none."""
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
NameOption = Annotated[str | None, typer.Option(metavar="TEXT", help="To recognise the account by, for people.")]
GroupOption = Annotated[str | None, typer.Option(help="The account's user group, one of those in the configuration.")]
TRANSACTION_OPTION: Final = typer.Option(
    parser=transaction,
    metavar="ID",
    help="An id of your choice for this transaction. It is booked once: repeating the command is safe.",
)
TransactionOption = Annotated[str, TRANSACTION_OPTION]

WINDOWS: Final = Budgets.__struct_fields__
NONE: Final = "none"


class GivenBudget(NamedTuple):
    """One `--budget`: the field of `Budgets`, and its value; None takes it away."""

    window: str
    value: int | None


def _budget(text: str) -> GivenBudget:
    window, _, value = (part.strip() for part in text.partition("="))
    if window not in WINDOWS or not value:
        lacks = "amount" if window in WINDOWS else "window"
        raise typer.BadParameter(
            f"`{text}` names no {lacks}: write day=0.50, week=2, month=5, total=100, requests=1000 or session=5"
        )
    if value == NONE:
        return GivenBudget(window, None)
    if window in OF_REQUESTS:
        if not re.fullmatch(r"[1-9][0-9]{0,14}", value):
            raise typer.BadParameter(f"`{text}` is not a number of requests; write {window}=1000, or {window}={NONE}")
        return GivenBudget(window, int(value))
    if not 0 < (given := micros(value)) <= LARGEST_BUDGET:
        raise typer.BadParameter(
            f"`{text}` is no budget: give more than 0 and at most {LARGEST_BUDGET_AMOUNT}, or {window}={NONE}"
        )
    return GivenBudget(window, given)


def _once(given: Sequence[GivenBudget]) -> Sequence[GivenBudget]:
    windows = [each.window for each in given]
    for window in windows:
        if windows.count(window) > 1:
            raise typer.BadParameter(f"the window {window} is given more than once")
    return given


BudgetOption = Annotated[
    list[GivenBudget],
    typer.Option(
        "--budget",
        parser=_budget,
        callback=_once,
        default_factory=list,
        show_default=False,
        metavar="WINDOW=AMOUNT",
        help="A budget: day=0.50, week=2, month=5, total=100, requests=1000 (a day), session=5 or session_requests=500 (of each); "
        "several by repeating the option. AMOUNT `none` takes it away.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(min=0, max=LARGEST_RATE, metavar="N", help="A limit of its own; 0 for the configured one.")
]
TokenLimitOption = Annotated[
    int | None, typer.Option(min=0, max=LARGEST_RATE, metavar="N", help="A limit of this token alone; 0 for none.")
]


def given(value: Result | None) -> Result | UnsetType:
    """Return what an option says, or UNSET where it is not there."""
    return UNSET if value is None else value


def given_budgets(options: Sequence[GivenBudget]) -> GivenBudgets | UnsetType:
    """Return the budgets that the options set or take away; UNSET where there are none."""
    from gateway.admin.actions.inputs import GivenBudgets

    return GivenBudgets(**{each.window: each.value for each in options}) if options else UNSET


def given_limits(*options: int | None) -> GivenLimits | UnsetType:
    """Return the limits that the options set, or take away by 0; UNSET where there are none. In the order of their names."""
    from gateway.admin.actions.inputs import GivenLimits

    given = zip(AccountLimits.__struct_fields__, options, strict=True)
    limits = {name: value or None for name, value in given if value is not None}
    return GivenLimits(**limits) if limits else UNSET


def report_in_words(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a budget and its use, as people read them: `budget, day` and `0.12 of 0.50, until ...`."""
    if "used_requests" in report:
        name, used = "requests a day", f"{report['used_requests']} of {report['limit_requests']}"
    else:
        name, used = report["window"], f"{amount(report['used_micros'])} of {amount(report['limit_micros'])}"
    until = "" if report["ends_at"] is None else f", until {report['ends_at']}"
    return f"budget, {name}", used + until


def budgets_in_words(budgets: Budgets, otherwise: str = NONE) -> str:
    """Return budgets as people read them: `day 0.50, requests 100 a day`."""
    given = _given(budgets)
    return ", ".join(f"{name} {_limit(name, value)}" for name, value in given.items()) or otherwise


def limits_in_words(limits: AccountLimits, otherwise: str = NONE) -> str:
    """Return limits as people read them."""
    return ", ".join(f"{name} {value}" for name, value in _given(limits).items()) or otherwise


def _limit(name: str, value: int) -> str:
    return f"{value} a day" if name == "requests" else str(value) if name in OF_REQUESTS else amount(value)


def _given(allowance: Budgets | AccountLimits) -> Mapping[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(allowance).items() if value is not None}
