"""Refuses callers by their address, before their token is checked or a body is read. The hook: `on_request`."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from gateway import Exchange, Plugin, Refused, Services


class AddressAllowList(Plugin):
    """Accepts only callers from certain networks. Put it above `auth`.

    The address is that of the connection. Behind a proxy, that is the proxy's address for all callers: let the proxy check
    addresses there.
    """

    API = 1
    networks: list[str]
    """Addresses and networks that are accepted, such as `192.0.2.7` or `2001:db8::/32`."""

    async def start(self, services: Services) -> None:
        """Parse the networks. Raises `ValueError` for an invalid one, which stops the start."""
        self._networks = [ip_network(network) for network in self.networks]

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse a caller from any other network."""
        if not self._within(exchange.request.peer):
            raise Refused(403, "address_forbidden", "This service is not open to your address. Use another network.")

    async def explain(self, exchange: Exchange) -> str:
        """Do the same as `on_request`, which takes nothing."""
        await self.on_request(exchange)
        return f"{exchange.request.peer} is in one of the networks"

    def _within(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)
