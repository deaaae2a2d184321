"""Who answered: the gateway, which each of its answers shows, or something on the way to it.

An error of the gateway has the id of its request, a UUID of version 7, and its list of models names the gateway. Both are in
the body, because proxies replace headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import ClientResponse
from yarl import URL

from gateway.request_id import arrival_ms
from gateway.tools.diagnosis import Diagnosis, ill, shown

MOST_BYTES: Final = 4 << 20
TITLE: Final = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)

REMEDIES: Final = {
    401: "Copy the whole token again and send it as `Authorization: Bearer TOKEN`; ask the operator if it still fails.",
    402: "Check the balance and top it up, or lower max_tokens.",
    403: "Ask the operator about the account's status, its group, and the restrictions of this token.",
    404: "Check the name in the model catalogue: GET /v1/models.",
    429: "Send fewer requests at once, and retry with backoff after the time in Retry-After.",
    502: "The upstream failed: retry later or choose another model.",
    503: "Retry shortly, or choose another model.",
    504: "The upstream was too slow: retry later or choose another model.",
}
RESTRICTED: Final = (
    "Ask the operator which models and addresses the token is for. Behind a proxy, the gateway sees this address only if "
    "`port.trusted_proxies` has the proxy's."
)
QUOTE_THE_ID: Final = "Quote the request id to the operator."
ASK_THE_OPERATOR: Final = "Ask the operator of the service for its base address, with the path prefix, if it has one."


class Answer(msgspec.Struct, frozen=True):
    """An answer as it came. `headers` is case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the gateway; None where this is no error, or not one of the gateway."""
        error = _object(self.body).get("error")
        if not isinstance(error, dict) or not error.keys() >= {"message", "type", "param", "code", "request_id"}:
            return None
        return error if _is_request_id(error["request_id"]) else None

    @property
    def models(self) -> list[str] | None:
        """The names of the models in the gateway's list; None where this is not its list."""
        entries = _object(self.body).get("data")
        if self.status != 200 or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return None
        if any(entry.get("owned_by") != "sluicegate" for entry in entries):
            return None
        if not entries and not _is_request_id(self.headers.get("x-request-id")):
            return None
        return [str(entry.get("id")) for entry in entries]

    @property
    def is_of_gateway(self) -> bool:
        """Whether the gateway gave this answer."""
        return self.error is not None or self.models is not None


async def received(response: ClientResponse) -> Answer:
    """Read a whole answer, or as much of it as the gateway would send."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MOST_BYTES:
            break
    return Answer(response.status, response.headers, bytes(body))


def failed(subject: str, answer: Answer, url: URL) -> Diagnosis:
    """Return what an answer says that is not the expected one: an error of the gateway, or an answer of something else."""
    error = answer.error
    if error is None:
        return stranger(subject, answer, url)
    code, message = shown(str(error["code"])), shown(str(error["message"]), 1000)
    text = f"{answer.status} {code}: {message} (request {error['request_id']})"
    remedy = RESTRICTED if code == "token_restricted" else REMEDIES.get(answer.status, QUOTE_THE_ID)
    return ill(subject, code, text, remedy)


def stranger(subject: str, answer: Answer, url: URL) -> Diagnosis:
    """Return the verdict on an answer that is not the gateway's: which kind of thing on the way gave it."""
    status, by = answer.status, _signature(answer)
    if 300 <= status < 400 and "Location" in answer.headers:
        return _redirect(subject, answer, url)
    if status == 407 or (status == 401 and "WWW-Authenticate" in answer.headers):
        remedy = (
            "Ask the operator for an address without a login in front; the header can carry only the gateway's token."
        )
        return ill(subject, "login_of_proxy", f"a proxy asks for a login of its own ({by})", remedy)
    if status == 504:
        remedy = (
            "Let its operator make its timeout longer than the channels' `timers.total` (nginx: proxy_read_timeout); if this "
            "fails at once, it cannot reach the gateway."
        )
        return ill(
            subject,
            "proxy_timeout",
            f"a proxy answers in place of the gateway, which was too slow for it ({by})",
            remedy,
        )
    if status >= 500:
        remedy = "Ask its operator whether the gateway runs, and whether the proxy has the right address of it."
        return ill(subject, "proxy_without_gateway", f"a proxy answers in place of the gateway ({by})", remedy)
    if status in (401, 403, 451) and not _object(answer.body):
        remedy = "Ask who operates the firewall, VPN or filter on the way to let this address pass."
        return ill(subject, "blocked", f"something on the way refuses the request ({by})", remedy)
    if status in (408, 413, 429, 431):
        return ill(
            subject, "limit_of_proxy", f"a proxy refuses the request by a limit of its own ({by})", "Ask its operator."
        )
    if status < 300 and b"<html" in answer.body[:4096].lower():
        remedy = (
            "Open the address in a browser: where a network asks for a login (captive portal), or a company for a sign-in, it "
            "shows the page. " + ASK_THE_OPERATOR
        )
        return ill(subject, "web_page", f"a web page answers in place of the gateway ({by})", remedy)
    text = f"something else answers at {url.host}:{url.port} ({by})"
    return ill(subject, "other_service", text, ASK_THE_OPERATOR)


def _redirect(subject: str, answer: Answer, url: URL) -> Diagnosis:
    try:
        target = url.join(URL(answer.headers["Location"]))
        place = str(target.with_query(None).with_fragment(None).with_user(None))
    except ValueError:
        return ill(subject, "redirect", f"it redirects to no address ({_signature(answer)})", ASK_THE_OPERATOR)
    text = f"it redirects to {shown(place)} ({_signature(answer)})"
    if target.path.rstrip("/").endswith(("/models", "/chat/completions")):
        base = shown(re.sub(r"/(models|chat/completions)/?$", "", place))
        remedy = f"Clients that follow a redirect drop the token, or the body. Use the address behind it: {base}"
        return ill(subject, "redirect", text, remedy)
    remedy = "This is a login page: of the network (captive portal), or a sign-in in front of the service. "
    return ill(subject, "redirect_to_login", text, remedy + ASK_THE_OPERATOR)


def _signature(answer: Answer) -> str:
    """Return by what one may recognize who gave an answer: its status, software and title."""
    parts = [f"status {answer.status}"]
    parts += [f"{name} {shown(answer.headers[name], 60)}" for name in ("Server", "Via") if name in answer.headers]
    if (title := TITLE.search(answer.body[:65536])) is not None:
        parts.append(f"title `{shown(' '.join(title[1].decode(errors='replace').split()), 60)}`")
    return ", ".join(parts)


def _is_request_id(text: object) -> bool:
    try:
        return isinstance(text, str) and arrival_ms(text) > 0
    except ValueError:
        return False


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
