"""A channel of the file: the address of an upstream, its credentials, limits and timeouts."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from gateway import durable
from gateway.config.section import Bytes, Rate, Seconds, SecondsOrNone, Section

MAX_CA_FILE: Final = 16 * 1024 * 1024
MIN_SCRUBBED: Final = 12
"""Characters of a credential from which on it is looked for in an upstream's answers."""


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


class Channel(Section, frozen=True, cache_hash=True, dict=True):
    """An upstream with an OpenAI-compatible API."""

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
        _ = self.trust  # read now: a file that changes later is read by the next reload

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

    @cached_property
    def ceiling_name(self) -> str:
        """The field in which the upstream is told how many output tokens one choice may have.

        By default the one that it reads: OpenAI refuses `max_tokens` for its newer models, most others read nothing else.
        """
        host = urlsplit(self.base_url).hostname or ""
        openai = host == "api.openai.com" or host.endswith((".api.openai.com", ".openai.azure.com"))
        return self.ceiling_field or ("max_completion_tokens" if openai else "max_tokens")

    @cached_property
    def scrubbed(self) -> tuple[str, ...]:
        """The credentials that are replaced in what callers get, the longest first.

        Shorter ones, such as the `ollama` that a local server ignores, occur in ordinary text.
        """
        return tuple(sorted((key for key in self.credentials if len(key) >= MIN_SCRUBBED), key=len, reverse=True))


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
        if len(channel.scrubbed) < len(channel.credentials)
    ]
