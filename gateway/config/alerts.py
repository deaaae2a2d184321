"""The section `alerts` of the file: the webhook that alerts are sent to, and which alerts."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, Literal
from urllib.parse import urlsplit

from gateway.config.channel import is_host
from gateway.config.section import Section, is_amount

LARGEST: Final = 1_000_000_000

AlertKind = Literal["budget", "low_balance", "channel", "credential", "store"]


class AlertSettings(Section, frozen=True):
    """Where alerts are sent. `low_balance`: what an account may still spend when `low_balance` is sent; None: it is not sent.

    The secret that signs them is in `data` or in the environment, see `gateway.alerts.signature`.
    """

    hidden = frozenset({"webhook"})

    webhook: str
    events: tuple[AlertKind, ...] = ("budget", "low_balance", "channel", "credential", "store")
    low_balance: Decimal | None = None

    def __post_init__(self) -> None:
        if not (re.fullmatch(r"https?://[!-~]+", self.webhook) and _is_address(self.webhook)):
            raise ValueError("webhook must be an address such as https://host/path, without a fragment")
        if self.low_balance is not None and not (is_amount(self.low_balance, LARGEST) and self.low_balance):
            raise ValueError(f"low_balance must be above 0 and at most {LARGEST}, with at most six decimals")

    @property
    def host(self) -> str:
        """The host of the webhook, which may be logged; the rest of its address may hold a credential."""
        return urlsplit(self.webhook).hostname or ""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.port != 0 and is_host(parts.hostname) and "#" not in url
    except ValueError:
        return False
