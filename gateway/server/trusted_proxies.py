"""The caller's address where a proxy is in front of the gateway: read from `X-Forwarded-For`, if the proxy is trusted.

Each proxy appends the address that it was called from, so the header is read from its end, over all its lines. What a trusted
address has written is believed, and nothing else: the first address that is not trusted is the caller's, and what is left of it
may be anything that the caller sent. A part that is not an address ends the reading, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Final

from multidict import CIMultiDictProxy

from gateway.base.addresses import Network, address_of, network

HEADER: Final = "X-Forwarded-For"
MOST_PROXIES: Final = 16
"""Parts of the header that are read, from its end."""
LONGEST_PART: Final = 96
"""Characters of a part: enough for an address with brackets, zone, port and blanks."""
PART: Final = re.compile(
    r"([0-9.]{7,15}):[0-9]{1,5}"  # 192.0.2.7:4711
    r"|\[([0-9A-Fa-f:.]{2,45})(?:%[\w.-]{1,16})?\](?::[0-9]{1,5})?"  # [2001:db8::7]:4711
    r"|([0-9A-Fa-f:.]{2,45})(?:%[\w.-]{1,16})?",
    re.ASCII,
)
"""An address, with or without a port and a zone."""


class TrustedProxies:
    """The addresses whose `X-Forwarded-For` is believed: `port.trusted_proxies`."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._trusts = lru_cache(maxsize=4096)(partial(_contain, tuple(map(network, networks))))

    def caller_of(self, peer: str, headers: CIMultiDictProxy[str]) -> str:
        """Return the address of the caller whose request came over a connection from `peer`."""
        if not self._trusts(peer):
            return peer
        caller = peer
        for part in _parts(headers.getall(HEADER, ())):
            address = _address(part) if len(part) <= LONGEST_PART else ""
            if not address:
                break
            caller = address
            if not self._trusts(caller):
                break
        return caller


def _contain(networks: Sequence[Network], peer: str) -> bool:
    address = address_of(peer)
    return address is not None and any(address in trusted for trusted in networks)


def _parts(lines: Sequence[str]) -> Iterator[str]:
    """Yield the last parts of the header from right to left, `MOST_PROXIES` at most."""
    return islice((part for line in reversed(lines) for part in reversed(line.rsplit(",", MOST_PROXIES))), MOST_PROXIES)


@lru_cache(maxsize=4096)
def _address(part: str) -> str:
    """Return the address that a part of the header stands for, without port and zone; nothing for anything else."""
    form = PART.fullmatch(part.strip(" \t"))
    address = None if form is None else address_of(form[1] or form[2] or form[3])
    return "" if address is None else str(address)
