"""The ids of requests on command lines."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from gateway.base.ids import check_time

_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def request_id(text: str) -> str:
    """Return an id as the usage log has it, however it is copied. Raises `typer.BadParameter`, which does not repeat it."""
    found = text.strip(" \t\r\n\"'`,;").lower()
    if _ID.fullmatch(found):
        try:
            check_time(found)
        except ValueError:
            pass
        else:
            return found
    raise typer.BadParameter(
        "this is not a request's id: copy the `x-request-id` of the response, as in 01a1fccb-1807-7197-9f1b-61a58aba6c92"
    )


RequestArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The request's id: the `x-request-id` of its response.", parser=request_id),
]
