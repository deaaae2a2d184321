"""The judgement of each charge by the upstream's own account of what it served."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gateway import Outcome, Price
from gateway.usage.record import Record
from tests.bench.life.answers import KINDS, Served
from tests.bench.life.seen import Saw, Seen

PICTURES = 4000
"""Tokens of input that an estimate may count for the pictures of a request."""
Tokens = tuple[int, int]
"""Of input and of output."""


def charge_problem(
    seen: Seen, record: Record, served: Sequence[Served], prices: set[tuple[int, int]], *, doubtful: bool
) -> str:
    """Return what is wrong with the charge of a request, or an empty string.

    `doubtful`: the network between failed, so that the gateway may not have read what the upstream sent.
    """
    charge = record.charge_micros
    if not record.price and record.outcome is Outcome.GATEWAY_CRASHED:
        return ""  # the record was closed by what the ledger says; `gateway verify` compares the two
    if not record.price:
        return f"{charge} micros without a price" if charge else ""
    price = Price(
        int(str(record.price["input"])), int(str(record.price["output"])), Fraction(str(record.price["ratio"]))
    )
    if (price.input, price.output) not in prices:
        return f"a price that the model never had: {price}"
    if "capped_micros" in record.price:
        return f"capped: {record.price}"
    unread = record.prompt_tokens if doubtful and not served else 0
    counted_calls = [each for each in served if not _repeated(each)] or served[-1:]
    bounds = [_bounds(seen, record, each) for each in counted_calls]
    low = price.cost(sum(low[0] for low, _ in bounds), sum(low[1] for low, _ in bounds))
    high = price.cost(unread + sum(high[0] for _, high in bounds), sum(high[1] for _, high in bounds))
    if doubtful or record.outcome is Outcome.GATEWAY_CRASHED or record.outcome is Outcome.REFUSED:
        low = 0
    if record.outcome is Outcome.REFUSED:
        high = 0
    told = [(each.told, each.final, each.output) for each in served]
    if seen.finish and record.outcome is Outcome.COMPLETED and not doubtful and _unread(served):
        return f"the usage that comes after the finish was not waited for; {told}"
    if low <= charge <= high:
        return ""
    allowed = f"{low}" if low == high else f"{low} to {high}"
    counted = f"{record.prompt_tokens}+{record.completion_tokens} {record.usage_source}"
    return f"{charge} micros ({counted}) in place of {allowed}; {told}"


def _unread(served: Sequence[Served]) -> bool:
    """Return whether the upstream would have told its usage, and the gateway left before."""
    return bool(served) and KINDS[served[-1].kind].charge == "exact" and served[-1].left and not served[-1].final


def _repeated(served: Served) -> bool:
    """Return whether a pooled connection was closed under the gateway, which then sent the request again."""
    return served.kind == "closes-on-reuse" and not served.begun and served.output == 0


def _bounds(seen: Seen, record: Record, served: Served) -> tuple[Tokens, Tokens]:
    """Return the least and the most tokens that may be charged for one call of an upstream."""
    rule = KINDS[served.kind].charge
    least, most = _estimated_input(served)
    if seen.saw is Saw.ERROR and seen.code == "upstream_timeout" and rule != "input":
        return (0, 0), (most, 0)  # a busy machine was too slow, and the upstream may have worked on it
    if rule == "nothing":
        return (0, 0), (0, 0)
    if rule == "input" or (not served.begun and served.output == 0):
        return (least if rule == "input" else 0, 0), (most, 0)
    delivered = served.output if seen.saw is Saw.WHOLE else max(0, min(served.output, seen.events - 2))
    low_output, high_output = delivered // 2, 2 * served.output + served.output_bytes // 2 + 16
    if rule == "exact" and served.final and served.told is not None:
        # The answer is read on after its caller has left.
        if record.outcome is Outcome.COMPLETED or (served.finished and record.outcome is Outcome.CALLER_GONE):
            return served.told, served.told
        return (min(least, served.told[0]), low_output), (max(most, served.told[0]), max(high_output, served.told[1]))
    if rule == "larger" and served.told is not None:
        least, most = max(least, served.told[0]), max(most, served.told[0])
    return (least, low_output), (most, high_output)


def _estimated_input(served: Served) -> Tokens:
    """Return the least and the most input tokens of an estimate by the bytes of the request."""
    pictures = PICTURES if served.pictures else 0
    return served.text_bytes // 10, served.body_bytes // 2 + 64 + pictures
