"""The addresses of callers, and networks of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def address_of(peer: str) -> Address | None:
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


def network(text: str) -> Network:
    """Return the network that `10.0.0.0/8` or a single address stands for. Raises `ValueError` for any other text.

    IPv4 in IPv6 form is returned as IPv4, since `address_of` does so with the addresses that are looked up in it.
    """
    parsed = ip_network(text)
    first = parsed.network_address
    if isinstance(first, IPv6Address) and first.scope_id is not None:
        raise ValueError("a network has no zone")
    mapped = getattr(first, "ipv4_mapped", None)
    return parsed if mapped is None or parsed.prefixlen < 96 else IPv4Network((mapped, parsed.prefixlen - 96))


def check_proxies(proxies: Sequence[str], setting: str = "trusted_proxies") -> None:
    """Raise `ValueError` for what is no address and no network, and for a network of every address."""
    for index, proxy in enumerate(proxies):
        name = f"{setting}[{index}]"
        try:
            trusted = network(proxy)
        except ValueError:
            raise ValueError(f"{name} must be an address or a network, as in 10.0.0.2 or 10.0.0.0/8") from None
        if not trusted.prefixlen:
            raise ValueError(f"{name} is every address: callers could choose theirs; name the proxies alone")
