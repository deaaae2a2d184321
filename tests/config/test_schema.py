"""Settings: a wrong one is an error of one line with file, line, key and remedy; each has its documented default."""

from __future__ import annotations

import re
import traceback
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import entry_points
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from rich.console import Console

from gateway.base.errors import Misconfigured
from gateway.chain import loading
from gateway.chat.fields import REMEDIES, UNPRICED
from gateway.config.channel import (
    MAX_BYTES,
    Channel,
    Fixed,
    Timers,
    credential_warnings,
)
from gateway.config.decode import Section, convert
from gateway.config.document import Document, find, shipped
from gateway.config.model import Cost, Model, Serving, Tier
from gateway.config.schema import (
    EVERY,
    SECTIONS,
    AdminSso,
    AlertReceiver,
    AlertSettings,
    Config,
    Demo,
    Group,
    GroupBudgets,
    GroupLimits,
    Loaded,
    PluginEntry,
    Port,
    PortalSettings,
    StoreSettings,
    Tls,
    UsageSettings,
    host_port,
    load,
    time_zone,
)
from tests.whole.conftest import CHAIN

# Every wrong setting is an error of one line with file, line, key and remedy; every setting has its documented default.
CHANNEL = "channels: {up: {base_url: 'http://h/v1'}}\n"
NUMBERED_FROM_0 = "plugins:\n  - use: usage-logger\n  - use: auth\n"
PRICE = (
    "give `input` and `output` prices per million tokens, or `free: true` without them; or `image`, `second` or `character`, for "
    "what is billed by these alone"
)
RANGE = "prices must be from 0 to 1000000, with at most six decimals"
ADDRESS = "must be HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080"
BUDGET = "must be an amount above 0, 1000000000 at most, with at most six decimals; leave it out for no budget"
ZONE = (
    "this machine has no such time zone; write UTC, or a name such as Europe/Berlin, and where that is not found either, "
    "install the package tzdata of the operating system, or of PyPI"
)
BASE_URL = "base_url must be like https://host/v1, without credentials, a query or an operation"
API_KEYS = "give `api_key`, or several as `api_keys`, none of them empty"
API_KEY = "api_key must be visible ASCII: look for a space or a line end at its end"
INSTALLED = ", ".join(sorted(each.name for each in entry_points(group=loading.ENTRY_POINTS)))
NO_MAPPING = "must be a mapping, not null; give it one, or remove the key"
NO_NETWORK = "must be an address or a network, as in 10.0.0.2 or 10.0.0.0/8"
EVERY_ADDRESS = "is every address: callers could choose theirs; name the proxies alone"
TOP = ", ".join(sorted(Config.__struct_fields__))
PROXY = "1: channels.a: proxy must be like http://host:port or http://user:password@host:port, with the password percent-encoded"
TIERS = "tiers must be at most 16, each with a larger `above` than the one before"
NAMED = "service_tiers are named by letters and digits, and `default` and `auto` need no price"
FACTORS = "service_tiers have factors above 0, 1000 at most, with at most six decimals"
OWN = "a tier needs a price of its own: `input`, `cached_input`, `cache_write` or `output`"
WEBHOOK = "webhook must be an address such as https://host/path, without a fragment"
LOW = "low_balance must be above 0 and at most 1000000000, with at most six decimals"
WRONG = {
    "": "1: the file must be a mapping of settings; begin with config/gateway.yaml",
    "- use: auth": "1: the file must be a mapping of settings; begin with config/gateway.yaml",
    # Unknown settings, at every level
    "lissten: 127.0.0.1:1": f"1: lissten: unknown setting; known here: {TOP}",
    "store:\n  time: 1": "2: store.time: unknown setting; known here: accept_loss, connect_for, connections, timeout",
    "usage: {months: 1}": "1: usage.months: unknown setting; known here: "
    "callers, clickhouse, database, log_requests, retention_months",
    "demo: {up: x}": "1: demo.up: unknown setting; known here: account, credit, upstream",
    "channels:\n  a:\n    base_url: http://h\n    key: x": "4: channels.a.key: unknown setting; known here: "
    "api_key, api_keys, ask_usage, auth, base_url, ca_file, ceiling_field, concurrent, dialect, drain_limit, drop, empty_choices, "
    "headers, max_response_bytes, on_caller_gone, operations, "
    "probe, proxy, query, requests_per_minute, session_header, set, timers, upstream_stream",
    "channels:\n  a:\n    base_url: http://h\n    timers: {idel: 4}": "4: channels.a.timers.idel: unknown setting; "
    "known here: connect, first_byte, idle, total, write_stall",
    "models:\n  gpt-4.1: {price: 1}": "2: models.gpt-4.1.price: unknown setting; "
    "known here: affinity, audio_tokens, cache_write, cached_input, cannot, channels, character, context_length, fallback, "
    "file_tokens, free, image, image_tokens, input, max_output_tokens, order, output, request, second, service_tiers, tiers",
    "models:\n  m:\n    free: true\n    channels:\n      - {use: up, prio: 1}": "5: models.m.channels[0].prio: "
    "unknown setting; known here: cost, model, priority, use, weight",
    "groups:\n  g: {rate: 1}": "2: groups.g.rate: unknown setting; known here: budgets, channels, enabled, limits, models, ratio",
    f"{NUMBERED_FROM_0}    witth: {{}}": "4: plugins[1].witth: unknown setting; "
    "known here: enabled, name, on_error, use, with",
    f"{NUMBERED_FROM_0}    with: {{wrong: 1}}": "4: plugins[1].with.wrong: unknown setting; "
    "known here: wrong_tokens_per_minute",
    # The wrong kind
    "workers: many": "1: workers: must be a whole number, not text; write it plainly, without quotes",
    "data: 5": "1: data: must be text, not a whole number; put it in quotes",
    "port: big": "1: port: must be a mapping, not text",
    "channels: [a]": "1: channels: must be a mapping of names to settings",
    "channels: {a: http://h}": "1: channels.a: must be a mapping, not text",
    "plugins: {use: auth}": "1: plugins: must be a list, each item beginning with `- use:`",
    "groups: {g: {models: [4]}}": "1: groups.g.models[0]: must be text, not a whole number; put it in quotes",
    "models: {m: {input: 2026-01-01, output: 1, channels: [a]}}": "1: models.m.input: must be a number, such as 0.15",
    "models: {m: {input: 0,15, output: 1, channels: [a]}}": "1: models.m.15: unknown setting; "
    "known here: affinity, audio_tokens, cache_write, cached_input, cannot, channels, character, context_length, fallback, "
    "file_tokens, free, image, image_tokens, input, max_output_tokens, order, output, request, second, service_tiers, tiers",
    "workers: 1.5": "1: workers: must be a whole number, not a fraction",
    "workers: true": "1: workers: must be a whole number, not true or false",
    "data: 1.5": "1: data: must be text, not a fraction; put it in quotes",
    "data: false": "1: data: must be text, not true or false; put it in quotes",
    "plugins: [{use: auth, enabled: 'true'}]": "1: plugins[0].enabled: must be true or false, not text; write it plainly, "
    "without quotes",
    "plugins: [{use: auth, enabled: 1}]": "1: plugins[0].enabled: must be true or false, not a whole number",
    "models: {m: {input: [], output: 1, channels: [a]}}": "1: models.m.input: must be a number or null, not a list",
    "models: {m: {free: true, channels: a}}": "1: models.m.channels: must be a list, not text",
    "models: {m: {free: true, channels: [a, 1]}}": "1: models.m.channels[1]: must be text or a mapping, not a whole number; "
    "put it in quotes",
    "alerts: []": "1: alerts: must be a mapping or null, not a list",
    "store: {'`x`': 1}": "1: store.`x`: unknown setting; known here: accept_loss, connect_for, connections, timeout",
    # Sections that are there and empty
    "port:": f"1: port: {NO_MAPPING}",
    "channels:": "1: channels: must be a mapping of names to settings",
    "models:\n  m:": f"2: models.m: {NO_MAPPING}",
    "plugins:": "1: plugins: must be a list, each item beginning with `- use:`",
    "plugins:\n  -": f"2: plugins[0]: {NO_MAPPING}",
    "plugins:\n  - use: auth\n    with:": f"3: plugins[0].with: {NO_MAPPING}",
    # Numbers that make no sense
    "workers: 0": "1: workers: must be a whole number >= 1",
    "workers: 1000": "1: workers: must be a whole number <= 256",
    "port: {max_head: 0}": "1: port.max_head: must be a whole number >= 1",
    "port: {max_body: -1}": "1: port.max_body: must be a whole number >= 1",
    "port: {body_timeout: 0}": "1: port.body_timeout: must be a number > 0",
    "port: {idle_timeout: 1000000}": "1: port.idle_timeout: must be a number <= 86400",
    "port: {drain: -0.5}": "1: port.drain: must be a number >= 0",
    "port: {allow_fields: [models, temperature]}": "1: port: allow_fields may name "
    f"{', '.join((*REMEDIES, *sorted(UNPRICED)))}, tools, service_tier, cache_control, context_management; any other field needs "
    "no permission",
    **{
        f"port: {{trusted_proxies: [10.0.0.1, '{wrong}']}}": f"1: port: trusted_proxies[1] {why}"
        for wrong, why in {
            "": NO_NETWORK,
            "nginx": NO_NETWORK,
            "10.0.0.1/8": NO_NETWORK,
            "10.0.0.1:80": NO_NETWORK,
            "fe80::1%eth0": NO_NETWORK,
            "0.0.0.0/0": EVERY_ADDRESS,
            "::/0": EVERY_ADDRESS,
            "::ffff:0.0.0.0/96": EVERY_ADDRESS,
        }.items()
    },
    "admin_sso: {header: Cookie, from: [10.0.0.2], scopes: {a: [read]}}": "1: admin_sso: header must be the name of a header "
    "of its own, such as X-Forwarded-User",
    "admin_sso: {header: X-User, from: [], scopes: {a: [read]}}": "1: admin_sso: from must name the proxy that sets the header, "
    "as in 10.0.0.2 or 10.0.0.0/8",
    "admin_sso: {header: X-User, from: [10.0.0.2, x], scopes: {a: [read]}}": f"1: admin_sso: from[1] {NO_NETWORK}",
    "admin_sso: {header: X-User, from: ['0.0.0.0/0'], scopes: {a: [read]}}": f"1: admin_sso: from[0] {EVERY_ADDRESS}",
    "admin_sso: {header: X-User, from: [10.0.0.2], scopes: {}}": "1: admin_sso: scopes must say what who signs on may do, "
    'as in {alice: [read, money], "*": [read]}',
    "admin_sso: {header: X-User, from: [10.0.0.2], scopes: {a: [root]}}": "1: admin_sso: scopes of a may be read, accounts, "
    "tokens, money, channels, admin",
    "store: {timeout: 0}": "1: store.timeout: must be a number > 0",
    "store: {connections: 0}": "1: store.connections: must be a whole number >= 1",
    "usage: {retention_months: 0}": "1: usage.retention_months: must be a whole number >= 1",
    "channels: {a: {base_url: http://h, timers: {idle: 0}}}": "1: channels.a.timers.idle: must be a number > 0",
    "channels: {a: {base_url: http://h, max_response_bytes: 0}}": "1: channels.a.max_response_bytes: "
    "must be a whole number >= 1",
    f"{CHANNEL}models: {{m: {{free: true, channels: [{{use: up, weight: 0}}]}}}}": "2: models.m.channels[0].weight: "
    "must be a whole number >= 1",
    f"{CHANNEL}models: {{m: {{free: true, channels: [up], max_output_tokens: 0}}}}": "2: models.m.max_output_tokens: "
    "must be a whole number >= 1",
    "groups: {g: {ratio: -1}}": "1: groups.g: ratio must be from 0 to 1000, with at most six decimals",
    "groups: {g: {ratio: 'sNaN'}}": "1: groups.g: ratio must be from 0 to 1000, with at most six decimals",
    "groups:\n  g:\n    budgets: {hour: 1}": (
        "3: groups.g.budgets.hour: unknown setting; known here: day, month, requests, session, session_requests, total, week"
    ),
    "groups: {g: {budgets: {day: -1}}}": f"1: groups.g.budgets: day {BUDGET}",
    "groups: {g: {budgets: {week: 0}}}": f"1: groups.g.budgets: week {BUDGET}",
    "groups: {g: {budgets: {month: 'NaN'}}}": f"1: groups.g.budgets: month {BUDGET}",
    "groups: {g: {budgets: {total: '1e30'}}}": f"1: groups.g.budgets: total {BUDGET}",
    "groups: {g: {budgets: {day: 0.0000001}}}": f"1: groups.g.budgets: day {BUDGET}",
    "groups: {g: {budgets: {day: ''}}}": "1: groups.g.budgets.day: must be a number, such as 0.15",
    "groups: {g: {budgets: {requests: 0}}}": "1: groups.g.budgets.requests: must be a whole number >= 1",
    "groups: {g: {budgets: {requests: 1.5}}}": (
        "1: groups.g.budgets.requests: must be a whole number or null, not a fraction"
    ),
    "groups: {g: {budgets: }}": ("1: groups.g.budgets: must be a mapping, not null; give it one, or remove the key"),
    "groups: {g: {limits: {concurrent: 0}}}": "1: groups.g.limits.concurrent: must be a whole number >= 1",
    "groups: {g: {limits: {day: 1}}}": (
        "1: groups.g.limits.day: unknown setting; known here: concurrent, requests_per_minute, tokens_per_minute"
    ),
    **{
        f"time_zone: '{name}'": f"1: time_zone: {ZONE}"
        for name in ("", "utc ", "Mars/Olympus", "../zoneinfo/UTC", "/etc/passwd", "Europe", "x" * 9999)
    },
    # Prices
    f"{CHANNEL}models:\n  m: {{channels: [up]}}": f"3: models.m: {PRICE}",
    f"{CHANNEL}models: {{m: {{input: 1, channels: [up]}}}}": f"2: models.m: {PRICE}",
    f"{CHANNEL}models: {{m: {{free: true, input: 1, output: 1, channels: [up]}}}}": f"2: models.m: {PRICE}",
    f"{CHANNEL}models: {{m: {{free: true, input: 0, channels: [up]}}}}": f"2: models.m: {PRICE}",
    f"{CHANNEL}models: {{m: {{input: -1, output: 1, channels: [up]}}}}": f"2: models.m: {RANGE}",
    f"{CHANNEL}models: {{m: {{input: 1, output: 1000001, channels: [up]}}}}": f"2: models.m: {RANGE}",
    f"{CHANNEL}models: {{m: {{input: 0.0000001, output: 1, channels: [up]}}}}": f"2: models.m: {RANGE}",
    f"{CHANNEL}models: {{m: {{input: 'NaN', output: 1, channels: [up]}}}}": f"2: models.m: {RANGE}",
    f"{CHANNEL}models: {{m: {{input: 'Infinity', output: 1, channels: [up]}}}}": f"2: models.m: {RANGE}",
    **{
        f"{CHANNEL}models: {{m: {model}}}": f"2: {error}"
        for model, error in {
            "{cached_input: 1, output: 1, channels: [up]}": f"models.m: {PRICE}",
            "{free: true, cached_input: 0, channels: [up]}": f"models.m: {PRICE}",
            "{free: true, request: 0.1, channels: [up]}": f"models.m: {PRICE}",
            "{free: true, tiers: [{above: 1, input: 1}], channels: [up]}": f"models.m: {PRICE}",
            "{free: true, service_tiers: {flex: 1}, channels: [up]}": f"models.m: {PRICE}",
            "{input: 1, output: 1, service_tiers: {default: 1}, channels: [up]}": f"models.m: {NAMED}",
            "{input: 1, output: 1, service_tiers: {'a b': 1}, channels: [up]}": f"models.m: {NAMED}",
            "{input: 1, output: 1, service_tiers: {flex: 0}, channels: [up]}": f"models.m: {FACTORS}",
            "{input: 1, output: 1, cached_input: -1, channels: [up]}": f"models.m: {RANGE}",
            "{input: 1, output: 1, cache_write: 1000001, channels: [up]}": f"models.m: {RANGE}",
            "{input: 1, output: 1, request: 0.0000001, channels: [up]}": f"models.m: {RANGE}",
            "{input: 1, output: 1, tiers: [{above: 1, input: -1}], channels: [up]}": f"models.m.tiers[0]: {RANGE}",
            "{input: 1, output: 1, tiers: [{above: 1}], channels: [up]}": f"models.m.tiers[0]: {OWN}",
            "{input: 1, output: 1, tiers: [{above: 0, input: 1}], channels: [up]}": "models.m.tiers[0].above: "
            "must be a whole number >= 1",
            "{input: 1, output: 1, tiers: [{input: 1}], channels: [up]}": "models.m.tiers[0]: `above` is missing; add it",
            "{input: 1, output: 1, tiers: [{above: 1, request: 1}], channels: [up]}": "models.m.tiers[0].request: "
            "unknown setting; known here: above, cache_write, cached_input, input, output",
            "{input: 1, output: 1, tiers: [{above: 2, input: 1}, {above: 2, input: 2}], channels: [up]}": f"models.m: {TIERS}",
            "{input: 1, output: 1, tiers: [{above: 2, input: 1}, {above: 1, input: 2}], channels: [up]}": f"models.m: {TIERS}",
            "{free: true, channels: [{use: up, cost: {input: 1}}]}": "models.m.channels[0].cost: `output` is missing; add it",
            "{free: true, channels: [{use: up, cost: {input: 1, output: 1, price: 1}}]}": "models.m.channels[0].cost.price: "
            "unknown setting; "
            "known here: cache_write, cached_input, input, output, request, service_tiers, tiers",
            "{free: true, channels: [{use: up, cost: {input: 1, output: 'NaN'}}]}": f"models.m.channels[0].cost: {RANGE}",
        }.items()
    },
    **{
        f"alerts: {text}": error
        for text, error in {
            "{}": "1: alerts: `webhook` is missing; add it",
            "{webhook: ''}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'ftp://host-canary/path'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https:///path-canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://host:0/canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://host:99999/canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://a..canary/'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://host/canary canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://host/#canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://[::1/canary'}": f"1: alerts: {WEBHOOK}",
            "{webhook: 'https://h/', low_balance: 0}": f"1: alerts: {LOW}",
            "{webhook: 'https://h/', low_balance: -1}": f"1: alerts: {LOW}",
            "{webhook: 'https://h/', low_balance: 0.0000001}": f"1: alerts: {LOW}",
            "{webhook: 'https://h/', low_balance: much}": "1: alerts.low_balance: must be a number, such as 0.15",
            "{webhook: 'https://h/', events: [budgets]}": "1: alerts.events[0]: "
            "must be budget or low_balance or channel or credential or store or account or token",
            "{webhook: 'https://h/', others: {shop: {webhook: 'ftp://canary/', events: []}}}": f"1: alerts.others: {WEBHOOK}",
            "{webhook: 'https://h/', others: {Shop: {webhook: 'https://canary/', events: []}}}": "1: alerts: others: "
            "the name 'Shop' must be a letter, and up to 31 more of a-z, 0-9 and _",
            "{webhook: 'https://h/', secret: canary}": "1: alerts.secret: "
            "unknown setting; known here: events, groups, low_balance, others, webhook",
        }.items()
    },
    # Names that lead nowhere
    f"{CHANNEL}models:\n  m:\n    free: true\n    channels:\n      - up\n      - down": "7: models.m.channels[1]: "
    "there is no channel `down`; known: up",
    "models: {m: {free: true, channels: [{use: down}]}}": "1: models.m.channels[0]: there is no channel `down`; "
    "known: none yet",
    f"{CHANNEL}models: {{m: {{image: 1, channels: [up], fallback: [o]}}, o: {{free: true, channels: [up]}}}}": "2: models.m: "
    "fallback: no other model serves in place of one that is billed by units alone: leave it out",
    f"{CHANNEL}models: {{m: {{free: true, channels: []}}}}": "2: models.m: channels must name at least one channel",
    f"{CHANNEL}groups:\n  g:\n    channels: ['u*', down]": "4: groups.g.channels[1]: there is no channel `down`; known: up",
    "channels: {a: {base_url: http://h, api_key: x, api_keys: [y]}}": f"1: channels.a: {API_KEYS}",
    "channels: {a: {base_url: http://h, api_keys: ['']}}": f"1: channels.a: {API_KEYS}",
    "channels: {a: {base_url: http://h, api_keys: [1]}}": "1: channels.a.api_keys[0]: must be text, not a whole number; "
    "put it in quotes",
    "channels: {a: {base_url: http://h, ca_file: /nowhere}}": "1: channels.a: ca_file must be a readable file of "
    "certificates in PEM",
    "channels: {a: {base_url: http://h, ca_file: /dev/zero}}": "1: channels.a: ca_file must be a readable file of "
    "certificates in PEM",
    "channels: {a: {base_url: http://h, proxy: 'http://u:SECRETA/SECRETB@h:1'}}": PROXY,
    "channels: {a: {base_url: http://h, proxy: 'http://u:p@h:abc'}}": PROXY,
    "channels: {a: {base_url: http://h, proxy: socks5://h}}": PROXY,
    "channels: {a: {base_url: http://h, concurrent: 0}}": "1: channels.a.concurrent: must be a whole number >= 1",
    "demo: {}": "1: demo: a demo needs a model to talk to; add one under `models:`",
    "\n\nredis: ${REDIS}": "3: redis: the environment variable REDIS is not set; export it or write a value",
    # Addresses
    "listen: 8080": "1: listen: must be text, not a whole number; write HOST:PORT, as in 127.0.0.1:8080",
    "listen: localhost": f"1: listen: {ADDRESS}",
    "listen: ':8080'": f"1: listen: {ADDRESS}",
    "listen: 127.0.0.1:65536": f"1: listen: {ADDRESS}",
    "listen: '::1:80'": f"1: listen: {ADDRESS}",
    f"{CHANNEL}models: {{m: {{free: true, channels: [up]}}}}\ndemo: {{upstream: here}}": f"3: demo.upstream: {ADDRESS}",
    "demo: {account: Demo}": "1: demo: account must be 3 to 32 of a-z and 0-9",
    "demo: {credit: -1}": "1: demo: credit must be from 0 to 1000000, with at most six decimals",
    **{
        f"channels: {{a: {{base_url: '{url}'}}}}": f"1: channels.a: {BASE_URL}"
        for url in (
            *("h/v1", "ftp://h/v1", "https://user:pw@h/v1", "https://h/v1?x=1", "https://h/#v1", "https://h /v1"),
            *("https://h:99999/v1", "https://h:0/v1", "https://h:x/v1", "https://[::1/v1", "https:///v1", "https://"),
            *("https://a..b/v1", f"https://{'a' * 64}.b/v1", "https://[::1%25x/v1"),
            *("https://h/v1/chat/completions", "https://h/v1/completions/", "https://h/v\u00e9"),
        )
    },
    "channels: {a: {api_key: x}}": "1: channels.a: `base_url` is missing; add it",
    'channels: {a: {base_url: http://h, api_key: "k\\r\\nHost: x"}}': f"1: channels.a: {API_KEY}",
    'channels: {a: {base_url: http://h, api_key: "sk-1 "}}': f"1: channels.a: {API_KEY}",
    f"channels: {{{'a' * 129}: {{base_url: http://h}}}}": f"1: channels.{'a' * 129}: a name has 1 to 128 characters, "
    "and no control characters",
    'channels: {"a\\r\\nSet-Cookie: b": {base_url: http://h}}': "1: channels.a\\r\\nSet-Cookie: b: "
    "a name has 1 to 128 characters, and no control characters",
    'models: {"a\\tb": {free: true, channels: [a]}}': "1: models.a\\tb: "
    "a name has 1 to 128 characters, and no control characters",
    'groups: {"a\\u2028b": {}}': "1: groups.a\\u2028b: a name has 1 to 128 characters, and no control characters",
    'plugins: [{use: auth, name: "a\\nb"}]': "1: plugins[0]: a name has 1 to 128 characters, and no control characters; "
    "give this one a `name:`",
    # Choices
    "channels: {a: {base_url: http://h, on_caller_gone: stay}}": "1: channels.a.on_caller_gone: must be cancel or drain",
    "plugins: [{use: auth, on_error: fail}]": "1: plugins[0].on_error: must be refuse or ignore",
    # The chain
    "plugins:\n  - name: x": "2: plugins[0]: `use` is missing; add it",
    "plugins:\n  - use: oauth": f"2: plugins[0].use: there is no plugin `oauth`; installed: {INSTALLED}; "
    "or name module:Class",
    f"{NUMBERED_FROM_0}  - use: auth": "4: plugins[2]: the name `auth` is taken; give this one a `name:` of its own",
    "plugins:\n  - use: quota\n  - use: auth\n  - use: model-routing": "2: plugins[0]: 'quota' needs Caller, "
    "which nothing above it provides: move 'auth' above 'quota'",
    NUMBERED_FROM_0: "3: plugins[1]: nothing in the chain provides Route: add `- use: model-routing` as the last plugin",
    "plugins:\n  - use: auth\n    on_error: ignore\n  - use: model-routing": "2: plugins[0]: 'auth' provides Caller, "
    "which is needed: remove its `on_error: ignore`",
    "plugins: []": "1: plugins: no plugin is enabled; begin with the list in config/gateway.yaml",
}


def loaded(tmp_path: Path, text: str, **environment: str) -> Loaded:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    return load(file, environment)


def refusal(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        loading.build(loaded(tmp_path, text, **environment))
    shown = str(refused.value)
    assert shown.startswith(f"{tmp_path}/gateway.yaml:")
    return shown.removeprefix(f"{tmp_path}/gateway.yaml:")


HEAD = "channels:\n  a:\n    base_url: https://h/v1\n"
FRAMING = "it says how the request is framed or to whom it goes, which the gateway writes itself; leave it out"
CHANNEL_REQUEST_OWN = "the gateway writes it for each request; leave it out"
WRITES = "`auth` sends the credential in it; give that as `api_key`, or say by `auth:` where else it goes"
VALUE = "the value of a header is visible ASCII on one line, without spaces around it"
CEILING = "the gateway sends the limit that a request is priced by; lower `max_output_tokens` of the model instead"
DIGITS = "in plain digits (at most 15), or in quotes if it is a name"
IN_PLACE = "upstreams may read it in place of a field by which a request is checked and priced"
CHANNEL_REQUEST_WRONG = {
    "    headers:\n      X-A: b\n      Host: other": f"6: channels.a.headers.Host: {FRAMING}",
    "    headers: {content_length: '3'}": f"4: channels.a.headers.content_length: {FRAMING}",
    "    headers: {Transfer-Encoding: chunked}": f"4: channels.a.headers.Transfer-Encoding: {FRAMING}",
    "    headers: {Connection: close}": f"4: channels.a.headers.Connection: {FRAMING}",
    "    headers: {TE: trailers}": f"4: channels.a.headers.TE: {FRAMING}",
    "    headers: {accept: text/html}": f"4: channels.a.headers.accept: {CHANNEL_REQUEST_OWN}",
    "    headers: {traceparent: '00'}": f"4: channels.a.headers.traceparent: {CHANNEL_REQUEST_OWN}",
    "    headers: {Proxy-Authorization: x}": "4: channels.a.headers.Proxy-Authorization: "
    "write the user and the password into `proxy`",
    "    headers: {authorization: x}": f"4: channels.a.headers.authorization: {WRITES}",
    "    auth: header x-key\n    api_key: k\n    headers: {X_Key: x}": f"6: channels.a.headers.X_Key: {WRITES}",
    '    headers: {X-A: "a\\r\\nHost: b"}': f"4: channels.a.headers.X-A: {VALUE}",
    '    headers: {X-A: "a\\nb"}': f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: ' a'}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: ''}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {X-A: \u00e9}": f"4: channels.a.headers.X-A: {VALUE}",
    "    headers: {'X A': b}": "4: channels.a.headers.X A: the name of a header is of letters, digits and -, without spaces",
    "    headers: {'X-A: b\\r\\nC': b}": "4: channels.a.headers.X-A: b\\r\\nC: "
    "the name of a header is of letters, digits and -, without spaces",
    "    headers: {X-A: b, x_a: c}": "4: channels.a.headers.x_a: upstreams take it for `X-A`, which is given, too; keep one",
    "    headers: {X-A: 1}": "4: channels.a.headers: must be text, not a whole number; put it in quotes",
    "    headers: [X-A]": "4: channels.a.headers: must be a mapping, not a list",
    f"    headers: {{X-A: {'x' * MAX_BYTES}}}": f"4: channels.a.headers: is longer than {MAX_BYTES} bytes",
    "    auth: basic": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    auth: header": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    auth: header Host": f"4: channels.a.auth: the header Host cannot carry a credential: {FRAMING}",
    "    auth: query a b": "4: channels.a.auth: must be `bearer`, `header NAME` or `query NAME`, as in `auth: header api-key`",
    "    query: {'a b': c}": "4: channels.a.query.a b: the name of a parameter is visible ASCII",
    '    query: {a: "b\\nc"}': "4: channels.a.query.a: the value of a parameter has no control characters",
    "    auth: query key\n    query: {key: c}": "5: channels.a.query.key: "
    "`auth: query key` writes it; give the credential as `api_key`",
    "    set: {model: x}": "4: channels.a.set.model: "
    "name the upstream's model in the model's `channels`, as in {use: NAME, model: OTHER}",
    "    set: {Model: x}": "4: channels.a.set.Model: "
    "name the upstream's model in the model's `channels`, as in {use: NAME, model: OTHER}",
    "    set: {messages: []}": "4: channels.a.set.messages: it is the caller's; a plugin can change it",
    "    set: {stream: false}": "4: channels.a.set.stream: the gateway decides it; see `upstream_stream`",
    "    set: {stream_options: {}}": "4: channels.a.set.stream_options: say `ask_usage: false` if the upstream refuses it",
    "    set: {n: 3}": "4: channels.a.set.n: it is the caller's, and a request is priced by it",
    "    set: {max_tokens: 3}": f"4: channels.a.set.max_tokens: {CEILING}",
    "    set: {maxCompletionTokens: 3}": f"4: channels.a.set.maxCompletionTokens: {CEILING}",
    "    set: {'max_tokens ': 3}": f"4: channels.a.set.max_tokens : {CEILING}",
    "    set: {max tokens: 3}": f"4: channels.a.set.max tokens: {CEILING}",
    "    set: {top_p: .nan}": f"4: channels.a.set.top_p: write `.nan` {DIGITS}",
    "    set: {a: {b: [-.inf]}}": f"4: channels.a.set.a.b[0]: write `-.inf` {DIGITS}",
    "    set: {a: !!binary eA==}": "4: tags such as `!!binary` are not allowed; write plain values",
    "    set: {a: !!set {b}}": "4: tags such as `!!set` are not allowed; write plain values",
    "    drop: ['max_tokens ']": "4: channels.a.drop[0]: the gateway checks or writes it; leave it out",
    "    set: {best_of: 3}": f"4: channels.a.set.best_of: {IN_PLACE}",
    "    set: {extra_body: {n: 3}}": f"4: channels.a.set.extra_body: {IN_PLACE}",
    "    set: {__proto__: {n: 3}}": "4: channels.a.set.__proto__: it changes other fields in upstreams that run JavaScript",
    "    set: {temperature: hot}": "4: channels.a.set.temperature: `temperature` must be a number",
    "    set: {'': 3}": "4: channels.a.set.: a field has a name",
    "    set: {a: 1, A: 2}": "4: channels.a.set: two of these fields differ only in the case of their letters; keep one",
    "    drop: [seed, max_tokens]": f"4: channels.a.drop[1]: {CEILING}",
    "    drop: [N]": "4: channels.a.drop[0]: the gateway checks or writes it; leave it out",
    "    drop: [user]\n    set: {User: x}": "4: channels.a.drop[0]: `User` is in `set`, too; keep one",
    "    dialect: klingon": "4: channels.a.dialect: no plugin provides the dialect `klingon`; known: none yet; "
    "add the plugin that has it to `plugins`, as in `- use: anthropic`",
}
WRONG |= {f"{HEAD}{text}\n{CHAIN}": error for text, error in CHANNEL_REQUEST_WRONG.items()}


@pytest.mark.parametrize(("text", "error"), WRONG.items(), ids=[repr(text.removesuffix(CHAIN)[-40:]) for text in WRONG])
def test_a_wrong_setting_is_one_line_with_a_remedy(tmp_path: Path, text: str, error: str) -> None:
    assert refusal(tmp_path, text).partition("; perhaps `")[0] == error


def test_the_setting_that_is_most_like_an_unknown_one_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, "lissten: 127.0.0.1:1").endswith("; perhaps `listen` is meant")
    assert "perhaps" not in refusal(tmp_path, "zzz: 1")


SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        "workers: ${SECRET}",
        "port: ${SECRET}",
        "listen: ${SECRET}",
        "channels: {a: {base_url: '${SECRET}'}}",
        "channels: {a: {base_url: 'http://h', api_key: '${SECRET} '}}",
        "channels: {a: {base_url: 'http://h', on_caller_gone: '${SECRET}'}}",
        "channels: {a: {base_url: 'http://h', timers: {idle: '${SECRET}'}}}",
        "models: {m: {free: true, channels: ['${SECRET}']}}",
        "models: {m: {input: '${SECRET}', output: 1, channels: []}}",
        "plugins: [{use: '${SECRET}'}]",
        "plugins: [{use: '${SECRET}:Class'}]",
        "plugins: [{use: 'plugins.auth:${SECRET}'}]",
        "plugins: [{use: auth, name: '${SECRET}'}, {use: quota, name: '${SECRET}'}]",
        "plugins: [{use: auth, with: {wrong_tokens_per_minute: '${SECRET}'}}]",
        "plugins: [{use: quota, name: '${SECRET}'}]",
    ],
)
def test_no_error_shows_the_value_of_an_environment_variable(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loading.build(loaded(tmp_path, text, SECRET=SECRET))
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_no_repr_shows_a_credential(tmp_path: Path) -> None:
    text = (
        "redis: redis://:${SECRET}@h\nchannels: {a: {base_url: 'http://h', api_key: '${SECRET}'}}\n"
        "plugins: [{use: auth, with: {x: '${SECRET}'}}]"
    )
    whole = loaded(tmp_path, text, SECRET=SECRET)
    assert whole.config.channels["a"].api_key == SECRET
    pretty = StringIO()
    Console(file=pretty).print(whole.config)
    for shown in (repr(whole), str(whole.config), f"{whole.config.channels}", pretty.getvalue()):
        assert SECRET not in shown
        assert "base_url='http://h'" in shown, "other settings are shown"


def test_an_address_is_split_into_host_and_port() -> None:
    assert host_port("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert host_port("[::1]:0") == ("::1", 0)
    assert host_port("gateway.internal:443") == ("gateway.internal", 443)


def test_the_name_of_a_channel_is_short_for_its_long_form(tmp_path: Path) -> None:
    text = f"{CHANNEL}models: {{m: {{free: true, channels: [up, {{use: up, model: x, priority: 2}}]}}}}"
    assert loaded(tmp_path, text).config.models["m"].servings == (
        Serving("up"),
        Serving("up", model="x", weight=1, priority=2),
    )


def test_the_file_is_found_by_option_then_variable_then_folder_then_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(None, {}) == shipped("demo.yaml")
    (tmp_path / "gateway.yaml").touch()
    assert find(None, {}) == Path("gateway.yaml")
    assert find(None, {"GATEWAY_CONFIG": "/etc/gateway.yaml"}) == Path("/etc/gateway.yaml")
    assert find(Path("mine.yaml"), {"GATEWAY_CONFIG": "/etc/gateway.yaml"}) == Path("mine.yaml")


def reference() -> Loaded:
    return load(shipped("gateway.yaml"), {"OPENAI_API_KEY": SECRET})


def test_the_reference_is_accepted_and_is_the_default_in_every_setting() -> None:
    config = reference().config
    loading.build(reference())
    examples = {name: getattr(config, name) for name in (*SECTIONS, "plugins")}
    data = str(shipped("gateway.yaml").parent / "data")
    rest = msgspec.structs.replace(config, channels={}, models={}, groups={}, plugins=[])
    assert rest == Config(data=data)
    openai, local = examples["channels"].values()
    assert msgspec.structs.replace(openai, api_key="", api_keys=()) == Channel(openai.base_url)
    assert local == Channel(local.base_url)
    assert examples["groups"]["default"] == Group()
    for step, entry in zip(loading.build(reference()).entries, examples["plugins"], strict=True):
        assert entry == PluginEntry(entry.use, entry.with_, name=entry.name)
        for field in msgspec.structs.fields(step.plugin):
            if field.name in entry.with_:
                assert getattr(step.plugin, field.name) == field.default, field.name


PLACES: dict[type[Section], tuple[str | int, ...]] = {
    Config: (),
    AdminSso: ("admin_sso",),
    PortalSettings: ("portal",),
    Port: ("port",),
    Tls: ("tls",),
    StoreSettings: ("store",),
    UsageSettings: ("usage",),
    AlertSettings: ("alerts",),
    AlertReceiver: ("alerts", "others", "shop"),
    Demo: ("demo",),
    Channel: ("channels", "openai"),
    Timers: ("channels", "openai", "timers"),
    Model: ("models", "gpt-4o-mini"),
    Tier: ("models", "gpt-4o-mini", "tiers", 0),
    Cost: ("models", "llama-3", "channels", 1, "cost"),
    Group: ("groups", "default"),
    GroupBudgets: ("groups", "default", "budgets"),
    GroupLimits: ("groups", "default", "limits"),
}


def test_the_reference_names_every_setting() -> None:
    text = re.sub(
        r"^# (admin_sso|portal|tls|alerts|aliases|demo):",
        r"\1:",
        shipped("gateway.yaml").read_text(),
        flags=re.MULTILINE,
    )
    document = yaml.safe_load(text)
    for kind, place in PLACES.items():
        section: Any = document
        for step in place:
            section = section[step]
        assert set(section) == set(kind.__struct_encode_fields__) - ({"free"} if kind is Model else set()), place
    free = document["models"]["llama-3"]
    assert free["free"] is True
    assert set(free["channels"][1]) == set(Serving.__struct_fields__)
    assert set(document["plugins"][0]) | {"with"} == {"use", "with", "name", "enabled", "on_error"}
    plugins = {step.name: set(step.plugin.__struct_fields__) for step in loading.build(reference()).entries}
    assert {entry["use"]: set(entry.get("with", ())) for entry in document["plugins"]} == plugins
    sections = set(Section.__subclasses__())
    sections |= {kind for section in sections for kind in section.__subclasses__()}
    assert sections == {*PLACES, Serving, PluginEntry}, "a section is missing in PLACES"


def test_the_reference_has_the_plugins_outside_of_the_chain_with_every_setting_at_its_default(tmp_path: Path) -> None:
    before, chain = shipped("gateway.yaml").read_text().split("\nplugins:")
    chain = re.sub(r"^  # (?=- use:|  )", "  ", chain, flags=re.MULTILINE)
    (tmp_path / "gateway.yaml").write_text(f"{before}\nplugins:{chain}")
    whole = load(tmp_path / "gateway.yaml", {"OPENAI_API_KEY": SECRET})
    more = {step.name: step.plugin for step in loading.build(whole).entries}
    assert set(more) == {name for name, entry in loading.installed().items() if entry.module.startswith("plugins.")}
    settings = {entry.label: entry.with_ for entry in whole.config.plugins}
    for name in more.keys() - {step.name for step in loading.build(reference()).entries}:
        assert set(settings[name]) == set(more[name].__struct_fields__), name
        for field in msgspec.structs.fields(more[name]):
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            assert default in (msgspec.NODEFAULT, getattr(more[name], field.name)), field.name


def test_every_setting_is_read_somewhere() -> None:
    package = Path(str(files("gateway")))
    code = "\n".join(path.read_text() for path in package.rglob("*.py"))
    kinds: list[type[Section]] = [*PLACES, Serving, PluginEntry]
    kinds.remove(GroupBudgets)  # which are copied as they are
    for kind in kinds:
        for name in kind.__struct_fields__:
            assert re.search(rf"\.{name}\b", code), f"{kind.__name__}.{name}"


class Placed(msgspec.Struct):
    at: Path = Path("default")
    more: dict[str, Path] = {}


def test_a_path_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    document = Document(tmp_path / "gateway.yaml")
    found = convert(document, (), {"at": "./a/../b", "more": {"x": "/c"}}, Placed)
    assert (found.at, found.more) == (tmp_path / "b", {"x": Path("/c")})
    assert convert(document, (), {"at": "~"}, Placed).at == Path.home()
    for wrong in (7, "", None, ["a"]):
        with pytest.raises(Misconfigured, match="at: must be a path, as text"):
            convert(document, (), {"at": wrong}, Placed)


# What a channel's settings mean.
@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        *((f"https://{host}/v1", "max_completion_tokens") for host in ("api.openai.com", "API.OpenAI.com:443")),
        *(
            (f"https://{name}/v1", "max_completion_tokens")
            for name in ("eu.api.openai.com", "firm.openai.azure.com/openai")
        ),
        *((f"https://{name}/v1", "max_tokens") for name in ("openai.azure.com.example", "notapi.openai.com")),
        *((f"http://{name}/v1", "max_tokens") for name in ("openrouter.ai/api", "127.0.0.1:8000", "[::1]:8000")),
    ],
)
def test_the_name_of_the_ceiling_depends_on_the_host_unless_it_is_given(base_url: str, name: str) -> None:
    assert Channel(base_url).ceiling_name == name
    assert Channel(base_url, ceiling_field="max_tokens").ceiling_name == "max_tokens"
    assert Channel(base_url, ceiling_field="max_completion_tokens").ceiling_name == "max_completion_tokens"


# The prices of a model and the cost of a channel.
def test_every_part_of_a_price_is_read_exactly(tmp_path: Path) -> None:
    prices = (
        "{input: 2.50, cached_input: 1.25, cache_write: 3.125, output: 999999.999999, request: 0.005, "
        "tiers: [{above: 128000, input: 5.00, output: 15.00}, {above: 256000, cached_input: 0.1}], "
        "channels: [{use: up, cost: {input: 2.00, cached_input: 1.00, output: 8.00, tiers: [{above: 9, output: 9}]}}]}"
    )
    model = loaded(tmp_path, f"{CHANNEL}models: {{m: {prices}}}").config.models["m"]
    assert model == Model(
        [Serving("up", cost=Cost(Decimal(2), Decimal(8), Decimal(1), tiers=(Tier(9, output=Decimal(9)),)))],
        Decimal("2.5"),
        Decimal("999999.999999"),
        cached_input=Decimal("1.25"),
        cache_write=Decimal("3.125"),
        request=Decimal("0.005"),
        tiers=(Tier(128_000, Decimal(5), Decimal(15)), Tier(256_000, cached_input=Decimal("0.1"))),
    )


def test_what_is_not_given_is_unknown_and_not_0(tmp_path: Path) -> None:
    model = loaded(tmp_path, f"{CHANNEL}models: {{m: {{input: 1, output: 2, channels: [up]}}}}").config.models["m"]
    assert (model.cached_input, model.cache_write, model.request, model.tiers) == (None, None, None, ())
    assert model.servings == (Serving("up", cost=None),)


# A time zone is one that the machine has, and UTC needs no files.
@pytest.fixture
def no_files() -> Iterator[None]:
    """A machine without files of time zones."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(to=before)


def test_a_time_zone_of_the_machine_has_summer_time() -> None:
    berlin = time_zone("Europe/Berlin")
    assert datetime(2026, 1, 1, tzinfo=berlin).utcoffset() == timedelta(hours=1)
    assert datetime(2026, 7, 1, tzinfo=berlin).utcoffset() == timedelta(hours=2)


@pytest.mark.usefixtures("no_files")
def test_utc_needs_no_files_and_others_say_what_to_install() -> None:
    assert time_zone("UTC") is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        time_zone("Europe/Berlin")


# Origins are written as browsers write them, and each is named.
def test_origins_are_taken_as_they_are(tmp_path: Path) -> None:
    origins = ("https://app.example", "http://localhost:5173", "https://[::1]:8443", "https://a-b.c_d.example:444")
    assert loaded(tmp_path, f"port: {{cors_origins: {list(origins)}}}").config.port.cors_origins == origins


@pytest.mark.parametrize(
    ("origin", "cure"),
    [
        ("*", EVERY),
        ("https://*.example", EVERY),
        ("https://app.example/", "browsers send `https://app.example`, not `https://app.example/`; write it like this"),
        ("https://App.example", "browsers send `https://app.example`, not `https://App.example`; write it like this"),
        ("https://app.example:443", "browsers send `https://app.example`, not"),
        ("http://app.example:80", "browsers send `http://app.example`, not"),
        ("https://app.example/page", "is no origin; write scheme and host, as in https://app.example"),
        ("app.example", "is no origin"),
        ("null", "is no origin"),
        ("", "is no origin"),
        ("https://app.example\r\nx: y", "is no origin"),
    ],
)
def test_what_no_browser_sends_is_refused_with_a_cure(tmp_path: Path, origin: str, cure: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        loaded(tmp_path, f"port: {{cors_origins: {['https://good.example', origin]}}}")
    assert str(refused.value).startswith(f"{tmp_path}/gateway.yaml:1: port: cors_origins: ")
    assert cure in str(refused.value)


# The section `alerts`: a wrong address or amount is one clear line, which never repeats the address.


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/T0/B0",
        "http://127.0.0.1:8080",
        "http://[::1]:8080/?key=1",
        "https://user:password@host/path",
    ],
)
def test_an_address_is_accepted_and_not_shown(tmp_path: Path, url: str) -> None:
    config = loaded(tmp_path, f"alerts: {{webhook: '{url}', low_balance: 5.5}}").config
    assert config.alerts is not None
    assert (config.alerts.webhook, config.alerts.low_balance) == (url, Decimal("5.5"))
    assert url not in repr(config)
    assert "password" not in config.alerts.host


# What a channel may add to its requests: a mistake is one line with its place, and no secret is shown anywhere.
URL = "https://h/v1"
CHANNEL_REQUEST_SECRET = "s3cret/of+the=house"


def channel_request_read(folder: Path, text: str, more: str = "") -> Loaded:
    file = folder / "gateway.yaml"
    file.write_text(f"{HEAD}{text}\n{CHAIN}{more}")
    return load(file, {"SECRET": CHANNEL_REQUEST_SECRET, "SHORT": "shorter"})


@pytest.mark.parametrize(
    "text",
    [
        "    headers: {User-Agent: ours/1.0, X-Title: My App (beta), cf-aig-authorization: Bearer x}",
        "    auth: header Authorization\n    headers: {Authorization: Basic dXNlcjpwYXNz}",
        "    query: {api-version: '2024-10-21', \u0024filter: \u00e4 b}",
        "    set: {temperature: 0.5, provider: {sort: price, only: [a]}, user: null, a_name_longer_than_any_other: true}",
        "    drop: [temperature, seed, store]",
    ],
)
def test_what_is_sensible_is_accepted(tmp_path: Path, text: str) -> None:
    loading.build(channel_request_read(tmp_path, text))


def test_a_header_of_the_credential_of_a_dialect_is_refused(tmp_path: Path) -> None:
    text = "    dialect: anthropic\n    api_key: k\n    headers: {X-Api-Key: other}"
    with pytest.raises(Misconfigured, match=f"gateway.yaml:6: channels.a.headers.X-Api-Key: {WRITES}"):
        loading.build(channel_request_read(tmp_path, text, "  - use: anthropic\n"))
    loading.build(channel_request_read(tmp_path, f"    auth: bearer\n{text}", "  - use: anthropic\n"))
    twice = "  - use: anthropic\n  - {use: anthropic, name: again}\n"
    with pytest.raises(
        Misconfigured, match="'again' provides the dialect `anthropic`, as a plugin above does: keep one"
    ):
        loading.build(channel_request_read(tmp_path, text.replace("X-Api-Key", "X-Other"), twice))


def test_channels_with_other_values_are_not_equal() -> None:
    one = Channel(URL, set_={"a": True}, headers={"X-A": "b"})
    assert one == Channel(URL, set_={"a": True}, headers={"X-A": "b"})
    assert hash(one) == hash(Channel(URL, set_={"a": True}, headers={"X-A": "b"}))
    assert one != Channel(URL, set_={"a": 1}, headers={"X-A": "b"})
    assert one != Channel(URL, set_={"a": True}, headers={"X-A": "c"})
    assert Channel(URL, headers={}) == Channel(URL)
    with pytest.raises(ValueError, match="a value is not JSON: TypeError"):
        Fixed({"a": object()})


def test_what_comes_from_a_variable_and_what_is_called_a_secret_is_removed_from_answers(tmp_path: Path) -> None:
    text = """    api_key: the-key-of-the-channel
    headers: {X-Route: "Bearer ${SECRET}", X-Title: A title of some length, X-Auth-Token: written-in-the-file}
    query: {api-version: 2024-12-01-preview, sig: "${SHORT}", signature: signature+of=it}
    set: {project: {key: "${SECRET}-of-the-body"}}"""
    loaded = channel_request_read(tmp_path, text)
    channel = loaded.config.channels["a"]
    assert set(channel.secrets) == {
        *("the-key-of-the-channel", CHANNEL_REQUEST_SECRET, "shorter", "written-in-the-file", "signature+of=it")
    }
    assert {
        CHANNEL_REQUEST_SECRET,
        "s3cret%2Fof%2Bthe%3Dhouse",
        "s3cret/of%2Bthe%3Dhouse",
        "s3cret%2fof%2bthe%3dhouse",
    } <= set(channel.scrubbed)
    assert r"s3cret\/of+the=house" in channel.scrubbed, "as some encoders write a slash in JSON"
    assert not {"A title of some length", "2024-12-01-preview", "shorter"}.intersection(channel.scrubbed)
    assert list(channel.scrubbed) == sorted(channel.scrubbed, key=len, reverse=True)
    assert len(credential_warnings(loaded.config.channels)) == 1
    for shown in (repr(channel), repr(loaded.config), channel.request_in_words, repr(channel.__rich_repr__())):
        assert not [secret for secret in channel.secrets if secret in shown]
    assert channel.request_in_words == (
        "headers X-Route, X-Title, X-Auth-Token; query api-version, sig, signature; set project"
    )
