"""What each member of a group may spend and send unless its account has an own budget or limit: settings of a group."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Final

import msgspec

from gateway.config.section import Section, is_amount

LARGEST_RATE: Final = 100_000_000
"""The largest limit. Above it the numbers of the limits' script, which are doubles, would no longer be exact."""
LARGEST_BUDGET: Final = 10**15
"""The largest budget in micros. The sums of a script, which are doubles, stay exact with what is held beside it."""
LARGEST_BUDGET_AMOUNT: Final = LARGEST_BUDGET // 1_000_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_RATE)]


class GroupBudgets(Section, frozen=True):
    """What each member may spend in a calendar window, in currency units, and how many chat completions it may send a day."""

    day: Decimal | None = None
    week: Decimal | None = None
    month: Decimal | None = None
    total: Decimal | None = None
    requests: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BUDGET)] | None = None

    def __post_init__(self) -> None:
        for name in ("day", "week", "month", "total"):
            value = getattr(self, name)
            if value is not None and not (is_amount(value, LARGEST_BUDGET_AMOUNT) and value > 0):
                raise ValueError(
                    f"{name} must be an amount above 0, {LARGEST_BUDGET_AMOUNT} at most, with at most six decimals; "
                    "leave it out for no budget"
                )


class GroupLimits(Section, frozen=True):
    """What each member may send in a minute and at once."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent: Limit | None = None
