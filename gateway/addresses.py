"""The addresses of callers."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


def address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a string stands for, or None. An IPv4 address in IPv6 form is returned as IPv4."""
    try:
        address = ip_address(peer)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=4096)
def network_of(peer: str) -> str:
    """Return the part of an address that one caller cannot change freely: all of an IPv6 /64 counts as one address."""
    address = address_of(peer)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return "" if address is None else str(address)
