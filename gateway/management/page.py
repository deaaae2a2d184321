"""A page of a list, in the shape that the lists at the public port have, too."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec

Line = TypeVar("Line")

LARGEST_PAGE = 100
LARGEST_LONG_PAGE = 1000
DEFAULT_PAGE = 20

Limit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_PAGE, description="Lines of the answer at most.")]
LongLimit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_LONG_PAGE, description="Lines of the answer at most.")]
After = Annotated[
    str, msgspec.Meta(max_length=256, description="`next` of the answer before; empty for the first page.")
]


class Page(msgspec.Struct, Generic[Line], frozen=True):
    """Some lines of a list. `next` is the `after` of the next page. `notes` say what the list may lack, in words."""

    data: list[Line]
    has_more: bool = False
    next: str | None = None
    notes: list[str] = []
    object: Literal["list"] = "list"
