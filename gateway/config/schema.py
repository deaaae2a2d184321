"""The YAML file as frozen structs. Every error is one line that names file, line and cure.

What is accepted: plain YAML without anchors, aliases, tags or duplicate keys, up to 1 MiB. `${NAME}` in a
string is taken from the environment. Settings and their defaults are documented in config/gateway.yaml.
What may hold a credential is in no `repr`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.config import document
from gateway.config.channel import Channel
from gateway.config.decode import convert
from gateway.config.document import Document, Place
from gateway.config.section import Bytes, Count, Seconds, SecondsOrNone, Section
from gateway.errors import Misconfigured

CLICKHOUSE: Final = re.compile(r"https?://([^\s/@:]+(:[^\s/@]*)?@)?([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/\w*)?")
ACCOUNT_ID: Final = re.compile(r"[a-z0-9]{3,32}")


class Serving(Section, frozen=True):
    """One channel of a model: smaller `priority` is tried first; inside one priority `weight` decides."""

    use: str
    model: str = ""
    weight: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    priority: int = 0


class Model(Section, frozen=True):
    """What callers may name. Prices are currency units per million tokens."""

    channels: list[str | Serving]
    input: Decimal | None = None
    output: Decimal | None = None
    free: bool = False
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 4096

    def __post_init__(self) -> None:
        prices = [price for price in (self.input, self.output) if price is not None]
        if len(prices) != (0 if self.free else 2):
            raise ValueError("give `input` and `output` prices per million tokens, or `free: true` without them")
        if not all(_is_amount(price, 1_000_000) for price in prices):
            raise ValueError("prices must be from 0 to 1000000, with at most six decimals")
        if not self.channels:
            raise ValueError("channels must name at least one channel")

    @property
    def servings(self) -> tuple[Serving, ...]:
        """The channels in their long form."""
        return tuple(Serving(use=item) if isinstance(item, str) else item for item in self.channels)


class Group(Section, frozen=True):
    """A user group: which models and which channels of them (names or patterns with `*`), at what price
    ratio; `enabled: false` shuts it out.
    """

    models: list[str] = msgspec.field(default_factory=lambda: ["*"])
    channels: list[str] = msgspec.field(default_factory=lambda: ["*"])
    ratio: Decimal = Decimal(1)
    enabled: bool = True

    def __post_init__(self) -> None:
        if not _is_amount(self.ratio, 1000):
            raise ValueError("ratio must be from 0 to 1000, with at most six decimals")


class PluginEntry(Section, frozen=True, rename={"with_": "with"}):
    """One line of the chain."""

    hidden = frozenset({"with_"})

    use: str
    with_: dict[str, Any] = msgspec.field(default_factory=dict)
    name: str = ""
    enabled: bool = True
    on_error: Literal["refuse", "ignore"] = "refuse"

    @property
    def label(self) -> str:
        """The unique name in the chain, in logs and in keys."""
        return self.name or self.use


class Port(Section, frozen=True):
    """Limits of the public port. Sizes in bytes, times in seconds."""

    max_head: Bytes = 64 * 1024
    max_body: Bytes = 8 * 1024 * 1024
    body_budget: Bytes = 256 * 1024 * 1024
    max_open: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    handshake_timeout: Seconds = 10
    head_timeout: Seconds = 15
    body_timeout: Seconds = 60
    body_grace: Seconds = 5
    min_body_rate: Bytes = 1024
    idle_timeout: Seconds = 75
    allow_non_streaming: bool = False
    drain: SecondsOrNone = 30


class Tls(Section, frozen=True):
    """TLS on the public port: files in PEM, the certificate with those between it and the root."""

    certificate: str
    key: str


class StoreSettings(Section, frozen=True):
    """How the store is spoken to. Times in seconds."""

    timeout: Seconds = 0.4
    connect_for: SecondsOrNone = 10
    connections: Count = 4
    accept_loss: bool = False


class UsageSettings(Section, frozen=True):
    """How long usage records are kept, in whole months besides the current one, and where else than on this machine."""

    hidden = frozenset({"clickhouse"})

    retention_months: Count = 13
    clickhouse: str = ""

    def __post_init__(self) -> None:
        try:
            sound = not self.clickhouse or (
                CLICKHOUSE.fullmatch(self.clickhouse) and urlsplit(self.clickhouse).port != 0
            )
        except ValueError:
            sound = False
        if not sound:
            raise ValueError("clickhouse must be like https://user:password@host:8443/database")


class Demo(Section, frozen=True):
    """What `make serve` adds: a demo upstream, and an account with a token and a first credit."""

    upstream: str = "127.0.0.1:8089"
    account: str = "demo"
    credit: Decimal = Decimal(5)

    def __post_init__(self) -> None:
        if not ACCOUNT_ID.fullmatch(self.account):
            raise ValueError("account must be 3 to 32 of a-z and 0-9")
        if not _is_amount(self.credit, 1_000_000):
            raise ValueError("credit must be from 0 to 1000000, with at most six decimals")


class Config(Section, frozen=True):
    """The whole file."""

    hidden = frozenset({"redis"})

    listen: str = "127.0.0.1:8080"
    admin: str | None = "127.0.0.1:9090"
    redis: str = "embedded"
    data: str = "./data"
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    port: Port = Port()
    tls: Tls | None = None
    store: StoreSettings = StoreSettings()
    usage: UsageSettings = UsageSettings()
    demo: Demo | None = None
    channels: dict[str, Channel] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    plugins: list[PluginEntry] = msgspec.field(default_factory=list)

    @property
    def data_path(self) -> Path:
        """Where the embedded store, the usage log, the spool and the pepper are kept."""
        return Path(self.data).expanduser()


SECTIONS: Final[Mapping[str, type[Section]]] = {"channels": Channel, "models": Model, "groups": Group}


class Loaded(msgspec.Struct, frozen=True):
    """A configuration and the document it came from, which can name the line of any part of it."""

    config: Config
    document: Document


def load(path: Path, environment: Mapping[str, str] | None = None) -> Loaded:
    """Read, resolve and check a file. Raises `Misconfigured`."""
    data, parsed = document.read(path, os.environ if environment is None else environment)
    if not isinstance(data, dict):
        raise parsed.wrong((), "the file must be a mapping of settings; begin with config/gateway.yaml")
    for section, kind in SECTIONS.items():
        entries = data.get(section, {})
        if not isinstance(entries, dict):
            raise parsed.wrong((section,), "must be a mapping of names to settings")
        data[section] = {name: convert(parsed, (section, name), value, kind) for name, value in entries.items()}
    entries = data.get("plugins", [])
    if not isinstance(entries, list):
        raise parsed.wrong(("plugins",), "must be a list, each item beginning with `- use:`")
    data["plugins"] = [convert(parsed, ("plugins", index), item, PluginEntry) for index, item in enumerate(entries)]
    config = convert(parsed, (), data, Config)
    _check_references(config, parsed)
    return Loaded(config, parsed)


def _check_references(config: Config, parsed: Document) -> None:
    named: list[tuple[Place, str]] = []
    for name, model in config.models.items():
        named += [(("models", name, "channels", index), serving.use) for index, serving in enumerate(model.servings)]
    for name, group in config.groups.items():
        named += [
            (("groups", name, "channels", index), used) for index, used in enumerate(group.channels) if "*" not in used
        ]
    for place, used in named:
        if used not in config.channels:
            known = ", ".join(config.channels) or "none yet"
            raise parsed.wrong(place, f"there is no channel `{used}`; known: {known}")
    labels: set[str] = set()
    for index, entry in enumerate(config.plugins):
        if entry.label in labels:
            raise parsed.wrong(
                ("plugins", index), f"the name `{entry.label}` is taken; give this one a `name:` of its own"
            )
        labels.add(entry.label)
    addresses: dict[Place, str] = {("listen",): config.listen}
    if config.admin is not None:
        addresses[("admin",)] = config.admin
    if config.demo is not None:
        addresses["demo", "upstream"] = config.demo.upstream
        if not config.models:
            raise parsed.wrong(("demo",), "a demo needs a model to talk to; add one under `models:`")
    for place, address in addresses.items():
        try:
            host_port(address)
        except ValueError as error:
            raise parsed.wrong(place, str(error)) from None


def host_port(address: str) -> tuple[str, int]:
    """`127.0.0.1:8080` or `[::1]:8080` in its parts. Raises `ValueError`."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080")
    return match[1].strip("[]"), int(match[2])


def _is_amount(value: Decimal, most: int) -> bool:
    return value.is_finite() and 0 <= value <= most and value == round(value, 6)


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
    package = Path(str(files("gateway")))
    for folder in (package / "shipped", package.parent / "config"):
        if (folder / name).exists():
            return folder / name
    raise Misconfigured(f"the installation lacks {name}: install the package again")
