"""The hooks that see an answer: plugins see the events of a stream before they are written to the caller, and may end it.

An answer as a whole they read before anything of it is sent, and may end the exchange with an error in its place.

`on_delta` of plugins comes after them, and after what is counted and charged. It gets each piece of text, with the end of what came
before it that it has held back. Texts are the strings of a message, and `text` of a choice, but for tool calls, sounds and what
says what a thing is. What is held back is sent with the event that finishes its choice, that says something else in it, or before
`[DONE]`. An event of which no text changes stays as it is, to the byte; of one that changes, the log probabilities are left out.

Before that, `gateway.proxy.relay.Redaction` replaces the channel's credentials wherever they occur in events, however
reads split them, in the forms of `Channel.scrubbed`. One that an upstream changes otherwise is not recognised: in another case,
with letters written as `\\uXXXX`, or split over the texts of two events.

`EndReason` is why a relay ended, and what that means for a caller that has had the first byte.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from gateway.base.errors import Refused
from gateway.base.log import log
from gateway.chain.entry import origin_of
from gateway.chat.answers import KINDS, NO_TEXT, Delta, WholeAnswer
from gateway.chat.events import END, WatchedEvents, whole_up_to
from gateway.chat.request import decode
from gateway.chat.sse import parse_event, whole_events
from gateway.domain.exchange import Exchange, Outcome
from gateway.proxy import failure
from gateway.proxy.translation import encoded

ChunkHook = Callable[[Exchange, bytes], None]
Named = tuple[str, ChunkHook]
"""A hook, and the name of its plugin."""

NamedResponse = tuple[str, Callable[[Exchange], None]]
"""`on_response`, and the name of its plugin."""

DeltaHook = Callable[[Exchange, Delta, bool], tuple[str, str] | None]
NamedDelta = tuple[str, DeltaHook]
"""`on_delta`, and the name of its plugin."""

Fields = dict[str, Any]

MAX_HELD: Final = 64 * 1024
"""Characters of one text that may be held back."""
MOST_TEXTS: Final = 256
"""Texts of one answer of which something may be held back."""
UNCHANGED: Final = NO_TEXT | {"tool_calls", "function_call", "audio", "logprobs"}

REDACTED: Final = failure.REDACTED.encode()


class Rewriting:
    """One answer on its way through `on_delta` of one plugin."""

    __slots__ = ("_exchange", "_held", "_hook", "_name")

    def __init__(self, exchange: Exchange, name: str, hook: DeltaHook) -> None:
        self._exchange = exchange
        self._name = name
        self._hook = hook
        self._held: dict[tuple[int, str], str] = {}
        """What is held back, by choice and field."""

    def events(self, chunk: bytes) -> bytes:
        """Return whole events with their texts changed. Raises `Refused` for what cannot be read, and what the hook raises."""
        changed, size = [], 0
        for event in whole_events(chunk + END):
            size += len(event)
            changed.append(self._event(event))
        if size < len(chunk):
            raise _unreadable()
        return b"".join(changed)

    def whole(self, text: bytes) -> bytes:
        """Return an answer that is not streamed with its texts changed."""
        try:
            answer = decode(text.removeprefix(BOM_UTF8))
        except ValueError:
            return text  # a plugin's own, which is no JSON
        return encoded(answer) if self._choices(answer, whole=True) else text

    def _event(self, event: bytes) -> bytes:
        data = parse_event(event)[1]
        if not data:
            return event
        if data == b"[DONE]":
            return self._rest() + event
        try:
            chunk = decode(data)
        except (ValueError, RecursionError):
            raise _unreadable() from None
        return b"data: %b\n\n" % encoded(chunk) if self._choices(chunk, whole=False) else event

    def _rest(self) -> bytes:
        """Return an event with what is held back of choices that were not finished."""
        open_choices = sorted({choice for choice, _ in self._held})
        chunk: Fields = {"choices": [{"index": choice, "delta": {}, "finish_reason": None} for choice in open_choices]}
        for choice in chunk["choices"]:
            self._release(choice["index"], choice)
        return b"data: %b\n\n" % encoded({"object": "chat.completion.chunk", **chunk}) if open_choices else b""

    def _choices(self, answer: Any, *, whole: bool) -> bool:
        """Change the texts of an answer or a chunk in place. Return whether one is another now."""
        choices = answer.get("choices") if isinstance(answer, dict) else None
        changed = False
        try:
            for position, choice in enumerate(choices if isinstance(choices, list) else ()):
                if isinstance(choice, dict) and self._choice(position if whole else 0, choice, whole):
                    changed = True
                    if choice.get("logprobs"):
                        choice["logprobs"] = None
        except RecursionError:
            raise _unreadable() from None
        return changed

    def _choice(self, position: int, choice: Fields, whole: bool) -> bool:
        index = choice.get("index")
        number = index if isinstance(index, int) else position
        last = whole or bool(choice.get("finish_reason"))
        changed = self._fields(number, choice, ("text",), last)
        said = ["text"] if choice.get("text") else []
        for name in ("delta", "message"):
            if isinstance(message := choice.get(name), dict):
                changed |= self._fields(number, message, tuple(message), last)
                said += [name for name, value in message.items() if value and name not in NO_TEXT]
        for held, field in list(self._held):
            if held == number and field not in said and (last or said):
                changed |= self._release(number, choice, field)
        return changed

    def _fields(self, number: int, holder: Fields, names: Sequence[str], last: bool) -> bool:
        """Change the strings of these fields, and those within them, in place."""
        changed = False
        for name in names:
            value = holder.get(name)
            if isinstance(value, str) and value and name not in UNCHANGED:
                holder[name] = self._text(number, name, value, last)
                changed |= holder[name] != value
            elif isinstance(value, (dict, list)) and name not in UNCHANGED:
                changed |= self._within(number, name, value)
        return changed

    def _within(self, number: int, field: str, value: Any) -> bool:
        """Change the strings within a field, each by itself: nothing of them is held back."""
        changed = False
        for name, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(each, (dict, list)) and name not in UNCHANGED:
                changed |= self._within(number, field, each)
            elif isinstance(each, str) and name not in UNCHANGED:
                value[name] = self._called(Delta(number, KINDS.get(field, "other"), each, 0, 0, field), last=True)[0]
                changed |= value[name] != each
        return changed

    def _text(self, number: int, field: str, piece: str, last: bool) -> str:
        """Return what is sent of a text with its next piece, and hold back what the hook says."""
        text = self._held.pop((number, field), "") + piece
        delta = Delta(number, KINDS.get(field, "other"), text, 0, 0, field)
        sent, held = self._called(delta, last=last) if text else ("", "")
        if held:
            if len(held) > MAX_HELD or len(self._held) >= MOST_TEXTS:
                raise ValueError(f"`on_delta` holds back more than {MAX_HELD} characters, or {MOST_TEXTS} texts")
            self._held[number, field] = held
        return sent

    def _called(self, delta: Delta, *, last: bool) -> tuple[str, str]:
        answer: object = self._hook(self._exchange, delta, last)
        if answer is None:
            return delta.text, ""
        if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(text, str) for text in answer)):
            kind = type(answer).__name__
            raise TypeError(f"`on_delta` returns {kind}: return None, or what is sent and what is held back")
        sent, held = answer
        if sent + held != delta.text and self._name not in self._exchange.changed_by:
            self._exchange.changed_by += (self._name,)
        return (sent + held, "") if last else (sent, held)

    def _release(self, number: int, choice: Fields, field: str = "") -> bool:
        """Put what is held back of one text of a choice, or of all of them, into an event."""
        for name in [field] if field else [name for held_of, name in self._held if held_of == number]:
            holder = choice
            if name != "text":
                holder = choice["delta"] = choice["delta"] if isinstance(choice.get("delta"), dict) else {}
            holder[name] = self._text(number, name, "", last=True)
        return True


def rewritten(exchange: Exchange, hooks: Sequence[NamedDelta], text: bytes) -> bytes:
    """Return an answer that is not streamed after `on_delta` of all plugins. Raises what one raises, and names it in the record."""
    for name, hook in hooks:
        try:
            text = Rewriting(exchange, name, hook).whole(text)
        except BaseException as error:
            exchange.refused_by = name
            if isinstance(error, Refused):
                exchange.stop(error)
            raise
    return text


def _unreadable() -> Refused:
    text = "The answer was ended: it has an event that is too long or is no JSON, so that its text cannot be changed."
    return Refused(502, "upstream_error", text, type="upstream_error")


class ChunkHooks:
    """The hooks of one stream, until one ends it: events that this plugin withholds are neither delivered nor counted."""

    __slots__ = ("_exchange", "_hooks", "at_boundary", "failure", "withheld")

    def __init__(self, exchange: Exchange, hooks: Sequence[Named], deltas: Sequence[NamedDelta] = ()) -> None:
        self._exchange = exchange
        self._hooks: list[tuple[str, ChunkHook | Rewriting]] = [*hooks]
        self._hooks += [(name, Rewriting(exchange, name, hook)) for name, hook in deltas]
        self.withheld = False
        """A plugin ended the stream, or failed: later events are not delivered."""
        self.failure: Exception | None = None
        self.at_boundary = True
        """The delivered bytes end with a complete event."""

    @property
    def reason(self) -> EndReason:
        """Why the stream ended, once something is withheld."""
        return EndReason.STOPPING if self.failure is None else EndReason.PLUGIN

    def deliverable(self, chunk: bytes, events: WatchedEvents, held: int = 0) -> bytes:
        """Return what the plugins make of the whole events that `events` relayed last. It may be empty.

        `held`: how many bytes at their end `Redaction` holds back.
        """
        exchange, passed, changed = self._exchange, chunk, None
        for name, hook in self._hooks:
            try:
                if isinstance(hook, Rewriting):
                    changed = hook.events(passed if changed is None else changed)
                else:
                    hook(exchange, passed)
            except Refused as refused:
                exchange.stop(refused)
            except BaseException as error:
                where = origin_of(error, name, "on_delta" if isinstance(hook, Rewriting) else "on_chunk")
                log.error("plugin_failed", **where, request_id=exchange.id, exc_info=error)
                self.failure = (
                    error if isinstance(error, Exception) else RuntimeError(f"a plugin raised {type(error).__name__}")
                )
            if exchange.stopped is not None or self.failure is not None:
                if not self.withheld:
                    self.withheld, exchange.refused_by = True, name
                passed = b"" if self.failure is not None else whole_up_to(passed, exchange.kept)
                if not passed:
                    break
        if self.withheld:
            events.withdraw(sum(1 for _ in whole_events(passed + END)) if passed else 0)
            self.at_boundary = bool(passed) or self.at_boundary
        else:
            events.deliver(held)
            self.at_boundary = events.at_boundary
        return changed if passed and changed is not None else passed


def run_response_hooks(exchange: Exchange, hooks: Sequence[NamedResponse]) -> None:
    """Run `on_response` of the plugins. Raises the exception of a plugin, and the error with which one ends the exchange."""
    for name, hook in hooks:
        try:
            hook(exchange)
        except Refused as refused:
            exchange.stop(refused)
        except BaseException:
            exchange.refused_by = name
            raise
        if exchange.stopped is not None:
            exchange.refused_by = name
            raise exchange.stopped


class AnswerHooks(NamedTuple):
    """The hooks of answers: of all plugins, or of those above one that answers."""

    responses: Sequence[NamedResponse] = ()
    chunks: Sequence[Named] = ()
    deltas: Sequence[NamedDelta] = ()

    def whole(self, exchange: Exchange, text: bytes) -> bytes:
        """Return what is sent of an answer that is not streamed. Raises as `run_response_hooks`."""
        exchange.texts = WholeAnswer(text) if text else None
        run_response_hooks(exchange, self.responses)
        wire = exchange.request.operation.wire
        return rewritten(exchange, self.deltas, text) if wire is not None and wire.rewrites else text


class EndReason(Enum):
    """Why a relay ended."""

    OTHER = "the answer is no event stream, or there is none"
    REFUSED = "the first event is an error"
    LATE = "no event arrived in time"
    COMPLETE = "the answer is complete"
    UPSTREAM = "the upstream ended its answer"
    BROKEN = "the upstream's connection broke"
    IDLE = "the upstream sent nothing for too long"
    TOTAL = "the answer took too long"
    SIZE = "the answer grew too large"
    CALLER = "the caller left"
    CALLER_STALLED = "the caller stopped reading"
    STOPPING = "the gateway is stopping, or it stopped this exchange"
    PLUGIN = "a plugin failed"


# Names of a module, as each request asks for them.
COMPLETE: Final = EndReason.COMPLETE
CALLER_STALLED: Final = EndReason.CALLER_STALLED
STOPPING: Final = EndReason.STOPPING


class Incomplete(msgspec.Struct, frozen=True):
    """An answer that ended without being complete: its outcome, and the error event that the caller gets."""

    outcome: Outcome
    type: str
    code: str
    message: str

    def error(self) -> Refused:
        """Return the error for the event."""
        return Refused(500, self.code, self.message, type=self.type)


INCOMPLETE: Final = {
    EndReason.UPSTREAM: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream ended the answer before it was whole.",
    ),
    EndReason.BROKEN: Incomplete(
        Outcome.UPSTREAM_TRUNCATED,
        "upstream_error",
        "upstream_truncated",
        "The upstream's connection broke before the answer was whole.",
    ),
    EndReason.IDLE: Incomplete(
        Outcome.UPSTREAM_STALLED,
        "upstream_error",
        "upstream_timeout",
        "The upstream fell silent in the middle of the answer.",
    ),
    EndReason.TOTAL: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_timeout", "The answer took longer than this gateway allows."
    ),
    EndReason.SIZE: Incomplete(
        Outcome.STOPPED, "upstream_error", "upstream_error", "The answer is larger than this gateway allows."
    ),
    EndReason.STOPPING: Incomplete(
        Outcome.STOPPED,
        "service_error",
        "service_unavailable",
        "The gateway is stopping; send the request again.",
    ),
    EndReason.PLUGIN: Incomplete(Outcome.INTERNAL_ERROR, "service_error", "internal_error", ""),
}
"""The outcome and the error event for each reason that leaves a started answer incomplete. `attempt` handles the others."""
