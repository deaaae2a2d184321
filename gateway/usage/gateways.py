"""The gateways of a store: which home they log to, when each was last heard of, and which may have records in its spool.

The store keeps it, in keys of the hash slot of the usage log. The sink of each gateway says it once a second (`Membership`).

1. **All gateways of a store log to one home**, which the first one sets: SQLite files of one gateway, or a PostgreSQL database.
   A gateway with another home does not start, and says what to do.
2. **A gateway that was not heard of counts as having records** until it ends in order with an empty spool, or is forgotten.
3. **That a forgotten gateway was there is still known**: of the time from when it was last heard of, until it was forgotten.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gateway.base.errors import GatewayError
from gateway.base.ids import arrival_ms, ms_of
from gateway.store.client.client import Client, Script
from gateway.usage.completeness import LONGEST_MS, SETTLED_MS, About, KnownGateway, held
from gateway.usage.database import UsageFiles
from gateway.usage.home import Home
from gateway.usage.record import Record
from gateway.usage.stream import GATEWAYS, HEARD, HOME, short

FILES: Final = "sqlite"
DATABASE: Final = "postgresql"
_FORGET: Final = "`gateway gateways forget"
_MOVE: Final = "`gateway usage move`"

_CLAIM: Final = Script(
    "claim_home",
    """
local time = redis.call("TIME")
local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
redis.call("SET", KEYS[1], ARGV[2], "NX")
local held = redis.call("GET", KEYS[1])
if held == ARGV[2] then
  redis.call("ZADD", KEYS[2], now, ARGV[1])
  redis.call("HSET", KEYS[3], ARGV[1], ARGV[3])
end
return held
""",
)
_TIME: Final = Script("time", 'return redis.call("TIME")')


class HomeTaken(GatewayError):
    """The gateways of the store log elsewhere."""


class Membership:
    """The part of one gateway: what it says about itself."""

    def __init__(
        self,
        client: Client,
        home: Home,
        installation: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        listen: str = "",
    ) -> None:
        """`settings`, `listen`: see `About`. The former may be changed later."""
        self._listen = listen
        self._client = client
        self._home = home
        self._settings = settings
        self._installation = installation
        self._text = "" if home.shared else f"{FILES} {installation}"

    async def say(self, files: int, *, stopped: bool = False) -> None:
        """Say that this gateway is there, and how many files its spool has.

        Raises `HomeTaken` where the gateways log elsewhere, `StoreAway`, and `UnusableFile` where the database does not answer.
        """
        await self._name_home()
        about = msgspec.json.encode(
            About(socket.gethostname(), self._listen, files, stopped, settings=dict(self._settings))
        )
        keys = [HOME, HEARD, GATEWAYS]
        held = (await self._client.run(_CLAIM, keys, [self._installation, self._text, about])).decode()
        if held == self._text:
            return
        if held == f"{FILES} {self._installation}" and not UsageFiles(self._home.folder).months():
            await self.take()  # it has written nothing yet
            return
        raise HomeTaken(_refusal(held, self._text, self._installation, await gateways_of(self._client)))

    async def take(self) -> None:
        """Make the home of this gateway that of all."""
        await self._name_home()
        await self._client.call("SET", HOME, self._text)

    async def leave(self) -> None:
        """Say that a gateway which shares a database has ended, and has no records."""
        await self._client.call("ZREM", HEARD, self._installation)
        await self._client.call("HDEL", GATEWAYS, self._installation)

    async def other_database(self) -> bool:
        """Return whether the gateways log to another database than this one, which a move would leave.

        Raises `HomeTaken` where they log to the files of another gateway, which alone can move them.
        """
        held = (await self._client.call("GET", HOME) or b"").decode()
        if held.startswith(FILES) and held != f"{FILES} {self._installation}":
            raise HomeTaken(_refusal(held, DATABASE, self._installation, await gateways_of(self._client)))
        return held.startswith(DATABASE) and held != f"{DATABASE} {await asyncio.to_thread(self._home.identity)}"

    async def _name_home(self) -> None:
        if not self._text:
            self._text = f"{DATABASE} {await asyncio.to_thread(self._home.identity)}"


def _refusal(held: str, wanted: str, installation: str, gateways: Iterable[KnownGateway]) -> str:
    kind, _, name = held.partition(" ")
    if kind == DATABASE:
        if wanted.startswith(DATABASE):
            return (
                "usage.database: the gateways of this store log to another database than this one: name theirs, or make this "
                f"one the log of all of them from now on, without the other's records: {_MOVE}"
            )
        return "usage: the gateways of this store log to PostgreSQL: set `usage.database` here to the same as there"
    own = name == installation
    first = next((each for each in gateways if each.installation == name), None)
    called = first.name if first else short(name)
    begin = (
        "the log of this gateway" if own else f"the log of this store is in the SQLite files of gateway {called}: it"
    )
    if wanted.startswith(DATABASE):
        where = "here, while it does not run" if own else "there, after its stop"
        text = f"usage.database: {begin} is still to be copied: run {_MOVE} {where}"
    else:
        text = (
            f"usage: the log of this store is in the SQLite files of gateway {called}, and a second gateway would have a part of "
            'it alone: set `usage: {database: "postgresql://..."}` in the file that all gateways share, stop that one, and run '
            f"{_MOVE} there"
        )
    if first is None or first.present or own:
        return text
    return (
        f"{text}. It was last heard of at {first.heard}: if it has gone for good, with its disk, {_FORGET} {short(name)}`; what "
        "arrived until then is missing in the log from then on"
    )


async def gateways_of(client: Client) -> list[KnownGateway]:
    """Return the gateways of a store, also forgotten ones. Raises `StoreAway`."""
    abouts, heard, now = await asyncio.gather(
        client.call("HGETALL", GATEWAYS), client.call("ZRANGE", HEARD, 0, -1, "WITHSCORES"), now_ms(client)
    )
    when = {name.decode(): int(at) for name, at in heard}
    found = [
        KnownGateway(name, _about(text), when.get(name, 0), now)
        for name, text in sorted((key.decode(), value) for key, value in abouts.items())
    ]
    return sorted(found, key=lambda gateway: gateway.about.host)


async def now_ms(client: Client) -> int:
    """Return the time by the clock of the store, or in a cluster of the node that has these keys. Raises `StoreAway`."""
    return ms_of(await client.run(_TIME, [GATEWAYS]))


async def forget(client: Client, gateway: KnownGateway) -> None:
    """Say that a gateway has gone for good, with what only its disk had. Raises `StoreAway`."""
    home = await client.call("GET", HOME)
    whole = home == f"{FILES} {gateway.installation}".encode()
    about = msgspec.structs.replace(gateway.about, forgotten_ms=gateway.now_ms, whole=whole)
    await client.call("HSET", GATEWAYS, gateway.installation, msgspec.json.encode(about))
    if whole:
        await client.call("DEL", HOME)


def _about(text: bytes) -> About:
    """Return what a gateway said; of a later version's text, what is understood."""
    try:
        return msgspec.json.decode(text, type=About)
    except msgspec.MsgspecError:
        return About(host="unknown", files=1)


class Others(msgspec.Struct, frozen=True):
    """The records that may not be in the home at one moment. `gateways`: the other ones. `unread`: why some of this one are not."""

    gateways: list[KnownGateway]
    unread: list[str] = []

    def unasked(self, id: str, *, ended: bool) -> list[str]:  # noqa: A002 - the field's name
        """Return a sentence for each reason why more may be known elsewhere of a request that is not found here.

        `ended`: also where only its end may be elsewhere.
        """
        try:
            arrived = arrival_ms(id)
        except ValueError:
            return []
        return list(self.lacks(arrived)) or (list(self._ends(arrived)) if ended else [])

    def lacks(self, arrived_ms: int) -> Iterator[str]:
        """Yield a sentence for each reason why a request that arrived then may be missing here."""
        yield from self.unread
        for each in self.gateways:
            if each.about.forgotten_ms:
                first_ms, last_ms = each.between_ms
                if first_ms <= arrived_ms <= last_ms:
                    yield each.note()
            elif each.about.stopped:  # it has written all, and receives nothing
                continue
            elif each.heard_ms < arrived_ms + SETTLED_MS and each.present and not each.about.files:
                yield f"gateway {each.name} has not said yet whether it has it: ask again in {SETTLED_MS // 1000} seconds"
            elif each.heard_ms < arrived_ms + SETTLED_MS or each.about.files:
                yield _ask_there(each)

    def may_have_end(self, record: Record) -> list[str]:
        """Return a sentence for each reason why a request that is open here may have ended."""
        return [*self.unread, *self._ends(arrival_ms(record.id), record.gateway)]

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each reason why some requests are missing here."""
        yield from self.unread
        yield from (each.note() for each in self.gateways if each.is_away)

    def _ends(self, at: int, gateway: str | None = None) -> Iterator[str]:
        """Yield a sentence for each reason why a request that arrived then may have ended, at `gateway` if that is known."""
        for each in self.gateways:
            received = "" if gateway is None else ", which received it,"
            if gateway not in (None, short(each.installation)) or (each.present and not each.about.files):
                continue
            if each.about.forgotten_ms:
                if gateway is not None:
                    yield each.note()
            elif gateway is not None or (not each.about.stopped and each.heard_ms - LONGEST_MS <= at):
                yield _ask_there(each, received)


def _ask_there(gateway: KnownGateway, received: str = "") -> str:
    return (
        f"gateway {gateway.name}{received} was last heard of at {gateway.heard}{held(gateway.about.files)}: start it, so that it "
        f"writes them; if it has gone for good, {_FORGET} {short(gateway.installation)}`"
    )


async def others_of(client: Client, home: Home, installation: str, spooled: int) -> Others:
    """Return what is not in the home now. `spooled`: the files of the spool of this gateway. Raises `StoreAway`."""
    found, held_by = await asyncio.gather(gateways_of(client), client.call("GET", HOME))
    unread = []
    if spooled:
        unread.append(f"{spooled} files of records wait in the spool of this gateway: they are read while it runs")
    kind, _, name = (held_by or b"").decode().partition(" ")
    if kind and not home.shared and name != installation:
        first = next((each.name for each in found if each.installation == name), short(name))
        unread.append(
            "the gateways of this store log to PostgreSQL, which the file here does not name in `usage.database`"
            if kind == DATABASE
            else f"the log of this store is in the files of gateway {first}: ask there"
        )
    return Others([gateway for gateway in found if gateway.installation != installation], unread)
