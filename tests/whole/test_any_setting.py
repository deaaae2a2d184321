"""Any value of any setting is refused with one line, or the gateway serves with it. The settings are read from the schema."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.base.errors import Misconfigured
from gateway.chain.loading import plugin_class
from gateway.config.model import Model, Serving
from gateway.config.schema import Config, Demo, PluginEntry, Tls, load
from gateway.fake_upstream import FakeUpstream
from gateway.runtime.active_config import ConfigTest
from gateway.runtime.reload import RELOADABLE
from gateway.testing import running
from tests.patience import PATIENCE_S
from tests.runtime.test_reload import FileReloader
from tests.whole.raw import ask, chat

LARGE: Final = "9" * 15
VALUES: Final = (
    *(
        *(".nan", "NaN", "Infinity", "-Infinity", ".inf", "1e30", "1E-30"),
        "1" + "0" * 400,
        LARGE,
        "-" + LARGE,
        f"'{LARGE}'",
    ),
    *(
        *("''", "-1", "0", "-0.0", "1", "2.5", "0.000000000000001", "86400", "86400.5", "1000000", "16777216"),
        *("true", "null"),
    ),
    *("[]", "['']", "[1]", "{}", "{'': 1}", "{a: {b: [c]}}", '"\\0"', '"\\ud800"', '"\\e[2J"', '"a\\r\\nb: c"', "'*'"),
    *("x" * 100_000, "'${'", "'a{99999999999}'", "'http://a..b/v1'", f"'http://{'a' * 64}.b/v1'", "'http://[::1%1]/'"),
)
FREE_FORM: Final = frozenset({"with", "demo", "tls", "redis", "data", "listen", "admin"})
"""Settings of the whole process, which a test of one worker does not use, and the settings of plugins, which have own rows."""

PLUGINS: Final[dict[str, dict[str, object]]] = {
    "usage-logger": {},
    "plugins.examples.address_allow_list:AddressAllowList": {"networks": ["127.0.0.0/8"]},
    "auth": {},
    "rate-limit": {"requests_per_minute": 100_000},
    "plugins.examples.prompt_size:PromptSize": {"tokens": 1000},
    "plugins.examples.prompt_patterns:PromptPatterns": {},
    "quota": {},
    "plugins.examples.first_token_alarm:FirstTokenAlarm": {},
    "plugins.examples.response_stamp:ResponseStamp": {},
    "model-routing": {},
}
"""Built-in plugins are in each chain. One of the examples is where its own settings are tried."""

Place = tuple[str | int, ...]


class Raw(str):
    """YAML that is written as it is."""


def base(url: str, folder: Path, place: Place = ()) -> dict[str, Any]:
    """Return the settings around one at `place`."""
    return {
        "data": str(folder / "data"),
        "store": {"timeout": PATIENCE_S},
        "channels": {"fake": {"base_url": url, "api_key": "channel-credential-4711", "timers": {}}},
        "models": {
            "words": {
                **{"input": 1, "output": 2, "tiers": [{"above": 1000, "input": 2}]},
                "channels": [{"use": "fake", "cost": {"input": 1, "output": 1, "tiers": [{"above": 9, "output": 2}]}}],
            }
        },
        "groups": {"default": {}},
        "plugins": [
            {"use": use, "with": dict(settings)} for use, settings in PLUGINS.items() if ":" not in use or use in place
        ],
    }


def written(value: object) -> str:
    """Return YAML in its flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return value if isinstance(value, Raw) else msgspec.json.encode(value).decode()


def with_value(data: dict[str, Any], place: Place, value: str) -> str:
    copy: Any = msgspec.json.decode(msgspec.json.encode(data))
    inner = copy
    for step in place[:-1]:
        if isinstance(inner, dict):
            inner = inner.setdefault(step, {})
        else:
            inner = inner[step] if isinstance(step, int) else next(each for each in inner if each["use"] == step)
    inner[place[-1]] = Raw(value)
    return "".join(f"{name}: {written(item)}\n" for name, item in copy.items())


def settings(kind: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all settings of a struct, those of the structs in it included."""
    for field in msgspec.structs.fields(kind):
        here = (*place, field.encode_name)
        yield here
        structs = [each for each in (field.type, *get_args(field.type)) if isinstance(each, type)]
        for inner in structs:
            if issubclass(inner, msgspec.Struct):
                key: Place = {"channels": ("fake",), "models": ("words",), "groups": ("default",)}.get(
                    field.encode_name, ()
                ) if kind is Config else ()  # fmt: skip
                if get_origin(field.type) is tuple:
                    key = (0,)
                if inner is not PluginEntry:
                    yield from settings(inner, (*here, *key))
    if kind is Model:
        yield from settings(Serving, (*place, "channels", 0))


def places() -> list[Place]:
    found = [place for place in settings(Config) if place[0] not in ("plugins",)]
    for use in PLUGINS:
        if ":" not in use:
            found += [("plugins", use, field.encode_name) for field in msgspec.structs.fields(PluginEntry)]
        found += [("plugins", use, "with", field.name) for field in msgspec.structs.fields(plugin_class(use))]
    return found


def cases() -> Iterator[tuple[Place, str]]:
    """Yield places with values: each place meets every third value, and those of one type all of them together."""
    for number, place in enumerate(places()):
        yield from ((place, value) for value in VALUES[number % 3 :: 3])


def test_every_section_has_its_rows() -> None:
    found = set(places())
    assert ("channels", "fake", "timers", "idle") in found
    assert ("models", "words", "channels", 0, "weight") in found
    assert ("models", "words", "channels", 0, "cost", "tiers", 0, "above") in found
    assert ("models", "words", "tiers", 0, "cached_input") in found
    assert ("plugins", "quota", "with", "max_hold") in found
    assert {("port", "drain"), ("tls", "key"), ("demo", "credit")} <= found
    assert {Demo, Tls}


def test_any_value_is_refused_with_one_line_or_loads(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    data = base("http://127.0.0.1:1/v1", tmp_path)
    file.write_text(with_value(data, ("workers",), "1"))
    load(file, {})
    for place, value in cases():
        if place[0] not in RELOADABLE:  # those are below, in a gateway that runs
            file.write_text(with_value(data, place, value))
            assert_one_line(refusal(file), (place, value))


def refusal(file: Path) -> str:
    """Return why a file is refused, or nothing if it loads."""
    try:
        load(file, {})
    except Misconfigured as error:
        return str(error)
    return ""


def assert_one_line(reason: str, case: object) -> None:
    assert not reason or reason.isprintable(), case
    assert len(reason) < 1500, case


@pytest.fixture
async def upstream() -> Any:
    async with FakeUpstream(pace_s=0) as fake:
        yield fake


async def test_any_value_of_a_reloadable_setting_is_refused_or_serves(
    upstream: FakeUpstream, store_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.yaml"
    good = with_value(base(upstream.base_url, tmp_path), ("workers",), "1")
    taken_up = refused = 0
    async with running(good, tmp_path, store_url) as gateway:
        token = await gateway.token()
        async with FileReloader(gateway.gateway, file) as reloader:
            for number, (place, value) in enumerate(cases()):
                if place[0] not in RELOADABLE:
                    continue
                file.write_text(with_value(base(upstream.base_url, tmp_path, place), place, value))
                if number % 7 and (reason := refusal(file)):  # a reload says the same, and is tried with some
                    assert_one_line(reason, (place, value))
                    refused += 1
                    continue
                with capture_logs() as lines:
                    if not await reloader.run_once():
                        (line,) = [line for line in lines if line["event"] == "reload_refused"]
                        assert_one_line(line["reason"], (place, value))
                        assert str(file) in line["reason"], (place, value, line)
                        refused += 1
                        continue
                    answer = await asyncio.wait_for(ask(gateway.port, chat(token)), PATIENCE_S)
                taken_up += 1
                assert answer.status != 500, (place, value, lines)
                assert not [line for line in lines if line["log_level"] == "error"], (place, value, lines)
    assert taken_up > 100
    assert refused > 500


@pytest.mark.parametrize(
    "place",
    [place for place in places() if place[0] not in RELOADABLE and not FREE_FORM.intersection(map(str, place))],
    ids=lambda place: ".".join(map(str, place)),
)
def test_any_value_of_another_setting_is_refused_or_passes_the_trial(tmp_path: Path, place: Place) -> None:
    file = tmp_path / "gateway.yaml"
    data = base("http://127.0.0.1:1/v1", tmp_path)
    for value in (LARGE, "1", "2.5", "1000000", "0.000000000000001", "true", "null"):
        file.write_text(with_value(data, place, value))
        try:
            loaded = load(file, {})
        except Misconfigured:
            continue
        with ConfigTest(loaded) as trial:
            assert trial.wait().exposure
