"""One-time links that let a person in at the pages: who is let in, with which scopes, and on which token the right depends.

A link has a ticket of 256 random bits, of which the store has a digest. It is good for ten minutes and is used once, however many
ask at once. It ends with the management token that made it, or where the admin token made it, with that one: the store keeps a
proof that only a process with the same admin token can check.

The admin token is from the environment, or from a file that is followed, so that it can be changed while it serves.
"""

from __future__ import annotations

import hmac
import secrets
import time
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec

from gateway.admin.actions.accounts import existing
from gateway.admin.actions.action import Scope, action
from gateway.admin.actions.inputs import check_name
from gateway.admin.actions.local import LocalClient
from gateway.base import durable
from gateway.base.errors import GatewayError, Refused
from gateway.base.ids import utc
from gateway.base.log import log
from gateway.config.schema import Config
from gateway.config.secrets import secret_of
from gateway.store.client.client import Client

GOOD_FOR_S: Final = 600
MOST_A_MINUTE: Final = 30
"""Links to the operators' pages that one token makes: any token may, and each leaves lines in the audit log."""
ENTER: Final = "/enter"
"""The path of the page that takes tickets."""
EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - what is listened on, which no browser can open

VARIABLE: Final = "GATEWAY_ADMIN_TOKEN"
PORTS: Final = ("admin", "portal")


class NewLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link to be made. `name`: whom it lets in, for the audit log, which also names who made the link. `scopes`: null for all of
    one's own.
    """

    name: Annotated[str, msgspec.Meta(max_length=100)] = ""
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1)] | None = None


class Link(msgspec.Struct, frozen=True):
    """A link: its address, and until when it lets somebody in. In a repeated answer, the address is null.

    It is at `portal.url` for callers where the file has that, else at what the port listens on.
    """

    url: str | None
    expires_at: str
    name: str
    scopes: tuple[Scope, ...]

    def __repr__(self) -> str:
        return f"<Link of {self.name}>"


class Ticket(msgspec.Struct, frozen=True):
    """What the store keeps of a link. `maker`: who made it, as in the audit log, and `name`: whom the maker says it lets in.

    `token`: the id of the management token that made it, or empty for the admin token. `proof`: of the admin token, see
    `proof_of`. `account`: whose pages it leads to, or empty for those of operators.
    """

    name: str
    scopes: tuple[Scope, ...]
    token: str
    proof: str
    account: str = ""
    maker: str = ""


@action("POST", "/links", Scope.READ, status=201, shown_once="url", most_a_minute=MOST_A_MINUTE)
async def create(client: LocalClient, body: NewLink) -> Link:
    """Make a link that lets one person in at the pages, once, within ten minutes. It cannot be shown again.

    Who enters may do what the maker may do, or what `scopes` leave of that. All of it ends with the token that made the link. 429
    for more than 30 in a minute.
    """
    check_name(body.name)
    missing = sorted(set(body.scopes or ()) - set(client.actor.scopes))
    if missing:
        raise Refused(403, "scope_missing", f"You do not have {', '.join(missing)} yourself.", param="scopes")
    return await _make(client, body.name, tuple(sorted(set(body.scopes or client.actor.scopes))))


@action("POST", "/accounts/{account}/links", Scope.TOKENS, status=201, shown_once="url")
async def own(client: LocalClient, account: str) -> Link:
    """Make a link that lets a caller in at the pages of its own account, once, within ten minutes.

    It cannot be shown again. The caller sees its use, its requests, its budgets and its ledger there, and makes and deletes
    its own tokens. All of it ends with the token that made the link.
    """
    await existing(client, account)
    return await _make(client, f"account {account}", (), account)


async def _make(client: LocalClient, name: str, scopes: tuple[Scope, ...], account: str = "") -> Link:
    text = secrets.token_urlsafe(32)
    proof = "" if client.actor.token else proof_of(text, token_of(client.config, create=False))
    ticket = Ticket(name, scopes, client.actor.token, proof, account, client.actor.name)
    await client.store.client.call("SET", _key(text), msgspec.json.encode(ticket), "EX", GOOD_FOR_S)
    expires_at = utc(round((time.time() + GOOD_FOR_S) * 1000))
    client.change.after = {"name": name, "scopes": scopes, "expires_at": expires_at}
    portal = client.config.portal if account else None
    where = (portal is not None and portal.url) or base(address_of(client.config, portal=portal is not None) or "")
    return Link(f"{where}{ENTER}?ticket={text}", expires_at, name, scopes)


async def ticket_of(client: Client, text: str) -> Ticket | None:
    """Return what a ticket says, which stays good; None for one that is not. Raises `StoreAway`."""
    raw = await client.call("GET", _key(text))
    return None if raw is None else _decode(raw)


async def redeem(client: Client, text: str) -> Ticket | None:
    """Return what a ticket says, once; None for one that was used, is too old, or never was. Raises `StoreAway`."""
    raw = await client.call("GETDEL", _key(text))
    return None if raw is None else _decode(raw)


def proof_of(secret: str, admin_token: str) -> str:
    """Return what proves, to who knows `secret` and the admin token, that this was the admin token then."""
    return hmac.new(secret.encode(), admin_token.encode(), sha256).hexdigest()


_decode = msgspec.json.Decoder(Ticket).decode


def _key(text: str) -> str:
    return f"gw:{{pages}}:link:{sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}"


def base(address: str) -> str:
    """Return the address of the operator's port for a browser on this machine, given what it listens on."""
    host, _, port = address.rpartition(":")
    return f"http://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"


def elsewhere(config: Config, port: str) -> Path:
    """Return the file with the address of one of `PORTS` where that is not the one of the configuration."""
    return config.data_path / f"{port}.address"


def address_of(config: Config, *, portal: bool = False) -> str | None:
    """Return the address of the operator's port, or of the portal; None where there is none."""
    file = elsewhere(config, "portal" if portal else "admin")
    if file.exists():
        return file.read_text(encoding="ascii")
    if not portal:
        return config.admin
    return None if config.portal is None else config.portal.listen


def token_of(config: Config, *, create: bool = True) -> str:
    """Return the admin port's token: `$GATEWAY_ADMIN_TOKEN`, else the file `admin.token` in `data`.

    The file is created where it is missing. Raises `Misconfigured` for a token that is too short, and without `create` for a file
    that is missing.
    """
    return secret_of(_path(config), VARIABLE, create=create).decode("utf-8", "replace")


class AdminToken:
    """The token as its file has it now. A file that cannot be used changes nothing, and is logged once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._token = token_of(config)
        self._version = durable.version(_path(config))

    def __call__(self) -> str:
        """Return the token."""
        version = durable.version(_path(self._config))
        if version != self._version:
            self._version = version
            try:
                self._token = token_of(self._config, create=False)
                log.info("admin_token_renewed")
            except GatewayError as error:
                log.error("admin_token_refused", reason=str(error))
        return self._token


def _path(config: Config) -> Path:
    return config.data_path / "admin.token"
