"""One-time links that let a person in at the pages: who is let in, with which scopes, and what the right hangs on.

A link has a ticket of 256 random bits, of which the store has a digest. It is good for ten minutes and is used once, however many
ask at once. It ends with the management token that made it, or where the admin token made it, with that one: the store keeps a
proof that only a process with the same admin token can check.
"""

from __future__ import annotations

import hmac
import secrets
import time
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from gateway.errors import Refused
from gateway.management.accounts import existing
from gateway.management.admin_token import token_of
from gateway.management.desk import LocalDesk
from gateway.management.names import check_name
from gateway.management.operation import Scope, operation
from gateway.request_id import utc
from gateway.store.client.client import Client

GOOD_FOR_S: Final = 600
MOST_A_MINUTE: Final = 30
"""Links to the operators' pages that one token makes: any token may, and each leaves lines in the audit log."""
ENTER: Final = "/enter"
"""The path of the page that takes tickets."""
EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - what is listened on, which no browser can open


class NewLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link to be made. `name`: whom it lets in, for the audit log, which also names who made the link. `scopes`: null for all of
    one's own.
    """

    name: Annotated[str, msgspec.Meta(max_length=100)] = ""
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1)] | None = None


class Link(msgspec.Struct, frozen=True):
    """A link: its path at the operator's port, and until when it lets somebody in. In a repeated answer, the path is null."""

    path: str | None
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


@operation("POST", "/links", Scope.READ, status=201, shown_once="path", most_a_minute=MOST_A_MINUTE)
async def create(desk: LocalDesk, body: NewLink) -> Link:
    """Make a link that lets one person in at the pages, once, within ten minutes. Its path cannot be shown again.

    Who enters may do what the maker may do, or what `scopes` leave of that. All of it ends with the token that made the link. 429
    for more than 30 in a minute.
    """
    check_name(body.name)
    missing = sorted(set(body.scopes or ()) - set(desk.actor.scopes))
    if missing:
        raise Refused(403, "scope_missing", f"You do not have {', '.join(missing)} yourself.", param="scopes")
    return await _make(desk, body.name, tuple(sorted(set(body.scopes or desk.actor.scopes))))


@operation("POST", "/accounts/{account}/links", Scope.TOKENS, status=201, shown_once="path")
async def own(desk: LocalDesk, account: str) -> Link:
    """Make a link that lets a caller in at the pages of its own account, once, within ten minutes.

    Its path cannot be shown again. The caller sees its use, its requests, its budgets and its ledger there, and makes and deletes
    its own tokens. All of it ends with the token that made the link.
    """
    await existing(desk, account)
    return await _make(desk, f"account {account}", (), account)


async def _make(desk: LocalDesk, name: str, scopes: tuple[Scope, ...], account: str = "") -> Link:
    text = secrets.token_urlsafe(32)
    proof = "" if desk.actor.token else proof_of(text, token_of(desk.config, create=False))
    ticket = Ticket(name, scopes, desk.actor.token, proof, account, desk.actor.name)
    await desk.store.client.call("SET", _key(text), msgspec.json.encode(ticket), "EX", GOOD_FOR_S)
    expires_at = utc(round((time.time() + GOOD_FOR_S) * 1000))
    desk.change.after = {"name": name, "scopes": scopes, "expires_at": expires_at}
    return Link(f"{ENTER}?ticket={text}", expires_at, name, scopes)


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
