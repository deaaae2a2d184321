"""The schema of the YAML file, as frozen structs. Every error is one line that names file, line and remedy.

The file is plain YAML without anchors, aliases, tags or duplicate keys, up to 1 MiB. `${NAME}` in a string is replaced by an
environment variable, `${file:PATH}` by the secret in a file. Settings and their defaults are documented in config/gateway.yaml.
No `repr` shows a setting that may hold a credential.

Prices of tokens are currency units per million tokens, `request` is currency units for each request that was answered. A rate that
is not given is never 0: `cached_input` and `cache_write` fall back to `input`, and each rate of a tier to that of the model.
`service_tiers` are factors on all of them, by the name of the tier in which an upstream serves a request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, tzinfo
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from gateway.base.addresses import check_proxies
from gateway.chat.fields import MAY_ALLOW
from gateway.config import document
from gateway.config.channel import WITH_SECRETS, Channel, address_in
from gateway.config.decode import Bytes, Count, Seconds, SecondsOrNone, Section, convert, is_amount
from gateway.config.document import Document, KeyPath, folder_of, make_absolute
from gateway.config.model import Model

DATABASE_URL: Final = re.compile(r"postgres(ql)?://([^/@?#\s]*@)?[^/@?#\s]*(/[^/@?#\s]*)?(\?[^@#\s]*)?")
CLICKHOUSE_URL: Final = re.compile(
    r"https?://([^\s/@:]+(:[^\s/@]*)?@)?([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/\w*)?"
)
NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,128}")
"""The name of a channel, model, group or plugin: names are parts of keys, labels, headers and log lines."""
NAME_RULE: Final = "a name has 1 to 128 characters, and no control characters"
ACCOUNT_ID: Final = re.compile(r"[a-z0-9]{3,32}")

HostPort = Annotated[str, msgspec.Meta(description="HOST:PORT, as in 127.0.0.1:8080")]

LARGEST_RATE: Final = 100_000_000
"""The largest limit. Above it the numbers of the limits' script, which are doubles, would no longer be exact."""
LARGEST_BUDGET: Final = 10**15
"""The largest budget in micros. The sums of a script, which are doubles, stay exact with what is held beside it."""
LARGEST_BUDGET_AMOUNT: Final = LARGEST_BUDGET // 1_000_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_RATE)]

LARGEST: Final = 1_000_000_000
AlertKind = Literal["budget", "low_balance", "channel", "credential", "store", "account", "token"]

ANYONE: Final = "*"
"""The name whose scopes have all who have none of their own."""
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_TAKEN: Final = frozenset({"authorization", "cookie", "host", "origin", "content-type", "content-length", "connection"})

SCOPES: Final = ("read", "accounts", "tokens", "money", "channels", "admin")
"""The scopes of the operator's port, see `gateway.admin.actions.action.Scope`."""

ORIGIN: Final = re.compile(r"https?://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
DEFAULT_PORT: Final = re.compile(r"http://.*:80|https://.*:443")
EVERY: Final = "`*` would let every page on the web send tokens here: name each origin, as in https://app.example"

SESSION_HEADERS: Final = ("session-id", "x-claude-code-session-id")
"""By what Codex and Claude Code name a session."""


class GroupBudgets(Section, frozen=True):
    """What each member may spend in a calendar window and in each session, in currency units, and how many requests it may send."""

    day: Decimal | None = None
    week: Decimal | None = None
    month: Decimal | None = None
    total: Decimal | None = None
    requests: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BUDGET)] | None = None
    session: Decimal | None = None
    session_requests: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BUDGET)] | None = None

    def __post_init__(self) -> None:
        for name in ("day", "week", "month", "total", "session"):
            value = getattr(self, name)
            if value is not None and not (is_amount(value, LARGEST_BUDGET_AMOUNT) and value > 0):
                raise ValueError(
                    f"{name} must be an amount above 0, {LARGEST_BUDGET_AMOUNT} at most, with at most six decimals; "
                    "leave it out for no budget"
                )


class GroupLimits(Section, frozen=True):
    """What each member may send in a minute and at once."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent: Limit | None = None


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
        if not set(MAY_ALLOW) >= set(self.allow_fields):
            raise ValueError(f"allow_fields may name {', '.join(MAY_ALLOW)}; any other field needs no permission")
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
    """The PostgreSQL database of the usage log where several gateways share it, how many whole months are kept besides the current
    one, what is kept of callers' addresses and programs, and the ClickHouse server that gets a copy.
    """

    hidden = frozenset({"database", "clickhouse"})

    database: str = ""
    retention_months: Count = 13
    callers: Literal["full", "prefix", "none"] = "prefix"
    log_requests: bool = False
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
        if self.database and not DATABASE_URL.fullmatch(self.database):
            raise ValueError(
                "database must be like postgresql://user:password@host:5432/database; in the password write / as %2F, @ as %40, "
                "# as %23, ? as %3F and % as %25"
            )


class PortalSettings(Section, frozen=True):
    """The callers' pages on a port of their own, the addresses of it and of the gateway, and what who cannot enter is told."""

    listen: HostPort = "127.0.0.1:9091"
    url: str = ""
    base_url: str = ""
    help: str = ""

    def __post_init__(self) -> None:
        for name, text in (("url", self.url), ("base_url", self.base_url)):
            if text and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*[^\s?#/])?", text):
                raise ValueError(f"{name} must be like https://my.example.com, without a slash at the end")


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


def check_origins(origins: Iterable[str]) -> None:
    """Raise `ValueError` for what is no origin as browsers write it."""
    for origin in origins:
        if "*" in origin:
            raise ValueError(f"cors_origins: {EVERY}")
        bare = origin.lower().rstrip("/")
        if DEFAULT_PORT.fullmatch(bare):
            bare = bare.rpartition(":")[0]
        if not ORIGIN.fullmatch(bare):
            raise ValueError(f"cors_origins: `{origin}` is no origin; write scheme and host, as in https://app.example")
        if bare != origin:
            raise ValueError(f"cors_origins: browsers send `{bare}`, not `{origin}`; write it like this")


class Config(Section, frozen=True):
    """The whole file."""

    hidden = frozenset({"redis"})

    listen: HostPort = "127.0.0.1:8080"
    admin: HostPort | None = "127.0.0.1:9090"
    admin_sso: AdminSso | None = None
    portal: PortalSettings | None = None
    redis: str = "embedded"
    data: str = "./data"
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    time_zone: str = "UTC"
    currency: Annotated[str, msgspec.Meta(max_length=8)] = ""
    session_headers: tuple[Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]{1,64}$")], ...] = SESSION_HEADERS
    port: Port = Port()
    tls: Tls | None = None
    store: StoreSettings = StoreSettings()
    usage: UsageSettings = UsageSettings()
    alerts: AlertSettings | None = None
    demo: Demo | None = None
    channels: dict[str, Channel] = msgspec.field(default_factory=dict)
    models: dict[str, Model] = msgspec.field(default_factory=dict)
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    plugins: list[PluginEntry] = msgspec.field(default_factory=list)

    @property
    def data_path(self) -> Path:
        """Return the directory of the embedded store, the usage log, the spool and the pepper."""
        return Path(self.data)


COMPARED: Final = ("channels", "models", "aliases", "groups", "plugins", "time_zone", "currency", "session_headers")
"""Settings that the gateways of a store should have alike."""
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
    keys: bool = True,
) -> Loaded:
    """Read a file, replace its variables and check it. Raises `Misconfigured`.

    `raw` and `secrets`: its bytes and the secrets of its files, where they were read before. `folder`: where its relative
    paths start, if it is to replace a file there. `keys`: without, no credential of a channel is needed, as by commands that call
    no upstream.
    """
    raw = document.read(path) if raw is None else raw
    given = os.environ if environment is None else environment
    data, parsed = document.parse(path, raw, given, secrets, folder, keys=keys)
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


def digests(config: Config) -> dict[str, str]:
    """Return a digest of each setting that the gateways of a store should have alike; of channels without their credentials."""
    found = {name: msgspec.to_builtins(getattr(config, name), enc_hook=str) for name in COMPARED}
    for channel in found["channels"].values():
        del channel["api_key"], channel["api_keys"]
    encoded = {name: msgspec.json.encode(value, order="deterministic") for name, value in found.items()}
    return {name: sha256(each).hexdigest()[:16] for name, each in encoded.items()}


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
    _check_aliases(config, parsed)
    _check_fallbacks(config, parsed)
    labels: set[str] = set()
    for index, entry in enumerate(config.plugins):
        if not NAME.fullmatch(entry.label):
            raise parsed.wrong(("plugins", index), f"{NAME_RULE}; give this one a `name:`")
        if entry.label in labels:
            raise parsed.wrong(
                ("plugins", index), f"the name `{entry.label}` is taken; give this one a `name:` of its own"
            )
        labels.add(entry.label)
    portal = None if config.portal is None else config.portal.listen
    ports = ((("listen",), config.listen), (("admin",), config.admin), (("portal", "listen"), portal))
    checks: list[tuple[KeyPath, Callable[[str], object], str]] = [
        (("time_zone",), time_zone, config.time_zone),
        *((key_path, host_port, address) for key_path, address in ports if address is not None),
    ]
    if portal is not None and config.admin is None:
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


def _check_fallbacks(config: Config, parsed: Document) -> None:
    for name, model in config.models.items():
        for index, other in enumerate(model.fallback):
            place = ("models", name, "fallback", index)
            if other not in config.models:
                hint = (
                    "name the model itself, not its alias"
                    if other in config.aliases
                    else f"there is no model `{other}`"
                )
                raise parsed.wrong(place, hint)
            if other == name or other in model.fallback[:index]:
                raise parsed.wrong(place, "each model is tried once; leave this one out")


def _check_aliases(config: Config, parsed: Document) -> None:
    for alias, named in config.aliases.items():
        if not NAME.fullmatch(alias):
            raise parsed.wrong(("aliases", alias), NAME_RULE)
        if alias in config.models:
            raise parsed.wrong(("aliases", alias), f"`{alias}` is a model already; give the alias another name")
        if named not in config.models:
            hint = (
                "an alias of an alias; name the model itself"
                if named in config.aliases
                else f"there is no model `{named}`"
            )
            raise parsed.wrong(("aliases", alias), hint)


def host_port(address: str) -> tuple[str, int]:
    """Split `127.0.0.1:8080` or `[::1]:8080` into host and port. Raises `ValueError`."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):([0-9]{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080")
    return match[1].strip("[]"), int(match[2])


class AlertReceiver(Section, frozen=True):
    """A receiver of alerts. `groups`: of accounts of these groups alone, and of nothing that is no account's; empty for all."""

    hidden = frozenset({"webhook"})

    webhook: str
    events: tuple[AlertKind, ...]
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if address_in(self.webhook) is None or "#" in self.webhook:
            raise ValueError("webhook must be an address such as https://host/path, without a fragment")

    @property
    def host(self) -> str:
        """The host of the webhook, which may be logged; the rest of its address may hold a credential."""
        return urlsplit(self.webhook).hostname or ""


class AlertSettings(AlertReceiver, frozen=True):
    """Where alerts are sent: to one receiver, and to `others` by their names.

    `low_balance`: what an account may still spend when `low_balance` is sent; None: it is not sent. The secrets that sign them are
    in `data` or in the environment, see `gateway.alerts.signature`.
    """

    events: tuple[AlertKind, ...] = ("budget", "low_balance", "channel", "credential", "store")
    low_balance: Decimal | None = None
    others: dict[str, AlertReceiver] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.others:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name):
                raise ValueError(f"others: the name {name!r} must be a letter, and up to 31 more of a-z, 0-9 and _")
        if self.low_balance is not None and not (is_amount(self.low_balance, LARGEST) and self.low_balance):
            raise ValueError(f"low_balance must be above 0 and at most {LARGEST}, with at most six decimals")

    @property
    def receivers(self) -> dict[str, AlertReceiver]:
        """All receivers by their names; that of the first is empty."""
        return {"": self, **self.others}


class AdminSso(Section, frozen=True, rename={"from_": "from"}):
    """Header sign-on: the header with the name, the addresses that may send it, and the scopes of each name."""

    header: str
    from_: tuple[str, ...]
    scopes: dict[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if not _HEADER.fullmatch(self.header) or self.header.lower() in _TAKEN:
            raise ValueError("header must be the name of a header of its own, such as X-Forwarded-User")
        if not self.from_:
            raise ValueError("from must name the proxy that sets the header, as in 10.0.0.2 or 10.0.0.0/8")
        check_proxies(self.from_, "from")
        if not self.scopes:
            raise ValueError('scopes must say what who signs on may do, as in {alice: [read, money], "*": [read]}')
        for name, scopes in self.scopes.items():
            if not set(SCOPES) >= set(scopes):
                raise ValueError(f"scopes of {name} may be {', '.join(SCOPES)}")

    def scopes_of(self, name: str) -> tuple[str, ...]:
        """Return the scopes of who signs on as `name`; none where it has none."""
        return self.scopes.get(name, self.scopes.get(ANYONE, ())) if name != ANYONE else ()


def time_zone(name: str) -> tzinfo:
    """Return the time zone of this name. `UTC` is always there. Raises `ValueError` for one that this machine does not have."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            "this machine has no such time zone; write UTC, or a name such as Europe/Berlin, and where that is not found either, "
            "install the package tzdata of the operating system, or of PyPI"
        ) from None
