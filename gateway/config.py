"""The YAML file as frozen structs. Every error is one line that names file, line and cure.

What is accepted: plain YAML without anchors, aliases, tags or duplicate keys, up to 1 MiB. `${NAME}` in a
string is taken from the environment. Settings and their defaults are documented in config/gateway.yaml.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from gateway import document
from gateway.document import Document
from gateway.errors import Misconfigured

Section = TypeVar("Section")

ACCOUNT_ID: Final = re.compile(r"[a-z0-9]{3,32}")


class Timers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that one channel may take. Each is a clock of its own."""

    connect: float = 5
    first_byte: float = 60
    idle: float = 60
    total: float = 600
    write_stall: float = 60


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An upstream that speaks the OpenAI dialect."""

    base_url: str
    api_key: str = ""
    ask_usage: bool = True
    timers: Timers = Timers()
    on_caller_gone: Literal["cancel", "drain"] = "cancel"
    drain_limit: float = 30
    max_response_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", self.base_url):
            raise ValueError("base_url must be like https://host/v1, without credentials or a query")


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One channel of a model: smaller `priority` is tried first; inside one priority `weight` decides."""

    use: str
    model: str = ""
    weight: int = 1
    priority: int = 0

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError("weight must be 1 or more")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What callers may name. Prices are currency units per million tokens."""

    channels: list[str | Serving]
    input: Decimal | None = None
    output: Decimal | None = None
    free: bool = False
    max_output_tokens: int = 4096

    def __post_init__(self) -> None:
        priced = self.input is not None and self.output is not None
        if self.free == priced or (self.free and (self.input is not None or self.output is not None)):
            raise ValueError("give `input` and `output` prices per million tokens, or say `free: true`")
        if any(price is not None and not 0 <= price <= 1_000_000 for price in (self.input, self.output)):
            raise ValueError("prices must be from 0 to 1000000")
        if not self.channels:
            raise ValueError("channels must name at least one channel")
        if not 1 <= self.max_output_tokens <= 10_000_000:
            raise ValueError("max_output_tokens must be from 1 to 10000000")

    @property
    def servings(self) -> tuple[Serving, ...]:
        """The channels in their long form."""
        return tuple(Serving(use=item) if isinstance(item, str) else item for item in self.channels)


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user group: which models (names or patterns with `*`), at what price ratio; `enabled: false` shuts it
    out.
    """

    models: list[str] = msgspec.field(default_factory=lambda: ["*"])
    ratio: Decimal = Decimal(1)
    enabled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1000:
            raise ValueError("ratio must be from 0 to 1000")


class PluginEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"with_": "with"}):
    """One line of the chain."""

    use: str
    with_: dict[str, Any] = msgspec.field(default_factory=dict)
    name: str = ""
    enabled: bool = True
    on_error: Literal["refuse", "ignore"] = "refuse"

    @property
    def label(self) -> str:
        """The unique name in the chain, in logs and in keys."""
        return self.name or self.use


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the public port. Sizes in bytes, times in seconds."""

    max_head: int = 64 * 1024
    max_body: int = 32 * 1024 * 1024
    head_timeout: float = 15
    body_timeout: float = 60
    idle_timeout: float = 75
    allow_non_streaming: bool = False
    drain: float = 30


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the store is spoken to. Times in seconds."""

    timeout: float = 0.5
    connect_for: float = 10
    connections: int = 4
    accept_loss: bool = False


class UsageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long usage records are kept, in whole months besides the current one."""

    retention_months: int = 13

    def __post_init__(self) -> None:
        if self.retention_months < 1:
            raise ValueError("retention_months must be 1 or more")


class Demo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `make serve` adds: a demo upstream, and an account with a token and a first credit."""

    upstream: str = "127.0.0.1:8089"
    account: str = "demo"
    credit: Decimal = Decimal(5)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9090"
    redis: str = "embedded"
    data: str = "./data"
    workers: int = 1
    port: Port = Port()
    store: StoreSettings = StoreSettings()
    usage: UsageSettings = UsageSettings()
    demo: Demo | None = None
    channels: dict[str, Channel] = {}
    models: dict[str, Model] = {}
    groups: dict[str, Group] = {}
    plugins: list[PluginEntry] = []

    @property
    def data_path(self) -> Path:
        """Where the embedded store, the usage log, the spool and the pepper are kept."""
        return Path(self.data).expanduser()


SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {"channels": Channel, "models": Model, "groups": Group}


class Loaded(msgspec.Struct, frozen=True):
    """A configuration and the document it came from, which can name the line of any part of it."""

    config: Config
    document: Document


def load(path: Path, environment: Mapping[str, str] | None = None) -> Loaded:
    """Read, resolve and check a file. Raises `Misconfigured`."""
    parsed = document.read(path, os.environ if environment is None else environment)
    if not isinstance(parsed.data, dict):
        raise parsed.wrong((), "the file must be a mapping; begin with config/gateway.yaml")
    data: dict[str, Any] = dict(parsed.data)
    for section, kind in SECTIONS.items():
        entries = data.get(section, {})
        if not isinstance(entries, dict):
            raise parsed.wrong((section,), f"`{section}` must be a mapping of names")
        data[section] = {name: convert(parsed, (section, name), value, kind) for name, value in entries.items()}
    entries = data.get("plugins", [])
    if not isinstance(entries, list):
        raise parsed.wrong(("plugins",), "`plugins` must be a list, each item beginning with `- use:`")
    data["plugins"] = [convert(parsed, ("plugins", index), item, PluginEntry) for index, item in enumerate(entries)]
    config = convert(parsed, (), data, Config)
    _check_references(config, parsed)
    return Loaded(config, parsed)


def convert(parsed: Document, place: tuple[str | int, ...], value: object, kind: type[Section]) -> Section:
    """`value` as `kind`; an error names the exact line and key. Raises `Misconfigured`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, inner = document.split_path(str(error))
        known = ""
        if text.startswith("Object contains unknown field"):
            unknown = re.findall(r"`(.*)`", text)
            inner = (*inner, *unknown)
            at = _struct_at(kind, inner[:-1])
            if at is not None:
                known = "; known here: " + ", ".join(sorted(field.encode_name for field in msgspec.structs.fields(at)))
            text = f"unknown setting `{unknown[0] if unknown else ''}`"
        raise parsed.wrong((*place, *inner), text + known) from None


def _struct_at(kind: Any, path: tuple[str | int, ...]) -> type[msgspec.Struct] | None:
    for step in path:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return None
        kind = next((field.type for field in msgspec.structs.fields(kind) if field.encode_name == step), None)
        kind = next((arm for arm in getattr(kind, "__args__", ()) if isinstance(arm, type)), kind)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _check_references(config: Config, parsed: Document) -> None:
    for name, model in config.models.items():
        for index, serving in enumerate(model.servings):
            if serving.use not in config.channels:
                known = ", ".join(config.channels) or "none yet"
                raise parsed.wrong(
                    ("models", name, "channels", index),
                    f"there is no channel `{serving.use}`; known: {known}",
                )
    labels: set[str] = set()
    for index, entry in enumerate(config.plugins):
        if entry.label in labels:
            raise parsed.wrong(
                ("plugins", index), f"the name `{entry.label}` is taken; give this one a `name:` of its own"
            )
        labels.add(entry.label)
    if config.demo is not None and not ACCOUNT_ID.fullmatch(config.demo.account):
        raise parsed.wrong(("demo", "account"), "an account id is 3 to 32 of a-z and 0-9")
    for key in ("listen", "admin"):
        try:
            host_port(getattr(config, key))
        except ValueError:
            raise parsed.wrong((key,), f"`{key}` must be HOST:PORT, as in 127.0.0.1:8080") from None


def host_port(address: str) -> tuple[str, int]:
    """`127.0.0.1:8080` or `[::1]:8080` in its parts. Raises `ValueError`."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(address)
    return host.strip("[]"), int(port)


def find(explicit: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """The file to use: the given one, `$GATEWAY_CONFIG`, `./gateway.yaml`, or the demo's."""
    if explicit is not None:
        return explicit
    named = (os.environ if environment is None else environment).get("GATEWAY_CONFIG")
    if named:
        return Path(named)
    here = Path("gateway.yaml")
    return here if here.exists() else shipped("demo.yaml")


def shipped(name: str) -> Path:
    """A file of config/, where it was installed or where it is in a checkout."""
    package = Path(__file__).parent
    for folder in (package / "shipped", package.parent / "config"):
        if (folder / name).exists():
            return folder / name
    raise Misconfigured(f"the installation lacks {name}: install the package again")
