"""Who may knock at all: refused on the head alone, before a token is looked at or a body is read."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from gateway import Exchange, Plugin, Refused, Services


class AddressAllowList(Plugin):
    """Serves only callers from these networks. Put it above `auth`.

    The address is that of the connection. Behind a proxy it is the proxy's, for all callers; let the proxy do this there.
    """

    networks: list[str]
    """Addresses and networks, such as `192.0.2.7` or `2001:db8::/32`; nobody else is served."""

    async def start(self, services: Services) -> None:
        """Raise `ValueError` for what is no network, before the first request does."""
        self._networks = [ip_network(network) for network in self.networks]

    async def on_request(self, exchange: Exchange) -> None:
        """Refuse a caller from elsewhere."""
        if not self._within(exchange.request.peer):
            raise Refused(403, "address_forbidden", "This service is not open to your address. Use another network.")

    async def explain(self, exchange: Exchange) -> str:
        """Looking takes nothing."""
        await self.on_request(exchange)
        return f"{exchange.request.peer} is in one of the networks"

    def _within(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)
