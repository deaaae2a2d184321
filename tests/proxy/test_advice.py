"""What the headers of an upstream's failure say about retrying, in each form that upstreams use."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.proxy.failure import retry_after_s, should_retry

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
LATER = "Wed, 21 Oct 2026 07:29:30 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "0.25"}, 0.25),
        ({"Retry-After": " 7 "}, 7),
        ({"Retry-After": "7", "Retry-After-Ms": "1500"}, 1.5),
        ({"Retry-After": "7", "retry-after-ms": "soon"}, 7),
        *(({"Retry-After": text}, None) for text in ("-1", "1e9", "\u0667", "nan", "inf", "9" * 400, "soon", "7 s")),
        ({"Retry-After": LATER, "Date": DATE}, 90),
        ({"Retry-After": DATE, "Date": LATER}, 0),
        ({"Retry-After": LATER}, None),
        ({"Retry-After": LATER, "Date": "today"}, None),
        ({"Retry-After": LATER.removesuffix(" GMT"), "Date": DATE}, None),
    ],
)
def test_the_wait(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(CIMultiDict(headers)) == wait_s


@pytest.mark.parametrize(
    ("text", "advice"), [("true", True), ("False", False), (" false ", False), ("0", None), ("", None)]
)
def test_whether_to_retry(text: str, advice: bool | None) -> None:
    assert should_retry(CIMultiDict({"X-Should-Retry": text})) is advice
