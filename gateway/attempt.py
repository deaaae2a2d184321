"""One call of an upstream, as it is recorded and charged."""

from __future__ import annotations

import msgspec

from gateway.chat.usage import Usage
from gateway.prices import LARGEST_COST, Price


class Attempt(msgspec.Struct):
    """One call of an upstream. `error` is the code that the caller would get, had this been the last attempt.

    `upstream_request_id` is from the head of its answer, `completion_id` from the completion itself; bills name either.
    `cost`: what the channel bills, None where that is not known. `reported`: the upstream's own usage object, as it came, and
    `stated_micros` the cost that it states. `began`, and `failed` where another may follow: `time.monotonic()`.
    """

    channel: str
    model: str
    status: int = 0
    error: str = ""
    upstream_request_id: str = ""
    usage: Usage = Usage()
    cost: Price | None = None
    reported: str = ""
    stated_micros: int | None = None
    completion_id: str = ""
    began: float = 0.0
    failed: float = 0.0

    @property
    def cost_micros(self) -> int | None:
        """Return what the call costs the operator: 0 where it used nothing, None where that is not known."""
        if self.usage.source == "none":
            return 0
        return None if self.cost is None else min(self.cost.of(self.usage), LARGEST_COST)
