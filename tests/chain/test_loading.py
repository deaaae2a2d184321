"""A plugin is loaded by its installed name or from a file beside the YAML; if it cannot be, the error is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.base.errors import Misconfigured
from gateway.chain import loading
from gateway.chain.chain import Chain
from gateway.chain.plugin import Plugin
from gateway.config.schema import load
from gateway.testing import services
from plugins.auth import Auth
from plugins.quota import Quota

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
        ("{greeting: a, time: 1}", "4: plugins[1].with.time: unknown setting; known here: greeting, times"),
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
