"""Imports point one way, files stay small, and every test file mirrors a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway

ROOT = Path(__file__).parent.parent
CODE = sorted(path for package in ("gateway", "plugins") for path in (ROOT / package).rglob("*.py"))
LARGEST_BYTES = 12 * 1024

LAYERS = (
    ("__main__",),
    ("cli",),
    ("contract",),
    ("testing",),
    ("runtime",),
    (
        "server",
        "tools",
        "admin",
    ),
    (
        "proxy",
        "loading",
    ),
    ("chain",),
    ("plugin",),
    ("services",),
    (
        "usage",
        "metrics",
    ),
    ("store",),
    ("catalogue", "facts", "exchange"),
    ("config", "chat"),
    ("fake_upstream",),
    ("errors", "request_id", "durable", "crash_points"),
)
"""Packages and single modules, what imports above what is imported. Within a layer there are no circles."""

PLUGINS_MAY = {"gateway"}
"""What a shipped plugin may import: the public names, as any author's plugin."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in CODE}


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a file imports, also those that only the type checker reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in ("gateway", "plugins"))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where things are"
            if str(node.module).partition(".")[0] in ("gateway", "plugins"):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in MODULES else str(node.module)


def part(module: str) -> str:
    """`gateway.store.money.wallet` is a part of `store`."""
    return module.split(".")[1]


def layer(module: str) -> int:
    found = [index for index, parts in enumerate(LAYERS) if part(module) in parts]
    assert found, f"{module} has no layer yet: give it the lowest one that fits"
    return found[0]


CORE = [name for name in MODULES if name.startswith("gateway.")]


@pytest.mark.parametrize("name", CORE)
def test_imports_point_down(name: str) -> None:
    for imported in imports(MODULES[name]):
        assert imported != "gateway", "the core imports from where a name is, not from the public names"
        assert not imported.startswith("plugins"), "the core knows no plugin"
        assert layer(imported) >= layer(name), f"{name} imports {imported}, which is above it"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: set(imports(MODULES[name])) - {name} for name in CORE}
    while graph:
        free = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert free, f"a circle among {sorted(graph)}"
        for name in free:
            del graph[name]


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("plugins.")])
def test_a_plugin_imports_what_plugins_may(name: str) -> None:
    for imported in imports(MODULES[name]):
        assert imported in PLUGINS_MAY or imported.startswith("plugins."), imported


def test_every_public_name_is_there() -> None:
    assert len(set(gateway.__all__)) == len(gateway.__all__)
    for name in gateway.__all__:
        assert getattr(gateway, name).__doc__, name


@pytest.mark.parametrize("path", CODE, ids=MODULES)
def test_a_file_is_small_and_says_what_it_is(path: Path) -> None:
    assert path.stat().st_size <= LARGEST_BYTES, "split it: one idea each"
    assert ast.get_docstring(ast.parse(path.read_text())), "the first line says what the file holds"


def mirrored() -> list[Path]:
    """The tests of one module each; what is about the whole is in whole/ and at the top."""
    about_the_whole = {"test_architecture.py", "test_deploy.py", "test_dependencies.py", "test_docs.py"}
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(
        path for path in files if path.parent.name not in ("whole", "fuzz") and path.name not in about_the_whole
    )


@pytest.mark.parametrize("path", mirrored(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_file_mirrors_a_module(path: Path) -> None:
    place = path.relative_to(ROOT / "tests")
    name = place.stem.removeprefix("test_")
    package = ROOT if place.parts[0] == "plugins" else ROOT / "gateway"
    candidates = [package / place.parent / name]
    candidates += [package / place.parent / name.rpartition("_")[0]]  # a second file about the same module
    assert any(module.with_suffix(".py").exists() or (module / "__init__.py").exists() for module in candidates), name
