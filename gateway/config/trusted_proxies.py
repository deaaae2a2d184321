"""The proxies in front of the gateway, whose word about a caller's address is taken."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.addresses import network


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
