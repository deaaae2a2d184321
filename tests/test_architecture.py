"""Imports point one way, packages say what they import, files stay small, and every test file mirrors a module.

`python -m tests.test_architecture` prints the packages with their sizes, and how often each imports which.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gateway

ROOT = Path(__file__).parent.parent
CODE = sorted(path for package in ("gateway", "plugins") for path in (ROOT / package).rglob("*.py"))
MAX_BYTES = 12 * 1024

LAYERS = (
    ("__main__",),
    ("cli",),
    ("contract",),
    ("testing",),
    ("runtime",),
    ("admin",),
    ("management",),
    ("server", "tools"),
    ("proxy", "loading"),
    ("chain",),
    ("plugin",),
    ("services",),
    ("spending", "work"),
    ("usage", "metrics", "alerts"),
    ("store", "store.money"),
    ("store.client",),
    ("attempt", "budgets", "catalogue", "exchange", "exchange_charge", "exchange_hooks", "facts", "prices", "reply"),
    ("config", "chat"),
    ("fake_upstream",),
    ("errors", "request_id", "addresses", "amounts", "durable", "crash_points", "compiled", "log"),
)
"""Packages and single modules of `gateway`. What imports is above what is imported. Two of one layer may import one another
in one direction only.
"""

PLUGINS_MAY_IMPORT = {"gateway"}
"""What a shipped plugin may import: the public names, like any other author's plugin."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in CODE}
CORE = [name for name in MODULES if name.startswith("gateway.")]


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the modules of ours that a file imports, also those that only the type checker reads."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in ("gateway", "plugins"))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where things are"
            if str(node.module).partition(".")[0] in ("gateway", "plugins"):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in MODULES else str(node.module)


PACKAGES = sorted((name for layer in LAYERS for name in layer), key=len, reverse=True)


def package_of(module: str) -> str:
    """Return the package or single module in `LAYERS` that a module belongs to: `store.money` for its wallet."""
    inner = module.removeprefix("gateway.")
    found = [name for name in PACKAGES if inner == name or inner.startswith(name + ".")]
    assert found, f"{module} has no layer yet: give it the lowest one that fits"
    return found[0]


def layer_of(package: str) -> int:
    return next(index for index, names in enumerate(LAYERS) if package in names)


@cache
def between_packages() -> Counter[tuple[str, str]]:
    """Count the imports between packages: `(importing, imported)`."""
    pairs = ((package_of(name), package_of(imported)) for name in CORE for imported in imports(MODULES[name]))
    return Counter((importing, imported) for importing, imported in pairs if importing != imported)


@pytest.mark.parametrize("name", CORE)
def test_modules_import_from_where_a_name_is(name: str) -> None:
    for imported in imports(MODULES[name]):
        assert imported != "gateway", "import from the module that defines the name, not from the public names"
        assert not imported.startswith("plugins"), "the gateway knows no plugin"


def test_no_import_points_up() -> None:
    assert [pair for pair in between_packages() if layer_of(pair[1]) < layer_of(pair[0])] == []


def test_there_is_no_circle_of_packages_nor_of_modules() -> None:
    packages: dict[str, set[str]] = {}
    for importing, imported in between_packages():
        packages.setdefault(importing, set()).add(imported)
    list(TopologicalSorter(packages).static_order())
    list(TopologicalSorter({name: set(imports(MODULES[name])) - {name} for name in CORE}).static_order())


@pytest.mark.parametrize("package", sorted({package_of(name) for name in CORE if MODULES[name].name == "__init__.py"}))
def test_a_package_says_what_is_in_it_and_what_it_imports(package: str) -> None:
    docstring = ast.get_docstring(ast.parse(MODULES[f"gateway.{package}"].read_text())) or ""
    assert len(docstring.splitlines()) <= 5, "three lines say what lives there and what it may import"
    sentence = docstring[docstring.find("Imports") :] if "Imports" in docstring else ""
    assert sentence, "say what it may import: `Imports ...`"
    named = set(re.findall(r"`([\w.]+)`", sentence))
    below = "below" in sentence
    lowest = min((layer_of(package_of(f"gateway.{name}")) for name in named), default=len(LAYERS))
    for importing, imported in between_packages():
        if importing == package:
            allowed = imported in named or (below and layer_of(imported) > lowest)
            assert allowed, f"{package} imports {imported}, which its docstring does not say"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("plugins.")])
def test_a_plugin_imports_the_public_names_alone(name: str) -> None:
    for imported in imports(MODULES[name]):
        assert imported in PLUGINS_MAY_IMPORT or imported.startswith("plugins."), imported


def test_every_public_name_is_there() -> None:
    assert len(set(gateway.__all__)) == len(gateway.__all__)
    assert set(gateway.__all__) <= set(dir(gateway))
    for name in gateway.__all__:
        assert getattr(gateway, name).__doc__, name


@pytest.mark.parametrize("path", CODE, ids=MODULES)
def test_a_file_is_small_and_says_what_it_is(path: Path) -> None:
    assert path.stat().st_size <= MAX_BYTES, "split it: one idea each"
    assert ast.get_docstring(ast.parse(path.read_text())), "the first line says what the file holds"


def mirrored() -> list[Path]:
    """Return the tests of single modules. Tests of the whole are in whole/, fuzz/, decoders/ and at the top."""
    about_the_whole = {"test_architecture.py", "test_deploy.py", "test_dependencies.py", "test_docs.py"}
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(
        path
        for path in files
        if path.parent.name not in ("whole", "fuzz", "decoders") and path.name not in about_the_whole
    )


@pytest.mark.parametrize("path", mirrored(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_file_mirrors_a_module(path: Path) -> None:
    place = path.relative_to(ROOT / "tests")
    name = place.stem.removeprefix("test_")
    package = ROOT if place.parts[0] == "plugins" else ROOT / "gateway"
    candidates = [package / place.parent / name]
    candidates += [package / place.parent / name.rpartition("_")[0]]  # a second file about the same module
    assert any(module.with_suffix(".py").exists() or (module / "__init__.py").exists() for module in candidates), name


def main() -> None:
    """Print each package, from the top: files, lines, longest file, and what it imports how often."""
    counts = between_packages()
    print(f"{'package':14} {'files':>5} {'lines':>6}  {'longest file':28} imports")
    for layer in LAYERS:
        for package in layer:
            paths = [MODULES[name] for name in CORE if package_of(name) == package]
            lines = {path: len(path.read_text().splitlines()) for path in paths}
            longest = max(lines, key=lambda path: lines[path])
            imported = ", ".join(f"{name} {count}" for (by, name), count in sorted(counts.items()) if by == package)
            print(
                f"{package:14} {len(paths):5} {sum(lines.values()):6}  {f'{longest.name} {lines[longest]}':28} {imported}"
            )
    upward = sum(count for (by, name), count in counts.items() if layer_of(name) < layer_of(by))
    print(f"{counts.total()} imports between packages, {upward} of them upward")


if __name__ == "__main__":
    main()
