"""Failures of an upstream before the first event: the error for the caller, and whether another candidate is called.

An upstream's 401 is about the gateway's credential, and so is an answer that says that nothing is left to spend; its 402 and 403
are about that or about what the request contains, such as more tokens than can be paid. Their text is never shown. Other statuses
from 400 to 422 are about the caller's request and are passed on. Everything else is the channel's fault, or something that the
request makes the channel do: the circuit breaker tells them apart by the accounts that meet it.

The body of a failure is read within a bound; the headers that say when to retry count; and credentials are replaced.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from gateway.base.errors import Refused, internal
from gateway.base.text import without_secrets
from gateway.chat import upstream_errors
from gateway.domain.exchange import NOTHING_SAID, UpstreamWords

if TYPE_CHECKING:
    from gateway.proxy.upstream import UpstreamConnection

MAX_ERROR_BODY: Final = 64 * 1024
REQUEST_FAULT: Final = frozenset(range(400, 423)) - {401, 402, 403, 407, 408}
OVERLOADED: Final = 529
QUOTA_EXHAUSTED: Final = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "exceeded_current_quota_error",
        "usage_limit_reached",
        "insufficient_balance",
        "insufficient_credits",
        "credits_exhausted",
        "1113",
    }
)
"""Values of `code` or `type` in a 429 that lasts until somebody pays. Messages do not tell: some providers call a limit
per minute a quota.
"""
_SPENT: Final = re.compile(
    r"((you|your|the|this|account|have|has|is|are) )*"
    r"(insufficient (balance|credit|fund|quota)|(out of|no) credits?\b|exceeded your current quota|balance is used up)",
    re.IGNORECASE,
)
"""How a 402 begins where nothing is left to spend. Other ones ask for fewer tokens, as OpenRouter's do."""
_SPENT_AT_ANTHROPIC: Final = "Your credit balance is too low"
"""The beginning of a 400. Only the beginning counts: what follows may quote the caller."""
TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})
_TOO_LONG: Final = re.compile(
    r"maximum (context|prompt) length is|maximum model length of|exceeds? (the |its |)(maximum |model's |available )*context"
    r"|longer than the model's context length|prompt is too long|input is too long for requested model"
    r"|input token count .{0,40}exceeds the maximum|too large for model with .{0,40}maximum context length"
    r"|tokens \+ `max_new_tokens` must be|number of tokens in the prompt cannot exceed|exceed context limit",
    re.IGNORECASE,
)
"""What OpenAI, Anthropic, Gemini, Mistral, Bedrock, xAI, Cohere, Together, Fireworks, vLLM, SGLang, llama.cpp and Ollama say."""
_STARTING: Final = re.compile(
    r"loading model|(the )?(model|server|engine)( \S{1,256})? is ((currently|still) )?"
    r"(loading|starting( up)?|warming up|not (yet )?ready)( yet)?[.!]?( please (wait|retry|try again)[\w ]{0,60}\.?)?",
    re.IGNORECASE,
)
"""All that llama.cpp, SGLang, TGI and Hugging Face say in a 503 while they load a model: more may quote the caller."""
MAX_WORDS_READ: Final = 4096
MOST_WORDS: Final = 300
"""Characters that are kept of an upstream's own words."""
_TAG: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
REDACTED: Final = "[redacted]"

NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)


class CallerGone(Exception):
    """The caller left before the first byte of a response."""


class UpstreamFailure(msgspec.Struct, frozen=True):
    """Why a candidate gave no answer.

    `error`: what the caller is told if no other candidate answers. `final`: no other candidate is called. `maybe_billed`: the
    upstream may have worked on the request. `cool_s`: for how long the upstream is not to be called, None where it did not say
    so. `credential_refused`: the upstream refused the gateway's credential. `spent`: it has nothing left to spend. `forbidden`: it
    refused the credential or what the request contains. `too_long`: the prompt is longer than the model's window. `no_channel`: no
    candidate could be called. `starting`: the upstream loads the model. `not_the_request`: no request can cause this. `unfit`: the
    request cannot be said in the upstream's dialect, and was not sent. `why`: the status with which a credential was refused.
    `plugin`: the one whose dialect failed. `said`: the upstream's own words, for operators.
    """

    error: Refused
    final: bool = False
    maybe_billed: bool = False
    cool_s: float | None = None
    credential_refused: bool = False
    spent: bool = False
    forbidden: bool = False
    too_long: bool = False
    no_channel: bool = False
    starting: bool = False
    not_the_request: bool = False
    unfit: bool = False
    why: str = ""
    plugin: str = ""
    said: UpstreamWords = NOTHING_SAID

    @property
    def may_fall_back(self) -> bool:
        """Whether another model may serve the request: the upstream did not judge its content."""
        return self.too_long or self.no_channel or not (self.final or self.unfit or self.why == "403")


def of_answer(status: int, headers: Mapping[str, str], body: bytes, credentials: Sequence[str]) -> UpstreamFailure:
    """Return the failure that a response other than the requested stream stands for."""
    detail = _detail(body, credentials)
    failed = _of_answer(status, headers, detail)
    return msgspec.structs.replace(failed, said=words_of(detail, body, credentials))


def _of_answer(status: int, headers: Mapping[str, str], detail: Mapping[str, str]) -> UpstreamFailure:
    wait_s, advice = retry_after_s(headers), should_retry(headers)
    if is_spent(status, detail):
        why = f"{status}, nothing is left to spend"
        return UpstreamFailure(_auth_failed(), credential_refused=True, spent=True, why=why)
    if status in REQUEST_FAULT:
        return UpstreamFailure(_passed_on(status, detail, advice), final=True, too_long=is_too_long(detail))
    if status == 401:
        return UpstreamFailure(_auth_failed(), cool_s=0, credential_refused=True, why="401")
    if status in (402, 403):
        return UpstreamFailure(_auth_failed(), forbidden=True, why=str(status))
    if status == 407:
        text = "The proxy in front of the upstream refused the gateway. Tell the operator, or choose another model."
        error = Refused(502, "upstream_unreachable", text, should_retry=False)
        return UpstreamFailure(error, cool_s=0, not_the_request=True)
    if status == 429:
        error = Refused(
            429,
            "upstream_rate_limited",
            "The upstream is limiting requests for this model. Wait, then retry with backoff, or choose another model.",
            retry_after_s=wait_s or (None if advice is False else 1),
            should_retry=advice,
        )
        return UpstreamFailure(error, cool_s=wait_s or 0)
    if status == 503 and _STARTING.fullmatch(detail.get("message", "").strip()):
        text = "The upstream of this model is starting. Retry shortly, or choose another model."
        return UpstreamFailure(
            Refused(503, "model_unavailable", text, type="upstream_error", retry_after_s=wait_s or 1), starting=True
        )
    error = failed("The upstream failed to answer. Retry later or choose another model.")
    error.retry_after_s, error.should_retry = wait_s, advice
    return UpstreamFailure(error, cool_s=(wait_s or 0) if status == OVERLOADED else wait_s)


def of_event(
    error: bytes, credentials: Sequence[str], status: int = 0, headers: Mapping[str, str] | None = None
) -> UpstreamFailure:
    """Return the failure that an error as the first event of a stream stands for. `status`: what it says, if that is known."""
    if status >= 400:
        return of_answer(status, headers or {}, error, credentials)
    detail = _detail(error, credentials)
    message = detail.get("message") or "no reason given"
    said = words_of(detail, error, credentials)
    return UpstreamFailure(failed(f"The upstream answered with an error: {message}"), said=said)


def is_spent(status: int, detail: Mapping[str, str]) -> bool:
    """Return whether an answer says that the credential has nothing left to spend, until somebody pays."""
    if status in (402, 429) and not QUOTA_EXHAUSTED.isdisjoint((detail.get("code"), detail.get("type"))):
        return True
    message = detail.get("message", "")
    return (status == 402 and bool(_SPENT.match(message))) or (
        status == 400 and message.startswith(_SPENT_AT_ANTHROPIC)
    )


def is_too_long(detail: Mapping[str, str]) -> bool:
    """Return whether an error says that the prompt is longer than the model's window."""
    named = TOO_LONG_CODES.isdisjoint((detail.get("code"), detail.get("type")))
    return not named or bool(_TOO_LONG.search(detail.get("message", "")))


def words_of(detail: Mapping[str, str], body: bytes, credentials: Sequence[str]) -> UpstreamWords:
    """Return an upstream's own words about an error, cut and without anything that may be a secret."""
    text = detail.get("message") or _TAG.sub(" ", _beginning(body, credentials))
    given = (text, detail.get("code", ""), detail.get("type", ""))
    return UpstreamWords(*(without_secrets(" ".join(each.split())[:MOST_WORDS]) for each in given))


def _beginning(body: bytes, credentials: Sequence[str]) -> str:
    """Return the beginning of a body without the channel's credentials, also without one that the cut divides."""
    text = scrubbed(body[:MAX_WORDS_READ].decode(errors="replace"), credentials)
    longest = max(map(len, credentials), default=0)
    return text[:-longest] if longest and len(body) > MAX_WORDS_READ else text


def of_dialect(plugin: str) -> UpstreamFailure:
    """Return the failure of a dialect, before anything was sent."""
    return UpstreamFailure(internal(), unfit=True, plugin=plugin)


def failed(message: str, code: str = "upstream_error") -> Refused:
    """Return a 502."""
    return Refused(502, code, message)


def unreachable() -> UpstreamFailure:
    """Return the failure of a channel to which there is no connection."""
    text = "The upstream cannot be reached. Retry later or choose another model."
    return UpstreamFailure(failed(text, "upstream_unreachable"), not_the_request=True)


def out_of_time() -> UpstreamFailure:
    """Return the failure of a request whose time was over before its upstream could be called, by its own body or by plugins."""
    text = "The time of this request was over before an upstream could be called. Send its body faster."
    return UpstreamFailure(Refused(504, "upstream_timeout", text), final=True)


def dropped() -> UpstreamFailure:
    """Return the failure of a connection that closed after the request was sent and before a response."""
    text = "The upstream closed the connection without an answer. Retry later or choose another model."
    error = failed(text)
    error.should_retry = False
    return UpstreamFailure(error, maybe_billed=True)


def truncated() -> UpstreamFailure:
    """Return the failure of an answer in JSON that broke off. Its beginning was paid for, and a retry would be paid again."""
    text = "The upstream ended the answer before it was whole. Retry later or choose another model."
    error = failed(text, "upstream_truncated")
    error.should_retry = False
    return UpstreamFailure(error, maybe_billed=True)


def invalid_response(expected: str = "an event stream") -> UpstreamFailure:
    """Return the failure of a response that is not HTTP/1.1 or not what is expected."""
    return UpstreamFailure(
        failed(f"The upstream's answer is not {expected}. Tell the operator, or choose another model.")
    )


def too_large() -> UpstreamFailure:
    """Return the failure of a response that exceeded the channel's `max_response_bytes` before the caller had any of it."""
    return UpstreamFailure(failed("The answer is larger than this gateway allows. Ask for less."), maybe_billed=True)


def timed_out(to: str = "begin its answer") -> UpstreamFailure:
    """Return the failure of an upstream that was too slow `to` do something. A retry may cost twice."""
    text = f"The upstream took too long to {to}. Retry later or choose another model."
    return UpstreamFailure(Refused(504, "upstream_timeout", text, should_retry=False), maybe_billed=True)


def scrubbed(text: str, credentials: Sequence[str]) -> str:
    """Return `text` with the channel's credentials replaced; decoded, where one is in it with any of its letters as `%41`."""
    for credential in credentials:
        text = text.replace(credential, REDACTED)
    if "%" in text and any(map((decoded := unquote(text)).__contains__, credentials)):
        return scrubbed(decoded, credentials)
    return text


def scrubbed_bytes(data: bytes, credentials: Sequence[str]) -> bytes:
    """Return the same of bytes, of which the others stay as they are, also where they are no UTF-8."""
    for credential in credentials:
        data = data.replace(credential.encode(), REDACTED.encode())
    return data


def _auth_failed() -> Refused:
    text = "The upstream refused the gateway's own credential. Tell the operator, or choose another model."
    return Refused(502, "upstream_auth_failed", text, should_retry=False)


def _passed_on(status: int, detail: Mapping[str, str], advice: bool | None) -> Refused:
    """Return the upstream's own error, or one of the same status where it has no text that can be shown."""
    if message := detail.get("message"):
        code, kind, param = detail.get("code"), detail.get("type"), detail.get("param")
        error = Refused(status, code or "upstream_refused", message, type=kind, param=param, should_retry=advice)
        error.counted_as = "upstream_refused"
        return error
    if status == 413:
        text = "The request is larger than the upstream accepts. Shorten the messages."
        return Refused(status, "body_too_large", text, should_retry=advice)
    text = f"The upstream refused this request with status {status} and gave no reason that can be shown."
    return Refused(status, "upstream_refused", f"{text} Check it, or choose another model.", should_retry=advice)


def _detail(body: bytes, credentials: Sequence[str]) -> dict[str, str]:
    """Return the string fields of an error, in whichever dialect."""
    found = upstream_errors.details(upstream_errors.decode(body))
    return {name: scrubbed(value, credentials)[:2000] for name, value in found.items()}


class Read(NamedTuple):
    """The part of a body that was read: `whole` as its framing says, else `broken` off, or else too `long`, late or cancelled."""

    data: bytes
    whole: bool
    broken: bool
    long: bool


async def read_body(
    upstream: UpstreamConnection, max_bytes: int, timeout_s: float, cancelled: asyncio.Future[Any]
) -> Read:
    """Return the body up to `max_bytes`.

    Reading stops after `max_bytes`, after `timeout_s`, and when `cancelled` is done.
    """
    pieces: list[bytes] = []
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    size = 0

    def on_data(data: bytes) -> None:
        nonlocal size
        pieces.append(data)
        size += len(data)
        if size > max_bytes:
            upstream.pause()
            on_end(False)

    def on_end(clean: bool) -> None:
        if not done.done():
            done.set_result(clean)

    upstream.flow_to(on_data, on_end)
    await asyncio.wait((done, cancelled), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    ended, too_long = done.done(), size > max_bytes
    whole = ended and done.result()
    return Read(b"".join(pieces)[:max_bytes], whole, ended and not whole and not too_long, too_long)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds the upstream asks to wait, None where it does not say so.

    `retry-after-ms` is more exact than `Retry-After` and counts first. A date is measured from the answer's own `Date`, since the
    upstream's clock may be off; without that it is ignored.
    """
    milliseconds, text = headers.get("retry-after-ms", "").strip(), headers.get("Retry-After", "").strip()
    if NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    if NUMBER.fullmatch(text):
        return float(text)
    try:
        wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (TypeError, ValueError):
        return None
    return max(0.0, wait_s)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return what the upstream's `x-should-retry` says, None where it has none."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())
