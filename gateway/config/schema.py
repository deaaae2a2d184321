"""The schema of the YAML file, as frozen structs. Every error is one line that names file, line and remedy.

The file is plain YAML without anchors, aliases, tags or duplicate keys, up to 1 MiB. `${NAME}` in a string is
replaced by an environment variable, `${file:PATH}` by the secret in a file. Settings and their defaults are documented in
config/gateway.yaml.
No `repr` shows a setting that may hold a credential.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.chat.fields import REMEDIES
from gateway.config import document
from gateway.config.admin_sso import AdminSso
from gateway.config.alerts import AlertSettings
from gateway.config.allowance import GroupBudgets, GroupLimits
from gateway.config.channel import WITH_SECRETS, Channel
from gateway.config.decode import convert
from gateway.config.document import Document, KeyPath
from gateway.config.model import Model
from gateway.config.origins import check_origins
from gateway.config.places import folder_of, make_absolute
from gateway.config.section import Bytes, Count, Seconds, SecondsOrNone, Section, is_amount
from gateway.config.time_zone import time_zone
from gateway.config.trusted_proxies import check_proxies

CLICKHOUSE_URL: Final = re.compile(
    r"https?://([^\s/@:]+(:[^\s/@]*)?@)?([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/\w*)?"
)
NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,128}")
"""The name of a channel, model, group or plugin: names are parts of keys, labels, headers and log lines."""
NAME_RULE: Final = "a name has 1 to 128 characters, and no control characters"
ACCOUNT_ID: Final = re.compile(r"[a-z0-9]{3,32}")


HostPort = Annotated[str, msgspec.Meta(description="HOST:PORT, as in 127.0.0.1:8080")]


class Group(Section, frozen=True):
    """A user group: the models and channels it may use (names or patterns with `*`), and the ratio applied to prices.

    `budgets` and `limits` are for each account that has none of its own. `enabled: false` refuses all its accounts.
    """

    models: list[str] = msgspec.field(default_factory=lambda: ["*"])
    channels: list[str] = msgspec.field(default_factory=lambda: ["*"])
    ratio: Decimal = Decimal(1)
    budgets: GroupBudgets = GroupBudgets()
    limits: GroupLimits = GroupLimits()
    enabled: bool = True

    def __post_init__(self) -> None:
        if not is_amount(self.ratio, 1000):
            raise ValueError("ratio must be from 0 to 1000, with at most six decimals")


class PluginEntry(Section, frozen=True, rename={"with_": "with"}):
    """A plugin of the chain, with its settings."""

    hidden = frozenset({"with_"})

    use: str
    with_: dict[str, Any] = msgspec.field(default_factory=dict)
    name: str = ""
    enabled: bool = True
    on_error: Literal["refuse", "ignore"] = "refuse"

    @property
    def label(self) -> str:
        """Return the unique name in the chain, in logs and in Redis keys."""
        return self.name or self.use


class Port(Section, frozen=True):
    """Limits of the public port. Sizes in bytes, times in seconds."""

    max_head: Bytes = 64 * 1024
    max_body: Bytes = 8 * 1024 * 1024
    body_budget: Bytes = 256 * 1024 * 1024
    max_open: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    max_connections_per_address: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    head_budget: Bytes = 32 * 1024 * 1024
    handshake_timeout: Seconds = 10
    head_timeout: Seconds = 15
    body_timeout: Seconds = 60
    body_grace: Seconds = 5
    min_body_rate: Bytes = 1024
    idle_timeout: Seconds = 75
    allow_non_streaming: bool = False
    allow_fields: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    drain: SecondsOrNone = 30
    open_streams: Literal["end", "finish"] = "end"

    def __post_init__(self) -> None:
        check_proxies(self.trusted_proxies)
        if not REMEDIES.keys() >= set(self.allow_fields):
            raise ValueError(f"allow_fields may name {', '.join(REMEDIES)}; any other field needs no permission")
        check_origins(self.cors_origins)


class Tls(Section, frozen=True):
    """TLS on the public port: PEM files, the certificate followed by its intermediate certificates."""

    certificate: str
    key: str


class StoreSettings(Section, frozen=True):
    """The connection to the store. Times in seconds."""

    timeout: Seconds = 0.4
    connect_for: SecondsOrNone = 10
    connections: Count = 4
    accept_loss: bool = False


class UsageSettings(Section, frozen=True):
    """How many whole months of usage records are kept besides the current one, and the ClickHouse server that gets a copy."""

    hidden = frozenset({"clickhouse"})

    retention_months: Count = 13
    clickhouse: str = ""

    def __post_init__(self) -> None:
        try:
            valid = not self.clickhouse or (
                CLICKHOUSE_URL.fullmatch(self.clickhouse) and urlsplit(self.clickhouse).port != 0
            )
        except ValueError:
            valid = False
        if not valid:
            raise ValueError("clickhouse must be like https://user:password@host:8443/database")


class Demo(Section, frozen=True):
    """What `make serve` adds: a demo upstream, and an account with a token and a first credit."""

    upstream: HostPort = "127.0.0.1:8089"
    account: str = "demo"
    credit: Decimal = Decimal(5)

    def __post_init__(self) -> None:
        if not ACCOUNT_ID.fullmatch(self.account):
            raise ValueError("account must be 3 to 32 of a-z and 0-9")
        if not is_amount(self.credit, 1_000_000):
            raise ValueError("credit must be from 0 to 1000000, with at most six decimals")


class Config(Section, frozen=True):
    """The whole file."""

    hidden = frozenset({"redis"})

    listen: HostPort = "127.0.0.1:8080"
    admin: HostPort | None = "127.0.0.1:9090"
    admin_sso: AdminSso | None = None
    portal: HostPort | None = None
    redis: str = "embedded"
    data: str = "./data"
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    time_zone: str = "UTC"
    port: Port = Port()
    tls: Tls | None = None
    store: StoreSettings = StoreSettings()
    usage: UsageSettings = UsageSettings()
    alerts: AlertSettings | None = None
    demo: Demo | None = None
    channels: dict[str, Channel] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    plugins: list[PluginEntry] = msgspec.field(default_factory=list)

    @property
    def data_path(self) -> Path:
        """Return the directory of the embedded store, the usage log, the spool and the pepper."""
        return Path(self.data)


SECTIONS: Final[Mapping[str, type[Section]]] = {"channels": Channel, "models": Model, "groups": Group}


class Loaded(msgspec.Struct, frozen=True):
    """A configuration and the document it was read from, which knows the line of every setting."""

    config: Config
    document: Document


def load(
    path: Path,
    environment: Mapping[str, str] | None = None,
    *,
    raw: bytes | None = None,
    secrets: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """Read a file, replace its variables and check it. Raises `Misconfigured`.

    `raw` and `secrets`: its bytes and the secrets of its files, where they were read before. `folder`: where its relative
    paths start, if it is to replace a file there.
    """
    raw = document.read(path) if raw is None else raw
    data, parsed = document.parse(path, raw, os.environ if environment is None else environment, secrets, folder)
    if not isinstance(data, dict):
        raise parsed.wrong((), "the file must be a mapping of settings; begin with config/gateway.yaml")
    make_absolute(folder or folder_of(path), data)
    for section, kind in SECTIONS.items():
        entries = data.get(section, {})
        if not isinstance(entries, dict):
            raise parsed.wrong((section,), "must be a mapping of names to settings")
        if (wrong := next((name for name in entries if not NAME.fullmatch(name)), None)) is not None:
            raise parsed.wrong((section, wrong), NAME_RULE)
        data[section] = {name: convert(parsed, (section, name), value, kind) for name, value in entries.items()}
    for name, channel in data.get("channels", {}).items():
        channel.note_variables(parsed.variables_at(("channels", name), WITH_SECRETS))
    entries = data.get("plugins", [])
    if not isinstance(entries, list):
        raise parsed.wrong(("plugins",), "must be a list, each item beginning with `- use:`")
    data["plugins"] = [convert(parsed, ("plugins", index), item, PluginEntry) for index, item in enumerate(entries)]
    config = convert(parsed, (), data, Config)
    _check_references(config, parsed)
    return Loaded(config, parsed)


def _check_references(config: Config, parsed: Document) -> None:
    named: list[tuple[KeyPath, str]] = []
    for name, model in config.models.items():
        named += [(("models", name, "channels", index), serving.use) for index, serving in enumerate(model.servings)]
    for name, group in config.groups.items():
        named += [
            (("groups", name, "channels", index), used) for index, used in enumerate(group.channels) if "*" not in used
        ]
    for key_path, used in named:
        if used not in config.channels:
            known = ", ".join(config.channels) or "none yet"
            raise parsed.wrong(key_path, f"there is no channel `{used}`; known: {known}")
    labels: set[str] = set()
    for index, entry in enumerate(config.plugins):
        if not NAME.fullmatch(entry.label):
            raise parsed.wrong(("plugins", index), f"{NAME_RULE}; give this one a `name:`")
        if entry.label in labels:
            raise parsed.wrong(
                ("plugins", index), f"the name `{entry.label}` is taken; give this one a `name:` of its own"
            )
        labels.add(entry.label)
    ports = (("listen", config.listen), ("admin", config.admin), ("portal", config.portal))
    checks: list[tuple[KeyPath, Callable[[str], object], str]] = [
        (("time_zone",), time_zone, config.time_zone),
        *(((name,), host_port, address) for name, address in ports if address is not None),
    ]
    if config.portal is not None and config.admin is None:
        raise parsed.wrong(("portal",), "needs the operator's port: set `admin:`, too")
    if config.demo is not None:
        checks.append((("demo", "upstream"), host_port, config.demo.upstream))
        if not config.models:
            raise parsed.wrong(("demo",), "a demo needs a model to talk to; add one under `models:`")
    for key_path, check, value in checks:
        try:
            check(value)
        except ValueError as error:
            raise parsed.wrong(key_path, str(error)) from None


def host_port(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:8080` or `[::1]:8080` into host and port. Raises `ValueError`."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080")
    return match[1].strip("[]"), int(match[2])
