"""What a channel adds to each of its requests: headers, parameters of the address, fields of the body, and the credential.

Nothing here may change how a request is framed, where it goes, which model it names, or how many tokens it may use: those are
settings of their own. Values may be secret, so no message and no `repr` shows one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.chat.fields import CHECKED, PROTOTYPE, REMEDIES, fold, fold_case
from gateway.config.section import WrongSetting

MAX_NAMES: Final = 64
MAX_BYTES: Final = 8 * 1024
"""Of all headers, all parameters or all fields of a channel."""

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~\t]*[!-~])?")
PARAMETER_NAME: Final = re.compile(r"[!-~]{1,128}")

_FRAMING: Final = "it says how the request is framed or to whom it goes, which the gateway writes itself; leave it out"
_CALLERS: Final = "the gateway writes it for each request; leave it out"
RESERVED_HEADERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("connection", "content-encoding", "content-length", "expect", "host", "http2-settings", "keep-alive"), _FRAMING
    ),
    **dict.fromkeys(("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"), _FRAMING),
    **dict.fromkeys(("accept", "accept-encoding", "content-type", "traceparent", "tracestate"), _CALLERS),
    **dict.fromkeys(("proxy-authenticate", "proxy-authorization"), "write the user and the password into `proxy`"),
}
"""Headers that no channel sets, and what to do instead."""

_CEILING: Final = (
    "the gateway sends the limit that a request is priced by; lower `max_output_tokens` of the model instead"
)
_NOT_SET: Final[Mapping[str, str]] = {
    "model": "name the upstream's model in the model's `channels`, as in {use: NAME, model: OTHER}",
    "messages": "it is the caller's; a plugin can change it",
    "stream": "the gateway decides it; see `upstream_stream`",
    "stream_options": "say `ask_usage: false` if the upstream refuses it",
    "n": "it is the caller's, and a request is priced by it",
    "max_tokens": _CEILING,
    "max_completion_tokens": _CEILING,
    PROTOTYPE: "it changes other fields in upstreams that run JavaScript",
    **dict.fromkeys(REMEDIES, "upstreams may read it in place of a field by which a request is checked and priced"),
}
"""Fields of a body that no channel sets, and why."""
_NOT_DROPPED: Final = CHECKED - {"temperature"}
_FOLDED: Final = {fold(name): name for name in (*CHECKED, *REMEDIES, PROTOTYPE)}

_SECRET_NAME: Final = re.compile(r"auth|cookie|credential|key|pass|secret|signature|token", re.IGNORECASE)

Value = TypeVar("Value")


class Fixed(Mapping[str, Value]):
    """A mapping of the file that can be a part of a key. Its `repr` has the names alone."""

    __slots__ = ("_encoded", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        """Take the values. Raises `ValueError` for one that JSON does not have."""
        self._values = dict(values)
        try:
            self._encoded = msgspec.json.encode(self._values, order="deterministic")
        except (OverflowError, TypeError) as error:
            raise ValueError(f"a value is not JSON: {type(error).__name__}") from None

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        # By their JSON: to Python, true and 1 are the same.
        return self._encoded == other._encoded if isinstance(other, Fixed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name}: ...' for name in self)}}}"


class Auth(NamedTuple):
    """Where a credential goes: `bearer`, or the `header` or `query` parameter of a name."""

    way: str
    name: str


BEARER: Final = Auth("bearer", "Authorization")


def auth_of(text: str) -> Auth:
    """Return what `auth:` says. Raises `WrongSetting`."""
    way, _, name = text.partition(" ")
    if text == "bearer":
        return BEARER
    if way == "header" and HEADER_NAME.fullmatch(name):
        if reason := RESERVED_HEADERS.get(_plain(name)):
            raise WrongSetting(("auth",), f"the header {name} cannot carry a credential: {reason}")
        return Auth(way, name)
    if way == "query" and PARAMETER_NAME.fullmatch(name):
        return Auth(way, name)
    raise WrongSetting(("auth",), "must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`")


def check_headers(headers: Mapping[str, str], auth: Auth | None, *, has_credentials: bool) -> None:
    """Raise `WrongSetting` for a header that cannot be sent, or that the gateway writes. `auth`: None where it is not known yet."""
    _check_size("headers", headers)
    seen: dict[str, str] = {}
    carrier = "" if auth is None or auth.way == "query" else _plain(auth.name)
    for name, value in headers.items():
        place, plain = ("headers", name), _plain(name)
        if not HEADER_NAME.fullmatch(name):
            raise WrongSetting(place, "the name of a header is of letters, digits and -, without spaces")
        if reason := RESERVED_HEADERS.get(plain):
            raise WrongSetting(place, reason)
        if plain == carrier and (auth is BEARER or has_credentials):
            text = "`auth` sends the credential in it; give that as `api_key`, or say by `auth:` where else it goes"
            raise WrongSetting(place, text)
        if plain in seen:
            raise WrongSetting(place, f"upstreams take it for `{seen[plain]}`, which is given, too; keep one")
        if not HEADER_VALUE.fullmatch(value):
            raise WrongSetting(place, "the value of a header is visible ASCII on one line, without spaces around it")
        seen[plain] = name


def check_query(query: Mapping[str, str], auth: Auth | None) -> None:
    """Raise `WrongSetting` for a parameter that cannot be sent, or that carries the credential."""
    _check_size("query", query)
    for name, value in query.items():
        if not PARAMETER_NAME.fullmatch(name):
            raise WrongSetting(("query", name), "the name of a parameter is visible ASCII")
        if auth == Auth("query", name):
            raise WrongSetting(("query", name), f"`auth: query {name}` writes it; give the credential as `api_key`")
        if not value.isprintable():
            raise WrongSetting(("query", name), "the value of a parameter has no control characters")


def check_fields(always: Mapping[str, Any], never: Iterable[str]) -> None:
    """Raise `WrongSetting` for a field of the body by which the gateway checks, prices or routes a request."""
    _check_size("set", always)
    for name, value in always.items():
        known = _FOLDED.get(fold(name), name)
        if not name or known in _NOT_SET:
            raise WrongSetting(("set", name), _NOT_SET.get(known, "a field has a name"))
        if known == "temperature" and (name != known or isinstance(value, bool) or not isinstance(value, int | float)):
            raise WrongSetting(("set", name), "`temperature` must be a number")
    folded = {fold_case(name): name for name in always}
    for index, name in enumerate(never):
        if not name or _FOLDED.get(fold(name), name) in _NOT_DROPPED:
            raise WrongSetting(("drop", index), _NOT_SET.get(name, "the gateway checks or writes it; leave it out"))
        if fold_case(name) in folded:
            raise WrongSetting(("drop", index), f"`{folded[fold_case(name)]}` is in `set`, too; keep one")
    if len(folded) < len(always):
        raise WrongSetting(("set",), "two of these fields differ only in the case of their letters; keep one")


def secret_values(named: Mapping[str, str]) -> list[str]:
    """Return those values of headers or parameters whose names say that they are secret."""
    return [value for name, value in named.items() if _SECRET_NAME.search(name)]


def _check_size(setting: str, values: Mapping[str, Any]) -> None:
    if len(values) > MAX_NAMES:
        raise WrongSetting((setting,), f"at most {MAX_NAMES} names are sent")
    if len(msgspec.json.encode(dict(values))) > MAX_BYTES:
        raise WrongSetting((setting,), f"is longer than {MAX_BYTES} bytes")


def _plain(name: str) -> str:
    """Return the name of a header as servers compare it. Some take `_` for `-`."""
    return name.lower().replace("_", "-")
