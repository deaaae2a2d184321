"""Client that sends actions to a gateway's API, wherever that runs.

1. **A lost answer is asked for again**, once. A write has an `Idempotency-Key`, so that it is done once all the same.
2. **An error is the one that the gateway had**, with its kind and its words, as far as the API tells them.
3. **The token is sent to the address that was given alone**: a redirect is refused, and no error contains it.

An answer that is no JSON is CSV, which is sent line by line and not asked for here, or records, which are sent as they end.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from gateway.admin.actions.action import IN_USE, PREFIX, Action, Arguments, in_own_words, refused
from gateway.base.errors import GatewayError, Misconfigured, Refused, StoreAway
from gateway.usage.record import Record, decode

if TYPE_CHECKING:
    from aiohttp import ClientSession

TOKEN: Final = "GATEWAY_API_TOKEN"  # noqa: S105 - the name of a variable
EXAMPLE: Final = "http://10.0.0.5:9090"
CONNECT_S: Final = 10.0
ANSWER_S: Final = 120.0
"""For a whole answer: an import of thousands of rows is one."""
IN_USE_S: Final = 20.0
"""How long a write is asked for that another attempt has begun: longer than the gateway keeps what a killed one has begun."""
MAX_REFUSAL: Final = 64 * 1024
MAX_ANSWER: Final = 64 * 1024 * 1024

PATIENCE_S: Final = 60.0
RETRY_S: Final = 1.0


class _Error(msgspec.Struct):
    message: str
    code: str
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


class _Lost(Exception):
    """No whole answer came. The text says why."""


class HttpClient:
    """Sends actions to the API of a gateway. `open` returns one."""

    def __init__(self, session: ClientSession, address: str) -> None:
        """`session` sends the token with each request to `address`, which has no slash at its end."""
        self._session = session
        self._address = address

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, token: str) -> AsyncIterator[HttpClient]:
        """Yield the client of the operator's port at `url`. Nothing is sent before the first action. Raises `Misconfigured`."""
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar  # it takes a fifth of a second

        address = _address(url)
        headers = {"Authorization": f"Bearer {_checked(token)}", "Accept": "application/json"}
        timeout = ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        async with ClientSession(headers=headers, timeout=timeout, cookie_jar=DummyCookieJar()) as session:
            yield cls(session, address)

    async def perform(self, action: Action[Any, Any], arguments: Arguments) -> Any:
        """Do an action there. Raises the error that the gateway had, and `StoreAway` where no answer comes."""
        url = f"{self._address}{PREFIX}{_path(action, arguments)}"
        if getattr(action.returns, "content_type", "") == "text/event-stream":
            return FeedElsewhere(partial(self._events, url))
        headers, body = {}, None
        if action.writes:
            headers["Idempotency-Key"] = secrets.token_hex(16)
        if arguments.body is not None:
            headers["Content-Type"] = "application/json"
            body = msgspec.json.encode(arguments.body)
        try:
            status, answer = await self._ask(action.method, url, headers, body)
        except _Lost as error:
            unknown = " Whether the change was made is not known: look before you repeat it." if action.writes else ""
            raise StoreAway(f"{self._address} does not answer: {error}.{unknown}") from None
        if status != action.status:
            raise self._error(status, answer)
        if action.returns in (None, type(None)):
            return None
        try:
            return msgspec.json.decode(answer, type=action.returns)
        except msgspec.DecodeError:
            raise self._foreign(status) from None

    async def _ask(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        """Return the status and the body of the answer. Raises `_Lost` where none came twice."""
        try:
            status, answer = await self._send(method, url, headers, body)
        except _Lost:
            status, answer = await self._send(method, url, headers, body)
        deadline = asyncio.get_running_loop().time() + IN_USE_S
        while status == 409 and f'"{IN_USE}"'.encode() in answer and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.5)
            status, answer = await self._send(method, url, headers, body)
        return status, answer

    async def _send(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        from aiohttp import ClientError, ClientSSLError, InvalidURL
        from yarl import URL

        try:
            async with self._session.request(
                method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
            ) as response:
                answer = bytearray()
                async for piece in response.content.iter_any():
                    answer += piece
                    if len(answer) > MAX_ANSWER:
                        raise Misconfigured(f"{self._address} answers with more than {MAX_ANSWER >> 20} MiB")
        except InvalidURL:
            raise Misconfigured(f"`{self._address}` is no address; write it as in {EXAMPLE}") from None
        except ClientSSLError:
            raise Misconfigured(
                f"{self._address} does not speak TLS, or has no certificate that is trusted here: is it http://?"
            ) from None
        except TimeoutError:
            raise _Lost(f"nothing came within {ANSWER_S:g} s") from None
        except (ClientError, OSError) as error:
            raise _Lost(str(getattr(error, "strerror", None) or type(error).__name__)) from None
        return response.status, bytes(answer)

    async def _events(self, url: str, after: str) -> AsyncIterator[bytes]:
        """Yield the lines of a feed as they come. Raises what `perform` raises, also where it breaks off."""
        from aiohttp import ClientError, ClientTimeout
        from yarl import URL

        headers = {"Last-Event-ID": after} if after else {}
        timeout = ClientTimeout(sock_connect=CONNECT_S, sock_read=ANSWER_S)
        try:
            async with self._session.get(
                URL(url, encoded=True), headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise self._error(response.status, await response.content.read(MAX_REFUSAL))
                async for line in response.content:
                    yield line
        except (ClientError, TimeoutError, OSError) as error:
            raise StoreAway(f"{self._address} does not answer to the end: {type(error).__name__}") from None

    def _error(self, status: int, answer: bytes) -> GatewayError:
        """Return the error that an answer tells."""
        if 300 <= status < 400:
            return Misconfigured(
                f"{self._address} sends on to another address ({status}): give that one, if it is yours"
            )
        try:
            error = msgspec.json.decode(answer, type=_Refusal).error
        except msgspec.DecodeError:
            return self._foreign(status)
        if status == 401:
            return Misconfigured(
                f"{self._address} does not accept the token in ${TOKEN}: it is the admin token, or a management token that is "
                "neither revoked nor expired"
            )
        if status in (404, 405) and error.code in ("unknown_path", "method_not_allowed"):
            if PREFIX not in error.message:
                return Misconfigured(
                    f"{self._address} is not the operator's port, maybe that for callers: give the address of `admin:`"
                )
            return Misconfigured(f"{self._address} does not know this operation: it is of another version")
        if status == 503 and error.message == refused(StoreAway()).message:
            return StoreAway("the store does not answer: try again")
        try:
            return in_own_words(Refused(status, error.code, error.message, param=error.param))
        except (TypeError, ValueError):
            return self._foreign(status)

    def _foreign(self, status: int) -> Misconfigured:
        return Misconfigured(
            f"{self._address} answers ({status}), but not as the operator's port of a gateway of this version: is it the right one?"
        )


def _address(url: str) -> str:
    """Return the address before the API's prefix. Raises `Misconfigured`."""
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise Misconfigured(f"--api: give the address of the operator's port, as in {EXAMPLE}")
    if parts.username is not None or parts.query or parts.fragment:
        raise Misconfigured(f"--api: give the address alone, as in {EXAMPLE}; the token is in ${TOKEN}")
    return url.strip().rstrip("/").removesuffix(PREFIX).rstrip("/")


def _checked(token: str) -> str:
    """Return a token that can be sent. Raises `Misconfigured`, without it."""
    token = token.strip()
    if not token:
        raise Misconfigured(f"--api needs a token: the admin token, or a management token, in ${TOKEN}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Misconfigured(f"${TOKEN} has characters that no token has")
    return token


def _path(action: Action[Any, Any], arguments: Arguments) -> str:
    """Return the path with the query."""
    path = action.path.format_map({name: _quoted(text) for name, text in arguments.path.items()})
    if arguments.query is None:
        return path
    query = msgspec.to_builtins(arguments.query)
    given = [(name, _as_text(value)) for name, value in query.items() if value not in (None, "", ())]
    return f"{path}?{urlencode(given)}" if given else path


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Misconfigured("an argument is not text in UTF-8") from None


def _as_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_as_text, value))
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value


class FeedElsewhere:
    """The feed of a gateway elsewhere, see `usage.Feed`."""

    def __init__(self, connect: Callable[[str], AsyncIterator[bytes]]) -> None:
        """`connect` returns the lines of a new connection, which begins after the event that it gets, or with what comes."""
        self._connect = connect

    async def records(self) -> AsyncIterator[Record]:
        """Yield records, without an end. A connection that breaks is made anew, from the same place on.

        Raises `StoreAway` where that fails for `PATIENCE_S`, and the error that the gateway had.
        """
        place, deadline = "", 0.0
        while True:
            try:
                async for event, record in events_of(self._connect(place)):
                    place, deadline = event, 0.0
                    yield record
            except StoreAway:
                if not place or (deadline and time.monotonic() > deadline):
                    raise
            deadline = deadline or time.monotonic() + PATIENCE_S
            await asyncio.sleep(RETRY_S)


async def events_of(lines: AsyncIterable[bytes]) -> AsyncIterator[tuple[str, Record]]:
    """Yield the records of a feed that is received, each with the `Last-Event-ID` to go on after it."""
    place = ""
    async for line in lines:
        name, _, value = line.decode().strip().partition(": ")
        if name == "id":
            place = value
        elif name == "data":
            yield place, decode(value)
