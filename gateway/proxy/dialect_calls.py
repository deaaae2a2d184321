"""The calls of a dialect's methods: what they return is checked, what fails is logged with its plugin, method, file and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from gateway.chain.dialects import provider_of
from gateway.chain.failures import error_text
from gateway.chat.dialect import AnswerDelta, AnswerReader, ChatRequest, Dialect
from gateway.errors import Refused
from gateway.log import Logger, place_of

MAX_DELTAS: Final = 10_000
"""What a reader may give for one event: one that never ends would stop the worker."""

log = Logger("gateway.proxy.dialect_calls")

_DELTA_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "id": (str, "a string"),
    "model": (str, "a string"),
    "message": (Mapping, "a mapping"),
    "finish_reason": (str, "a string"),
    "usage": (Mapping, "a mapping"),
    "reported": (bytes, "bytes"),
    "error": (Mapping, "a mapping"),
    "status": (int, "a number"),
}
_TEXTS: Final = ("content", "refusal", "reasoning_content")


class DialectFailed(Exception):
    """A method of a dialect raised, or returned what it must not. It is logged. `plugin`: the one that provides the dialect."""

    def __init__(self, plugin: str) -> None:
        super().__init__(plugin)
        self.plugin = plugin


class DialectCalls:
    """The methods of a dialect, for one request. Each raises `DialectFailed` where the dialect's own fails."""

    def __init__(self, dialect: Dialect, request_id: str = "") -> None:
        self.dialect = dialect
        self._request_id = request_id

    def request(self, chat: ChatRequest) -> bytes:
        """Return the body to send. Raises `Refused` for what the dialect refuses."""
        try:
            body = self.dialect.request(chat)
        except Refused:
            raise
        except BaseException as error:
            self._failed("request", error)
        if not isinstance(body, bytes) or not body:
            self._wrong("request", f"returned {_shown(body)}, not the bytes of a body")
        return body

    def reader(self) -> AnswerReader:
        """Return a reader for one answer."""
        try:
            reader = self.dialect.reader()
        except BaseException as error:
            self._failed("reader", error)
        if not callable(getattr(reader, "read", None)):
            self._wrong("reader", f"returned {_shown(reader)}, not an AnswerReader")
        return reader

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an error in OpenAI's terms."""
        try:
            said: Any = self.dialect.error(status, body)
        except BaseException as error:
            self._failed("error", error)
        if not (isinstance(said, tuple) and len(said) == 2 and type(said[0]) is int and isinstance(said[1], bytes)):
            self._wrong("error", f"returned {_shown(said)}, not a status and the bytes of a body")
        if not 400 <= said[0] <= 599:
            self._wrong("error", f"returned the status {said[0]}, not one from 400 to 599")
        return said

    def deltas(self, reader: AnswerReader, name: str, data: bytes) -> Iterator[AnswerDelta]:
        """Yield what an event says."""
        try:
            read: Any = reader.read(name, data)
            if not isinstance(read, Iterable):
                self._wrong("read", f"returned {_shown(read)}, not AnswerDeltas: yield them, or return a list", reader)
            for number, delta in enumerate(read):
                if number == MAX_DELTAS:
                    self._wrong("read", f"gave more than {MAX_DELTAS} AnswerDeltas for one event", reader)
                if wrong := _wrong_delta(delta):
                    self._wrong("read", wrong, reader)
                yield delta
        except (DialectFailed, GeneratorExit):
            raise
        except BaseException as error:  # what the upstream sent may be the cause, so that its text is not logged
            self._failed("read", error, quiet=True)

    def note_unwritable(self, reader: AnswerReader, error: Exception) -> None:
        """Log that a reader gave what JSON does not have."""
        self._note_wrong("read", f"gave what JSON does not have: {error_text(error)}", reader)

    def _failed(self, method: str, error: BaseException, *, quiet: bool = False) -> NoReturn:
        note = log.warning if quiet else log.error
        said = {"error": type(error).__name__} if quiet else {"exc_info": error}
        note("dialect_failed", **self._where(method), at=place_of(error), request_id=self._request_id, **said)
        raise DialectFailed(provider_of(self.dialect)) from None

    def _wrong(self, method: str, reason: str, owner: object = None) -> NoReturn:
        self._note_wrong(method, reason, owner)
        raise DialectFailed(provider_of(self.dialect))

    def _note_wrong(self, method: str, reason: str, owner: object) -> None:
        at = _place(getattr(owner or self.dialect, method))
        log.error("dialect_failed", **self._where(method), at=at, request_id=self._request_id, reason=reason)

    def _where(self, method: str) -> dict[str, str]:
        return {"plugin": provider_of(self.dialect), "dialect": self.dialect.name, "method": method}


def _wrong_delta(delta: object) -> str:
    """Return what is wrong with what a reader gave, or nothing."""
    if not isinstance(delta, AnswerDelta):
        return f"gave {_shown(delta)}, not an AnswerDelta"
    for name, (kind, meant) in _DELTA_TYPES.items():
        if not isinstance(value := getattr(delta, name), kind):
            return f"gave an AnswerDelta whose `{name}` is {_shown(value)}, not {meant}"
    for name in _TEXTS:
        if not isinstance(value := delta.message.get(name), str | None):
            return f"gave a message whose `{name}` is {_shown(value)}, not a string"
    if not isinstance(calls := delta.message.get("tool_calls"), list | tuple | None):
        return f"gave a message whose `tool_calls` is {_shown(calls)}, not a list"
    return ""


def _shown(value: object) -> str:
    return "None" if value is None else f"a value of the type {type(value).__name__}"


def _place(method: Callable[..., object]) -> str:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return "" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"
