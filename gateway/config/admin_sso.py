"""The section `admin_sso` of the file: a proxy in front of the operator's port that says in a header who has signed on."""

from __future__ import annotations

import re
from typing import Final

from gateway.config.section import Section
from gateway.config.trusted_proxies import check_proxies

ANYONE: Final = "*"
"""The name whose scopes have all who have none of their own."""
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_TAKEN: Final = frozenset({"authorization", "cookie", "host", "origin", "content-type", "content-length", "connection"})

SCOPES: Final = ("read", "accounts", "tokens", "money", "channels", "admin")
"""The scopes of the operator's port, see `gateway.management.operation.Scope`."""


class AdminSso(Section, frozen=True, rename={"from_": "from"}):
    """Header sign-on: the header with the name, the addresses that may send it, and the scopes of each name."""

    header: str
    from_: tuple[str, ...]
    scopes: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not _HEADER.fullmatch(self.header) or self.header.lower() in _TAKEN:
            raise ValueError("header must be the name of a header of its own, such as X-Forwarded-User")
        if not self.from_:
            raise ValueError("from must name the proxy that sets the header, as in 10.0.0.2 or 10.0.0.0/8")
        check_proxies(self.from_, "from")
        if not self.scopes:
            raise ValueError('scopes must say what who signs on may do, as in {alice: [read, money], "*": [read]}')
        for name, scopes in self.scopes.items():
            if not set(SCOPES) >= set(scopes):
                raise ValueError(f"scopes of {name} may be {', '.join(SCOPES)}")

    def scopes_of(self, name: str) -> tuple[str, ...]:
        """Return the scopes of who signs on as `name`; none where it has none."""
        return self.scopes.get(name, self.scopes.get(ANYONE, ())) if name != ANYONE else ()
