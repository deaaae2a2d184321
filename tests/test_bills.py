"""What upstreams report comes to the price that they publish, to the micro; and to the cost that they state."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.chat.events import EventStream
from gateway.chat.usage import ReportedUsage, Usage
from gateway.config.schema import load
from gateway.domain.catalogue import Catalogue
from gateway.domain.exchange import Attempt
from gateway.domain.prices import Price, price_from
from gateway.operations.operation import Operation
from tests.bills import BILLS, Bill

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def price(bill: Bill, folder: Path) -> Price:
    """Return the price of a configuration that sells at the upstream's own price."""
    file = folder / "gateway.yaml"
    file.write_text(
        f"channels: {{up: {{base_url: 'http://h/v1'}}}}\nmodels: {{m: {{{bill.price}, "
        f"channels: [{{use: up, cost: {{{bill.price}}}}}]}}}}\ngroups: {{default: {{}}}}"
    )
    catalogue = Catalogue(load(file, {}).config)
    found = catalogue.price("m", "default")
    ((candidate, _),) = catalogue.tiers("m", "default", Operation.CHAT)[0]
    assert found is not None
    assert candidate.cost == found
    return found


def reported(bill: Bill) -> ReportedUsage:
    stream = EventStream(drop_usage=True)
    events = TEXT + (b"" if bill.place == "choice" else FINISH) + bill.event() + b"data: [DONE]\n\n"
    for at in range(0, len(events), 40):
        stream.feed(events[at : at + 40])
    return stream.usage


@pytest.mark.parametrize("bill", BILLS, ids=[bill.upstream for bill in BILLS])
def test_reported_usage_comes_to_the_published_price(bill: Bill, tmp_path: Path) -> None:
    assert bill.micros == math.ceil(bill.exact)
    found = reported(bill)
    usage = found.usage(lambda: 10**9, lambda: 10**9)
    assert usage.source == "upstream", "an estimate has no part in it"
    assert usage.prompt_tokens + usage.completion_tokens == sum(tokens for tokens, _ in bill.parts)
    of = price(bill, tmp_path)
    assert of.of(usage) == bill.micros
    assert found.last.text.decode() == bill.usage
    assert found.last.cost_micros == bill.stated
    assert bill.stated in (None, bill.micros)
    assert Attempt("up", "m", usage=usage, cost=of).cost_micros == bill.micros


@pytest.mark.parametrize("bill", BILLS, ids=[bill.upstream for bill in BILLS])
def test_the_bill_can_be_computed_again_from_what_the_record_keeps(bill: Bill, tmp_path: Path) -> None:
    usage = reported(bill).usage(lambda: 0, lambda: 0)
    terms = price(bill, tmp_path).record(usage)
    split = usage.cached_tokens, usage.cache_write_tokens
    kept = Usage(
        usage.prompt_tokens, usage.completion_tokens, "upstream", *split, answers=1 if "request" in terms else 0
    )
    assert price_from(terms).of(kept) == bill.micros


def test_there_are_enough_of_them() -> None:
    assert len({bill.upstream.partition(",")[0] for bill in BILLS}) >= 13
    assert all(bill.source and bill.published for bill in BILLS)
