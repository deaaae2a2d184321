"""A channel of the file: the address of an upstream, its credentials, limits and timeouts, and its additions to each request.

The additions are headers, parameters of the address, fields of the body, and the credential. None may change how a request is
framed, where it goes, which model it names, or how many tokens it may use: those are settings of their own. Values may be secret,
so no message and no `repr` shows one.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, quote_plus, urlsplit

import msgspec
from yarl import URL

from gateway.base import durable
from gateway.chat.fields import CHECKED, PROTOTYPE, REMEDIES, fold, fold_case
from gateway.chat.request import FixedFields
from gateway.config.authorities import trusting
from gateway.config.decode import Bytes, Rate, Seconds, SecondsOrNone, Section, WrongSetting

MAX_CA_FILE: Final = 16 * 1024 * 1024
MIN_SCRUBBED: Final = 12
"""Characters of a credential from which on it is looked for in an upstream's answers."""
WITH_SECRETS: Final = ("headers", "query", "set")
"""The settings in which what comes from a variable is secret."""

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
_NOT_DROPPED: Final = CHECKED - {"temperature", "tools", "service_tier"}
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


NOTHING: Final[Fixed[Any]] = Fixed({})

ServedOperation = Literal[
    "chat.completions",
    "completions",
    "embeddings",
    "rerank",
    "moderations",
    "images",
    "images.edits",
    "images.variations",
    "speech",
    "transcriptions",
    "translations",
    "messages",
    "messages.tokens",
    "responses",
    "responses.tokens",
    "responses.compact",
]
"""The operations of upstreams, see `gateway.operations`."""
CHAT: Final[ServedOperation] = "chat.completions"


class Timers(Section, frozen=True):
    """The timeouts of one channel in seconds. Each is measured on its own."""

    connect: Seconds = 5
    first_byte: Seconds = 60
    idle: Seconds = 60
    total: Seconds = 600
    write_stall: Seconds = 60


class Trust(msgspec.Struct, frozen=True):
    """The certificate authorities that a channel trusts: a digest of their file, and the TLS context."""

    digest: bytes
    context: ssl.SSLContext


class CredentialPlace(NamedTuple):
    """Where a credential goes: `bearer`, or the `header` or `query` parameter of a name."""

    way: str
    name: str


BEARER: Final = CredentialPlace("bearer", "Authorization")


class Channel(Section, frozen=True, cache_hash=True, dict=True, rename={"set_": "set"}):
    """An upstream with an OpenAI-compatible API, or with that of a `dialect`.

    `headers`, `query` and `set_` are `Fixed` once the channel is made.
    """

    hidden = frozenset({"api_key", "api_keys", "proxy"})

    base_url: str
    operations: tuple[ServedOperation, ...] = (CHAT,)
    api_key: str = ""
    api_keys: tuple[str, ...] = ()
    ca_file: str = ""
    proxy: str = ""
    concurrent: Rate | None = None
    requests_per_minute: Rate | None = None
    ask_usage: bool = True
    empty_choices: Literal["drop", "pass"] = "drop"
    upstream_stream: bool = False
    ceiling_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    timers: Timers = Timers()
    on_caller_gone: Literal["cancel", "drain"] = "drain"
    drain_limit: SecondsOrNone = 30
    max_response_bytes: Bytes = 64 * 1024 * 1024
    dialect: str | None = None
    auth: str | None = None
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    set_: Mapping[str, Any] = {}
    drop: tuple[str, ...] = ()
    session_header: str = ""
    probe: Seconds | None = None

    def __post_init__(self) -> None:
        base, proxy = address_in(self.base_url), address_in(self.proxy, "http")
        if base is None or set("@?#").intersection(self.base_url) or base.path.rstrip("/").endswith("/completions"):
            raise ValueError("base_url must be like https://host/v1, without credentials, a query or an operation")
        if not all(re.fullmatch(r"[!-~]*", key) for key in (self.api_key, *self.api_keys)):
            raise ValueError("api_key must be visible ASCII: look for a space or a line end at its end")
        if "" in self.api_keys or (self.api_key and self.api_keys):
            raise ValueError("give `api_key`, or several as `api_keys`, none of them empty")
        if self.proxy and (proxy is None or proxy.path not in ("", "/") or proxy.query or proxy.fragment):
            raise ValueError(
                "proxy must be like http://host:port or http://user:password@host:port, with the password percent-encoded"
            )
        if not self.operations:
            raise ValueError("operations must name at least one")
        if self.dialect is not None and self.operations != (CHAT,):
            raise ValueError(f"a channel with a `dialect` serves {CHAT} alone: leave `operations` out")
        self._check_request()
        _ = self.trust  # read now: a file that changes later is read by the next reload

    def _check_request(self) -> None:
        """Check the headers, parameters and fields that are added to requests, and make them hashable for the channel's key."""
        auth = None if self.dialect is not None and self.auth is None else self.auth_way()
        if self.headers or self.query:
            self.check_auth(auth)
        if self.session_header:
            if _plain(self.session_header) in map(_plain, self.headers):
                raise WrongSetting(("session_header",), "`headers` has it, too; keep one")
            check_headers({self.session_header: "x"}, auth, has_credentials=True)
        if self.set_ or self.drop:
            check_fields(self.set_, self.drop)
        for name in ("headers", "query", "set_"):
            values = getattr(self, name)
            msgspec.structs.force_setattr(self, name, Fixed(values) if values else NOTHING)

    def check_auth(self, auth: CredentialPlace | None) -> None:
        """Raise `WrongSetting` where a header or a parameter cannot be sent, or has the place of the credential."""
        check_headers(self.headers, auth, has_credentials=bool(self.api_key or self.api_keys))
        check_query(self.query, auth)

    def auth_way(self, default: CredentialPlace = BEARER) -> CredentialPlace:
        """Return where the credential goes. `default`: where the channel does not say so."""
        return default if self.auth is None else auth_of(self.auth)

    @cached_property
    def trust(self) -> Trust | None:
        """The authorities in `ca_file` as it was when the channel was read; None without one."""
        if not self.ca_file:
            return None
        try:
            authorities = durable.read(Path(self.ca_file), MAX_CA_FILE)
            context = trusting(Path(self.ca_file))
        except (OSError, ValueError):
            raise ValueError("ca_file must be a readable file of certificates in PEM") from None
        return Trust(sha256(authorities).digest(), context)

    @property  # not cached: it would refer to its owner, and only the garbage collector would free a channel
    def identity(self) -> tuple[Channel, bytes]:
        """Key of the channel: equal for channels with the same settings and the same certificates."""
        return self, self.trust.digest if self.trust else b""

    @cached_property
    def credentials(self) -> tuple[str, ...]:
        """Every API key that may be sent to the upstream."""
        return self.api_keys or ((self.api_key,) if self.api_key else ())

    @property
    def request_in_words(self) -> str:
        """Settings that shape the channel's requests beside address and credential: their names without values. Empty for none."""
        parts = {
            "dialect": self.dialect or "",
            "auth": self.auth or "",
            "headers": ", ".join(self.headers),
            "query": ", ".join(self.query),
            "set": ", ".join(self.set_),
            "drop": ", ".join(self.drop),
            "session_header": self.session_header,
        }
        return "; ".join(f"{name} {text}" for name, text in parts.items() if text)

    @cached_property
    def ceiling_name(self) -> str:
        """The field in which the upstream is told how many output tokens one choice may have.

        By default the one that it reads: OpenAI refuses `max_tokens` for its newer models, most others read nothing else.
        """
        host = urlsplit(self.base_url).hostname or ""
        openai = host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))
        return self.ceiling_field or ("max_completion_tokens" if openai else "max_tokens")

    @cached_property
    def fields(self) -> FixedFields | None:
        """The fields that are always or never sent; None where there are none."""
        return FixedFields(self.set_, self.drop) if self.set_ or self.drop else None

    def note_variables(self, values: Iterable[str]) -> None:
        """Take what came from the environment or a file into `headers`, `query` and `set`: it is secret, too."""
        self.__dict__["_variables"] = tuple(values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every credential, and every other value that may be one."""
        given = self.__dict__.get("_variables", ())
        return tuple(
            dict.fromkeys((*self.credentials, *given, *secret_values(self.headers), *secret_values(self.query)))
        )

    @cached_property
    def scrubbed(self) -> tuple[str, ...]:
        """The secrets that are replaced in what callers get, as they are and as addresses and JSON have them, the longest first.

        Shorter ones, such as the `ollama` that a local server ignores, occur in ordinary text.
        """
        long = [secret for secret in self.secrets if len(secret) >= MIN_SCRUBBED]
        forms = dict.fromkeys(chain.from_iterable(map(_forms, long)))
        return tuple(sorted(forms, key=len, reverse=True))


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as it is, as JSON may have it (slashes may be escaped), and as an address may, in either case of digits."""
    in_json = json.dumps(secret)[1:-1]
    encoded = (quote(secret, safe=""), quote_plus(secret, safe=""), quote(secret))
    lower = (re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), each) for each in encoded)
    return secret, in_json, in_json.replace("/", r"\/"), *encoded, *lower


def address_in(url: str, schemes: str = "https?") -> SplitResult | None:
    """Return the parts of an address; None where it has another scheme, or a host or a port that cannot be used."""
    if not re.fullmatch(rf"{schemes}://[!-~]+", url):
        return None
    try:
        parts, host = urlsplit(url), URL(url).host or ""
        usable = parts.port != 0 and (":" in host or host.encode("idna"))  # no part of a host is empty or too long
    except ValueError:
        return None
    return parts if usable else None


def credential_warnings(channels: Mapping[str, Channel]) -> list[str]:
    """Return one line for each channel with a credential that is too short to be removed from what callers get."""
    return [
        f"channels.{name}: a credential of fewer than {MIN_SCRUBBED} characters is not removed from the upstream's answers"
        for name, channel in channels.items()
        if any(len(secret) < MIN_SCRUBBED for secret in channel.secrets)
    ]


def auth_of(text: str) -> CredentialPlace:
    """Return what `auth:` says. Raises `WrongSetting`."""
    way, _, name = text.partition(" ")
    if text == "bearer":
        return BEARER
    if way == "header" and HEADER_NAME.fullmatch(name):
        if reason := RESERVED_HEADERS.get(_plain(name)):
            raise WrongSetting(("auth",), f"the header {name} cannot carry a credential: {reason}")
        return CredentialPlace(way, name)
    if way == "query" and PARAMETER_NAME.fullmatch(name):
        return CredentialPlace(way, name)
    raise WrongSetting(("auth",), "must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`")


def check_headers(headers: Mapping[str, str], auth: CredentialPlace | None, *, has_credentials: bool) -> None:
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


def check_query(query: Mapping[str, str], auth: CredentialPlace | None) -> None:
    """Raise `WrongSetting` for a parameter that cannot be sent, or that carries the credential."""
    _check_size("query", query)
    for name, value in query.items():
        if not PARAMETER_NAME.fullmatch(name):
            raise WrongSetting(("query", name), "the name of a parameter is visible ASCII")
        if auth == CredentialPlace("query", name):
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
