"""Plugins are loaded, with their dialects and what the chain exposes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import StoreAway
from gateway.base.errors import Misconfigured
from gateway.chain import loading
from gateway.chain.chain import Chain, dialects_of, provider_of
from gateway.chain.checks import Exposure, exposure_of, max_prompt_tokens
from gateway.chain.entry import Entry
from gateway.chain.plugin import Plugin
from gateway.chain.services import Window
from gateway.chat.dialect import Dialect
from gateway.chat.prompt import PartTokens
from gateway.chat.request import BodyRules, check
from gateway.config.schema import load
from gateway.testing import FakeUpstream, configuration, running, services
from plugins.auth import Auth
from plugins.quota import Quota

# A plugin is loaded by its installed name or from a file beside the YAML; if it cannot be, the error is one line.
CHAIN = "plugins:\n  - use: auth\n  - use: {use}\n    with: {settings}\n  - use: model-routing\n"
GREETER = """
from gateway import Caller, Plugin

class Greeter(Plugin):
    requires = (Caller,)
    greeting: str
    times: int = 1

    def __post_init__(self):
        if self.times > 3:
            raise ValueError("times must be 3 or fewer,\\nnot " + str(self.times))

    async def start(self, services):
        if self.greeting == "sesame-open":
            raise ValueError(f"the greeting {self.greeting} is taken")

class Other:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with an operator's own plugins, and unload their modules at the end."""
    (tmp_path / "greeter_0815.py").write_text(GREETER)
    (tmp_path / "broken_0815.py").write_text("1 / 0\n")
    (tmp_path / "lacking_0815.py").write_text("import numpy_0815\n")
    (tmp_path / "asking_0815.py").write_text("import sys\nsys.nothing\n")
    before = sys.path.copy()
    yield tmp_path
    sys.path[:] = before
    for name in [name for name in sys.modules if name.endswith("_0815")]:
        del sys.modules[name]


def build(folder: Path, use: str, settings: str = "{}", **environment: str) -> Chain:
    file = folder / "gateway.yaml"
    file.write_text(CHAIN.format(use=use, settings=settings))
    return loading.build(load(file, environment), generation=7)


def refusal(folder: Path, use: str, settings: str = "{}", **environment: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        build(folder, use, settings, **environment)
    return str(refused.value).removeprefix(f"{folder}/gateway.yaml:")


def test_the_shipped_plugins_are_loaded_by_their_installed_names() -> None:
    assert set(loading.installed()) >= {"usage-logger", "auth", "rate-limit", "quota", "model-routing"}
    assert loading.plugin_class("auth") is Auth
    assert loading.plugin_class("plugins.quota:Quota") is Quota


def test_a_plugin_in_a_file_beside_the_yaml_is_built_with_its_settings(folder: Path) -> None:
    chain = build(folder, "greeter_0815:Greeter", "{greeting: '${HELLO}', times: 2}", HELLO="hello")
    plugin = chain.entries[1].plugin
    assert isinstance(plugin, Plugin)
    assert (plugin.greeting, plugin.times) == ("hello", 2)  # type: ignore[attr-defined]
    assert [step.name for step in chain.entries] == ["auth", "greeter_0815:Greeter", "model-routing"]
    assert chain.generation == 7


def checked(folder: Path, **environment: str) -> str:
    """Return what `gateway check` says of a file with a plugin in a folder that is called `plugins`, as the shipped ones' is."""
    (folder / "plugins").mkdir()
    (folder / "plugins" / "mine.py").write_text(GREETER)
    (folder / "gateway.yaml").write_text(
        "channels: {a: {base_url: 'http://127.0.0.1:9'}}\nmodels: {m: {free: true, channels: [a]}}\ngroups: {default: {}}\n"
        + CHAIN.format(use="plugins.mine:Greeter", settings="{greeting: hello}")
    )
    command = (Path(sys.executable).with_name("gateway"), "check", "--config", folder / "gateway.yaml")
    done = subprocess.run(
        command, env=os.environ | environment, cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("on_path", [False, True], ids=["beside", "on PYTHONPATH"])
def test_a_folder_of_ones_own_may_be_called_plugins(tmp_path: Path, on_path: bool) -> None:
    said = checked(tmp_path, **({"PYTHONPATH": str(tmp_path)} if on_path else {}))
    assert "plugins.mine:Greeter" in said and "import" not in said, said


def test_a_package_that_hides_the_shipped_plugins_is_named(tmp_path: Path) -> None:
    package = tmp_path / "first" / "plugins" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("")
    said = checked(tmp_path, PYTHONPATH=str(tmp_path / "first"))
    assert f"cannot import `plugins.auth`: `{package}` hides its package; give that another name" in said


def test_a_disabled_plugin_is_not_even_imported(folder: Path) -> None:
    file = folder / "gateway.yaml"
    file.write_text("plugins: [{use: auth}, {use: 'broken_0815:X', enabled: false}, {use: model-routing}]")
    assert [step.name for step in loading.build(load(file, {})).entries] == ["auth", "model-routing"]
    assert "broken_0815" not in sys.modules


@pytest.mark.parametrize(
    ("use", "error"),
    [
        ("nowhere_0815:X", "cannot import `nowhere_0815`: put it beside the YAML file or on PYTHONPATH"),
        ("lacking_0815:X", "cannot import `numpy_0815`: put it beside the YAML file or on PYTHONPATH"),
        (
            "broken_0815:X",
            "importing `broken_0815` failed: ZeroDivisionError: division by zero ({folder}/broken_0815.py, line 1)",
        ),
        (
            "asking_0815:X",
            "importing `asking_0815` failed: AttributeError: module 'sys' has no attribute 'nothing' "
            "({folder}/asking_0815.py, line 2)",
        ),
        ("greeter_0815:X", "`greeter_0815` has no `X`: name a class of it"),
        ("'greeter_0815:'", "`greeter_0815` has no ``: name a class of it"),
        ("greeter_0815:Other", "`greeter_0815:Other` is no plugin: derive it from gateway.Plugin"),
        ("greeter_0815:Caller", "`greeter_0815:Caller` is no plugin: derive it from gateway.Plugin"),
        ("':X'", "importing `` failed: ValueError: Empty module name"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_says_why(folder: Path, use: str, error: str) -> None:
    assert refusal(folder, use) == "3: plugins[1].use: " + error.replace("{folder}", str(folder))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("{}", "4: plugins[1].with: `greeting` is missing; add it"),
        ("{greeting: 1}", "4: plugins[1].with.greeting: must be text, not a whole number; put it in quotes"),
        (
            "{greeting: a, time: 1}",
            "4: plugins[1].with.time: unknown setting; known here: greeting, times; perhaps `times` is meant",
        ),
        ("{greeting: a, times: 4}", "4: plugins[1].with: times must be 3 or fewer,\\nnot 4"),
    ],
)
def test_a_plugins_wrong_setting_is_named_with_its_place(folder: Path, settings: str, error: str) -> None:
    assert refusal(folder, "greeter_0815:Greeter", settings) == error


async def test_a_plugin_that_does_not_start_is_named_with_its_place_and_without_secrets(
    folder: Path, store_url: str
) -> None:
    chain = build(folder, "greeter_0815:Greeter", "{greeting: '${HELLO}'}", HELLO="sesame-open")
    async with services(folder, store_url) as given:
        with pytest.raises(Misconfigured) as refused:
            await chain.start(given)
    assert str(refused.value) == (
        f"{folder}/gateway.yaml:3: plugins[1]: 'greeter_0815:Greeter' does not start: the greeting ${{HELLO}} is taken"
    )


@pytest.mark.parametrize("text", ["import sys; sys.exit(7)", "raise SystemExit"])
def test_a_module_that_ends_the_process_is_an_error_of_the_file(folder: Path, text: str) -> None:
    (folder / "leaving_0815.py").write_text(text)
    assert "importing `leaving_0815` failed: SystemExit" in refusal(folder, "leaving_0815:X")


def test_a_constructor_that_fails_is_an_error_of_the_file(folder: Path) -> None:
    (folder / "full_0815.py").write_text(
        "from gateway import Plugin\n\n\nclass Full(Plugin):\n    def __post_init__(self):\n        raise OSError(28, 'full')\n"
    )
    assert "making `full_0815:Full` failed: OSError: [Errno 28] full" in refusal(folder, "full_0815:Full")


def write(folder: Path, name: str, body: str) -> None:
    """Write a module with one plugin, whose body begins in line 4."""
    (folder / f"{name}_0815.py").write_text(f"from gateway import Plugin\n\nclass P(Plugin):\n{body}")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("    def on_request(self, exchange): ...", "`on_request` must be `async def` ({file}, line 4)"),
        ("    async def on_chunk(self, exchange, chunk): ...", "`on_chunk` must be `def` ({file}, line 4)"),
        ("    async def on_end(self): ...", "`on_end` must take (self, exchange) ({file}, line 4)"),
        (
            "    name: str = ''\n    async def on_requst(self, exchange): ...",
            "`on_requst` is not a hook and is never called: did you mean `on_request`? ({file}, line 5)",
        ),
        (
            "    async def on_flush_all(self): ...",
            "`on_flush_all` is not a hook and is never called: call it otherwise ({file}, line 4)",
        ),
        ("    edits = True", "`edits = True` is declared, but there is no `on_request` that changes the request"),
        ("    requires = ('Caller',)", "`requires` must be a tuple of types, such as `(Caller,)`"),
        (
            "    API = 2",
            "`wrong_0815:P` is made for API 2 of plugins, and this gateway has 1: "
            "install a version of it for API 1, or a gateway with API 2",
        ),
        (
            "    def __init__(self): ...",
            "importing `wrong_0815` failed: TypeError: Struct types cannot define __init__ ({file}, line 3)",
        ),
        (
            "    words: list[str] = ['a']",
            "importing `wrong_0815` failed: TypeError: Using a non-empty mutable collection (['a']) as a default value is unsafe. "
            "Instead configure a `default_factory` for this field. ({file}, line 3)",
        ),
    ],
)
def test_a_class_that_is_no_plugin_of_this_gateway_is_refused_with_its_line(
    folder: Path, body: str, error: str
) -> None:
    write(folder, "wrong", body)
    found = refusal(folder, "wrong_0815:P")
    assert found == "3: plugins[1].use: " + error.replace("{file}", f"{folder}/wrong_0815.py")


def test_the_api_may_be_named_in_the_module(folder: Path) -> None:
    (folder / "newer_0815.py").write_text("from gateway import Plugin\nAPI = 3\nclass P(Plugin): ...\n")
    assert "`newer_0815:P` is made for API 3 of plugins" in refusal(folder, "newer_0815:P")


# The dialects of a chain: each has one provider, and can be made.
class Good(Dialect):
    name = "good"
    path = "/good"


class Bad(Dialect):
    name = "bad"

    def __init__(self) -> None:
        raise OSError("no such file")


class Provides(Plugin):
    dialects = (Good,)


class Breaks(Plugin):
    dialects = (Bad,)


def test_a_dialect_is_found_by_its_name() -> None:
    found = dialects_of([Entry("one", Provides()), Entry("two", Plugin())])
    assert list(found) == ["good"]
    assert isinstance(found["good"], Good)
    assert found["good"].error(500, b"x") == (500, b"x")


def test_two_providers_or_one_that_fails_stop_the_start() -> None:
    with pytest.raises(Misconfigured, match=r"^'two' provides the dialect `good`, as a plugin above does: keep one$"):
        dialects_of([Entry("one", Provides()), Entry("two", Provides())])
    with pytest.raises(Misconfigured, match=r"^'one' has a dialect that cannot be made: OSError$"):
        dialects_of([Entry("one", Breaks())])


@pytest.mark.parametrize(
    ("attributes", "wrong"),
    [
        ({"name": 7}, "`name` must be a text"),
        ({"name": ""}, "`name` must be a text"),
        ({"path": None}, "`path` must be a text that begins with /"),
        ({"path": "messages"}, "`path` must be a text that begins with /"),
        ({"path": "/a\r\nb"}, "`path` must be a text that begins with /"),
        ({"headers": ["x-version"]}, "`headers` must be a mapping"),
        ({"headers": {"x-version": 7}}, "`headers` must have texts alone"),
        ({"headers": {"x version": "7"}}, "`headers.x version` is wrong: the name of a header"),
        ({"headers": {"x-version": "7\r\nhost: x"}}, "`headers.x-version` is wrong: the value of a header"),
        ({"headers": {"Host": "x"}}, "`headers.Host` is wrong: it says how"),
        ({"auth": "header x-key", "headers": {"X-Key": "x"}}, "`headers.X-Key` is wrong: `auth` sends the credential"),
        ({"auth": None}, "`auth` is wrong: must be `bearer`"),
        ({"auth": "cookie x"}, "`auth` is wrong: must be `bearer`"),
        ({"auth": "header host"}, "`auth` is wrong: the header host cannot carry"),
    ],
)
def test_attributes_that_no_request_can_be_sent_with_stop_the_start(attributes: dict[str, object], wrong: str) -> None:
    class Wrong(Plugin):
        dialects = (type("Odd", (Good,), attributes),)

    with pytest.raises(Misconfigured) as raised:
        dialects_of([Entry("one", Wrong())])
    assert str(raised.value).startswith(f"'one' has the dialect `Odd`, whose {wrong}")


def test_a_dialect_knows_the_plugin_that_provides_it() -> None:
    assert provider_of(Good()) == "Good"
    assert provider_of(dialects_of([Entry("one", Provides())])["good"]) == "one"


# The exposure is computed from the configuration alone.
FILE = """
data: {folder}
port: {{max_body: 1200}}
channels: {{a: {{base_url: 'http://a/v1'}}, b: {{base_url: 'http://b/v1'}}}}
models:
  cheap: {{input: 1, output: 1, channels: [a]}}
  dear: {{input: 10, output: 20, channels: [a, b]}}
groups:
  default: {{ratio: 0.5}}
  dearer: {{ratio: 2}}
  modest: {{ratio: 9, models: [cheap]}}
plugins: [{{use: auth}}, {quota}{{use: model-routing}}]
"""
PROMPT = 7 * 1200 + 100 * 16 + 128 + 640 + 109 * 128_000
"""Of every byte, of the messages, of the request and of the files that fit."""
DEAREST = 2 * ((PROMPT + 300) * 10 + 16 * 1_000_000 * 20)


def bound(folder: Path, quota: str) -> Exposure | None:
    (folder / "gateway.yaml").write_text(FILE.format(folder=folder, quota=quota))
    loaded = load(folder / "gateway.yaml")
    return exposure_of(loaded.config, loading.build(loaded))


def test_with_full_holds_no_balance_falls_below_its_credit_line(tmp_path: Path) -> None:
    assert bound(tmp_path, "{use: quota, with: {max_holds: 7}}, ") == Exposure(
        DEAREST, "dear", "dearer", 0, 7 * DEAREST
    )


def test_the_cost_beyond_a_hold_counts_once_for_each_hold(tmp_path: Path) -> None:
    found = bound(tmp_path, "{use: quota, with: {max_holds: 7, max_hold: 1.5}}, ")
    assert found is not None
    assert found.overdraft == 7 * (DEAREST - 1_500_000)
    assert str(found).startswith(
        "every balance stays >= -credit line - 6424.33; one failover of the store may take it 6434.83 further"
    )
    assert found.in_words == found.warning
    assert found.warning.startswith("a balance can fall 6424.33 below its credit line: `max_hold` ")
    exact = bound(tmp_path, "{use: quota, with: {max_holds: 7}}, ")
    assert exact is not None
    assert (exact.warning, exact.in_words) == ("", "no balance falls below zero, or below its account's credit line")


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize(
    ("message", "times"),
    [
        *(('{"role":""}', 1), ('{"role":"","content":"<"}', 1), ('{"role":"x","content":[PARTS]}', 9)),
        ('{"role":"x","content":[{"type":"image","content":[PARTS]}]}', 4),
    ],
)
@pytest.mark.parametrize("part", ['{"file":0}', '{"type":"file"}', '{"type":0}', '{"file":0,"image_url":0}', "{}", "0"])
def test_no_body_counts_more_input_than_its_size_allows(count: int, message: str, times: int, part: str) -> None:
    messages = ",".join([message.replace("PARTS", ",".join([part] * times))] * count)
    body = check(f'{{"model":"m","stream":true,"messages":[{messages}]}}'.encode(), BodyRules())
    for parts in (PartTokens(), PartTokens(1, 1, 10**7), PartTokens(10**7, 1, 1)):
        assert body.prompt_tokens_bound(parts) <= max_prompt_tokens(body.size, parts)


@pytest.mark.parametrize("quota", ["", "{use: quota, enabled: false}, "])
def test_without_quota_there_is_no_exposure(tmp_path: Path, quota: str) -> None:
    assert bound(tmp_path, quota) is None


# What an account has spent in a window is what the usage log has of it.
async def test_the_sum_is_of_one_account_and_one_window(store_url: str, tmp_path: Path) -> None:
    async with (
        FakeUpstream(pace_s=0) as upstream,
        running(configuration(upstream.base_url), tmp_path, store_url) as gateway,
    ):
        services = gateway.gateway.services
        tokens = [await gateway.token(account) for account in ("alice", "bob")]
        assert await services.spent("nobody") == 0
        for token in (tokens[0], tokens[0], tokens[1]):
            assert (await gateway.ask(token)).status == 200
        await gateway.write_usage()
        charged = {}
        for name in ("alice", "bob"):
            account = await gateway.store.accounts.get(name)
            assert account is not None
            charged[name] = 5_000_000 - account.balance_micros
        assert charged["alice"] == 2 * charged["bob"] > 0
        windows: tuple[Window, ...] = ("day", "week", "month")
        for window in windows:
            assert await services.spent("alice", window) == charged["alice"]
            assert await services.spent("bob", window) == charged["bob"]
        assert await services.spent("nobody") == 0, "what it remembers for a second is right, too"
        with pytest.raises(ValueError, match="one of day, week, month, not decade"):
            await services.spent("alice", "decade")  # type: ignore[arg-type]
        for file in (tmp_path / "data/usage").glob("usage-????-??.sqlite*"):
            file.unlink()
            if file.suffix == ".sqlite":
                file.write_bytes(b"no database" * 1000)
        with pytest.raises(StoreAway, match="cannot be"):
            await services.spent("carol")
