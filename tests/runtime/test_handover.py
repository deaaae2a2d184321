"""What is read of a handover is a whole offer or none, and answers belong to one offer."""

from __future__ import annotations

from gateway.config.document import MAX_FILE_BYTES
from gateway.runtime.handover import MAX_REASON, Handover, Offer, RefusedReload, WorkerEnd


def test_the_largest_file_is_handed_over_and_half_an_offer_is_none() -> None:
    handover = Handover(1)
    assert handover.read() is None
    offer = Offer(1, 2, "withdrawn", b"x" * MAX_FILE_BYTES)
    handover.write(offer)
    assert handover.read() == offer
    handover._offer[1000:1001] = b"y"
    assert handover.read() is None


def test_answers_belong_to_one_offer_and_not_to_a_worker_before() -> None:
    handover = Handover(2)
    offer = Offer(7, 2, "offered", b"")
    assert handover.answers(7) == [None, None]
    WorkerEnd(handover, 0).answer(offer, started=True)
    WorkerEnd(handover, 1).answer(offer, started=False)
    assert (handover.answers(7), handover.answers(8)) == ([True, False], [None, None])
    WorkerEnd(handover, 0).begin()
    assert handover.answers(7) == [None, False]


def test_the_last_refusal_is_known_until_a_file_is_adopted() -> None:
    handover = Handover(1)
    assert handover.refused() is None
    handover.refuse(RefusedReload("the file \udcff has no channels", 5.5))
    assert handover.refused() == RefusedReload("the file ? has no channels", 5.5)
    handover.refuse(RefusedReload("ü" * 10 * MAX_REASON, 6))
    assert handover.refused() == RefusedReload("ü" * MAX_REASON, 6)
    handover.refuse(None)
    assert handover.refused() is None
