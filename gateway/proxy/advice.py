"""What an upstream says about retrying, in the headers of a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds the upstream asks to wait, None where it does not say so.

    `retry-after-ms` is more exact than `Retry-After` and counts first. A date is measured from the answer's own `Date`, since the
    upstream's clock may be off; without that it is ignored.
    """
    milliseconds, text = headers.get("retry-after-ms", "").strip(), headers.get("Retry-After", "").strip()
    if NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    if NUMBER.fullmatch(text):
        return float(text)
    try:
        wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (TypeError, ValueError):
        return None
    return max(0.0, wait_s)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return what the upstream's `x-should-retry` says, None where it has none."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())
