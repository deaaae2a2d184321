"""The arguments and options of the account commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gateway.cli.account_file import TRANSACTION
from gateway.cli.common import micros


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
GroupOption = Annotated[str | None, typer.Option(help="The account's user group, one of those in the configuration.")]
TRANSACTION_OPTION: Final = typer.Option(
    parser=transaction,
    metavar="ID",
    help="An id of your choice for this transaction. It is booked once: repeating the command is safe.",
)
TransactionOption = Annotated[str, TRANSACTION_OPTION]
