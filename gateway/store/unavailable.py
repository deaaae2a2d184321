"""Why channels cannot be called, in words for the record of a request that none of them could serve. Callers do not see them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from gateway.facts import Candidate
from gateway.request_id import utc
from gateway.store.channels import AccountStatus, Condition, Refusal
from gateway.store.local_channel import LocalChannel


def why_unavailable(
    candidates: Iterable[Candidate], channels: Mapping[str, LocalChannel], account: str, told: Mapping[str, Refusal]
) -> dict[str, str]:
    """Return why the account may call none of `candidates`, by the channel's name.

    `told`: what the store said of those that it was asked for. Of the others, this is what the worker knows.
    """
    return {
        candidate.name: _told(told[candidate.name])
        if candidate.name in told
        else _known(channels[candidate.name], account)
        for candidate in candidates
    }


def _told(refusal: Refusal) -> str:
    match refusal.reason:
        case "disabled":
            return "is switched off"
        case "cooling":
            return _cools(refusal.wait_ms / 1000, refusal.error)
        case "probing":
            return f"has cooled down{_after(refusal.error)}, and another request tried it"
        case _:
            return "is full"


def _known(channel: LocalChannel, account: str) -> str:
    status = channel.status
    if status.credentials_off:
        return "has no credential that is switched on"
    if status.condition is Condition.DISABLED:
        return "is switched off"
    passed_s = time.monotonic() - channel.status_at
    for_all_s = status.cool_ms / 1000 - passed_s
    if for_all_s > 0:
        return _cools(for_all_s, status.error)
    own_s = status.accounts.get(account, AccountStatus()).cool_ms / 1000 - passed_s
    return f"{_cools(max(0.0, own_s), status.error)} for this account, whose requests fail there"


def _cools(seconds: float, error: str) -> str:
    until = utc(round((time.time() + seconds) * 1000))
    return f"cools down{_after(error)} until {until}"


def _after(error: str) -> str:
    return f" after {error}" if error else ""
