"""A channel of the file: the address of an upstream, its credentials, limits and timeouts."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, urlsplit

import msgspec
from yarl import URL

from gateway import durable
from gateway.chat.fixed_fields import FixedFields
from gateway.config.channel_request import (
    BEARER,
    Auth,
    Fixed,
    auth_of,
    check_fields,
    check_headers,
    check_query,
    secret_values,
)
from gateway.config.section import Bytes, Rate, Seconds, SecondsOrNone, Section

MAX_CA_FILE: Final = 16 * 1024 * 1024
MIN_SCRUBBED: Final = 12
"""Characters of a credential from which on it is looked for in an upstream's answers."""
NOTHING: Final[Fixed[Any]] = Fixed({})
WITH_SECRETS: Final = ("headers", "query", "set")
"""The settings in which what comes from a variable is secret."""


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


class Channel(Section, frozen=True, cache_hash=True, dict=True, rename={"set_": "set"}):
    """An upstream with an OpenAI-compatible API, or with that of a `dialect`.

    `headers`, `query` and `set_` are `Fixed` once the channel is made.
    """

    hidden = frozenset({"api_key", "api_keys", "proxy"})

    base_url: str
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
    on_caller_gone: Literal["cancel", "drain"] = "cancel"
    drain_limit: SecondsOrNone = 30
    max_response_bytes: Bytes = 64 * 1024 * 1024
    dialect: str | None = None
    auth: str | None = None
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    set_: Mapping[str, Any] = {}
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (re.fullmatch(r"https?://[!-~]+", self.base_url) and _is_base_url(self.base_url)):
            raise ValueError("base_url must be like https://host/v1, without credentials, a query or an operation")
        if not all(re.fullmatch(r"[!-~]*", key) for key in (self.api_key, *self.api_keys)):
            raise ValueError("api_key must be visible ASCII: look for a space or a line end at its end")
        if "" in self.api_keys or (self.api_key and self.api_keys):
            raise ValueError("give `api_key`, or several as `api_keys`, none of them empty")
        if self.proxy and not (re.fullmatch(r"http://[!-~]+", self.proxy) and _is_proxy_url(self.proxy)):
            raise ValueError(
                "proxy must be like http://host:port or http://user:password@host:port, with the password percent-encoded"
            )
        self._check_request()
        _ = self.trust  # read now: a file that changes later is read by the next reload

    def _check_request(self) -> None:
        """Check what is added to requests, and make it a part of the channel's key."""
        auth = None if self.dialect is not None and self.auth is None else self.auth_way()
        if self.headers or self.query:
            self.check_auth(auth)
        if self.set_ or self.drop:
            check_fields(self.set_, self.drop)
        for name in ("headers", "query", "set_"):
            values = getattr(self, name)
            msgspec.structs.force_setattr(self, name, Fixed(values) if values else NOTHING)

    def check_auth(self, auth: Auth | None) -> None:
        """Raise `WrongSetting` where a header or a parameter cannot be sent, or is the one that the credential is in."""
        check_headers(self.headers, auth, has_credentials=bool(self.api_key or self.api_keys))
        check_query(self.query, auth)

    def auth_way(self, default: Auth = BEARER) -> Auth:
        """Return where the credential goes. `default`: where the channel does not say so."""
        return default if self.auth is None else auth_of(self.auth)

    @cached_property
    def trust(self) -> Trust | None:
        """The authorities in `ca_file` as it was when the channel was read; None without one."""
        if not self.ca_file:
            return None
        try:
            authorities = durable.read(Path(self.ca_file), MAX_CA_FILE)
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError):
            raise ValueError("ca_file must be a readable file of certificates in PEM") from None
        return Trust(sha256(authorities).digest(), context)

    @property  # not cached: it would refer to its owner, and only the garbage collector would free a channel
    def identity(self) -> tuple[Channel, bytes]:
        """What is equal for channels with the same settings and the same certificates."""
        return self, self.trust.digest if self.trust else b""

    @cached_property
    def credentials(self) -> tuple[str, ...]:
        """Every API key that may be sent to the upstream."""
        return self.api_keys or ((self.api_key,) if self.api_key else ())

    @property
    def request_in_words(self) -> str:
        """What is said about its requests beyond an address and a credential, without any value; empty for nothing."""
        parts = {
            "dialect": self.dialect or "",
            "auth": self.auth or "",
            "headers": ", ".join(self.headers),
            "query": ", ".join(self.query),
            "set": ", ".join(self.set_),
            "drop": ", ".join(self.drop),
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
        """The secrets that are replaced in what callers get, as they are and as addresses have them, the longest first.

        Shorter ones, such as the `ollama` that a local server ignores, occur in ordinary text.
        """
        long = [secret for secret in self.secrets if len(secret) >= MIN_SCRUBBED]
        forms = dict.fromkeys(chain.from_iterable(map(_forms, long)))
        return tuple(sorted(forms, key=len, reverse=True))


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as it is, and as an address may have it. Hexadecimal digits may be in either case."""
    encoded = (quote(secret, safe=""), quote_plus(secret, safe=""), quote(secret))
    lower = (re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), each) for each in encoded)
    return secret, *encoded, *lower


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        valid = parts.hostname is not None and parts.port != 0 and is_host(URL(url).host)
    except ValueError:
        return False
    return valid and not set("@?#").intersection(url) and not parts.path.rstrip("/").endswith("/completions")


def is_host(host: str | None) -> bool:
    """Return whether a host can be looked up. Raises `ValueError` for a part of it that is empty or too long."""
    return bool(host) and (":" in str(host) or bool(str(host).encode("idna")))


def _is_proxy_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            is_host(URL(url).host) and parts.port != 0 and parts.path in ("", "/") and not parts.query + parts.fragment
        )
    except ValueError:
        return False


def credential_warnings(channels: Mapping[str, Channel]) -> list[str]:
    """Return one line for each channel with a credential that is too short to be removed from what callers get."""
    return [
        f"channels.{name}: a credential of fewer than {MIN_SCRUBBED} characters is not removed from the upstream's answers"
        for name, channel in channels.items()
        if any(len(secret) < MIN_SCRUBBED for secret in channel.secrets)
    ]
