"""Imports point one way, the core knows nothing around it, a file is one subject, and a test is with the package it tests.

`python -m tests.test_architecture` prints the packages with their sizes, and how often each imports which.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gateway

ROOT = Path(__file__).parent.parent
CODE = sorted(path for package in ("gateway", "plugins") for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 600
"""Lines of a file: a file is one subject, and has all that a reader of that subject needs."""
MAX_FILES = 20
"""Python files of a folder. Sub-folders count for themselves, and `__init__.py` does not count."""
MAX_LOADED = 142
"""Modules of the gateway that a worker loads."""
WAY_OF_A_REQUEST = tuple(
    f"gateway/{name}" for name in ("base", "chat", "operations", "domain", "chain", "proxy", "server")
)
BUDGETS: dict[str, tuple[tuple[str, ...], int]] = {
    # Operations beside chat completions, with pictures and sound, also as streams, and the answers that upstreams keep; the log in
    # PostgreSQL; routing to other models; budgets of sessions; the search, the portal's sign-in, the documents at /docs; plans of
    # token and model; texts changed by plugins, framing by dialects; charts and their roll-ups; several receivers of alerts;
    # refunds in parts, statements, and lists that sort; metrics that C adds to, which takes 28,000 instructions off a request, and
    # heads, finishes and usages read in C, which take 93,000.
    "gateway and plugins": (("gateway", "plugins"), 55_340),
    # The chain makes the hooks of a plugin from its part: the plugins and the store are shorter by more than this is longer. Chunks
    # that go to the kernel at once, and members of enums by names of modules, take a tenth off a request, a third off an event.
    "the way of a request": (WAY_OF_A_REQUEST, 17_900),
    # The comparison of random requests by plans and by hooks, in two whole gateways at once, and failover, crashes and kills of
    # requests that go by plans. Heads that are read without the parser, beside the parser.
    "tests without tests/bench": (("tests",), 72_220),
}
"""Folders, with how many lines of Python they may have: code, docstrings and blanks alike. Whoever adds lines takes others away,
or raises a budget and says why beside it."""

CORE_LAYERS = (
    ("base",),
    ("chat",),
    ("config",),
    ("operations",),
    ("domain",),
    ("store.client",),
    ("store", "store.money"),
    ("usage", "metrics", "alerts"),
    ("chain",),
    ("proxy",),
    ("server",),
    ("runtime",),
)
"""The packages that serve requests, bottom up: what imports is above what is imported. Two of one layer may import one another
in one direction only.
"""
AROUND_LAYERS = (
    ("fake_upstream", "tools"),
    ("admin",),
    ("plugin_kit", "testing"),
    ("serve",),
    ("cli",),
    ("__main__",),
)
"""The packages around the core, bottom up. No package of the core imports one of them, also not for types."""
LAYERS = (*CORE_LAYERS, *AROUND_LAYERS)

QUESTION_WORDS = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}

# Exceptions of today. Each list may only shrink: an entry that is no longer needed fails its test.
LONG_FILES: set[str] = set()
FULL_FOLDERS: set[str] = set()
BASES_OF_ONE: set[str] = set()
"""Base classes with one subclass, which is in another file, and which nothing else uses."""
FROM_AROUND: set[tuple[str, str]] = set()
"""Imports of the core from around it."""
NAMED_TWICE: set[str] = set()
"""Public classes that share their name with another one."""
TESTS_ELSEWHERE: set[str] = set()
"""Tests that are not in the folder of the package that they test."""

PLUGINS_MAY_IMPORT = {"gateway"}
"""What a shipped plugin may import: the public names, like any other author's plugin."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in CODE}
CORE = [name for name in MODULES if name.startswith("gateway.")]
PACKAGE_MODULES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the modules of ours that a file imports, also those that only the type checker reads."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
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
    upward = [pair for pair in between_packages() if layer_of(pair[1]) > layer_of(pair[0])]
    from_around = {(package_of(name), package_of(imported)) for name, imported in FROM_AROUND}
    assert [pair for pair in upward if pair not in from_around] == []


def test_the_core_imports_nothing_around_it() -> None:
    found = {
        (name, imported)
        for name in CORE
        for imported in imports(MODULES[name])
        if layer_of(package_of(name)) < len(CORE_LAYERS) <= layer_of(package_of(imported))
    }
    assert found == FROM_AROUND


def test_a_worker_loads_nothing_around_the_core() -> None:
    code = "import sys, gateway.runtime.worker; print(*(name for name in sys.modules if name.startswith('gateway.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if layer_of(package_of(name)) >= len(CORE_LAYERS)] == []
    assert len(loaded) <= MAX_LOADED


def test_there_is_no_circle_of_packages_nor_of_modules() -> None:
    packages: dict[str, set[str]] = {}
    from_around = {(package_of(name), package_of(imported)) for name, imported in FROM_AROUND}
    for importing, imported in between_packages():
        if (importing, imported) in from_around:
            continue
        packages.setdefault(importing, set()).add(imported)
    list(TopologicalSorter(packages).static_order())
    list(TopologicalSorter({name: set(imports(MODULES[name])) - {name} for name in CORE}).static_order())


@pytest.mark.parametrize("package", [name for name in PACKAGES if f"gateway.{name}" in PACKAGE_MODULES])
def test_a_package_says_what_is_in_it_and_what_it_imports(package: str) -> None:
    docstring = ast.get_docstring(parsed(MODULES[f"gateway.{package}"])) or ""
    assert len(docstring.splitlines()) <= 5, "three lines say what lives there and what it may import"
    sentence = docstring[docstring.find("Imports") :] if "Imports" in docstring else ""
    assert sentence, "say what it may import: `Imports ...`"
    named = {package_of(f"gateway.{name}") for name in re.findall(r"`([\w.]+)`", sentence)}
    below = "below" in sentence
    highest = max(map(layer_of, named), default=0)
    for importing, imported in between_packages():
        if importing == package:
            allowed = imported in named or (below and layer_of(imported) < highest)
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
def test_a_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), "the first line says what the file holds"


@pytest.mark.parametrize("path", CODE, ids=MODULES)
def test_a_file_is_introduced_by_a_noun_or_a_verb(path: Path) -> None:
    first = (ast.get_docstring(parsed(path)) or "").split()[:1]
    assert not QUESTION_WORDS & {word.strip(",:;") for word in first}, (
        "say literally what it does: the noun comes first"
    )


def test_a_file_has_no_more_lines_than_one_reads_at_once() -> None:
    long = {str(path.relative_to(ROOT)) for path in CODE if len(path.read_text().splitlines()) > MAX_LINES}
    assert long == LONG_FILES, "split it by subject"


@pytest.mark.parametrize("name", BUDGETS)
def test_lines_stay_in_their_budget(name: str) -> None:
    folders, most = BUDGETS[name]
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    lines = sum(len(path.read_text().splitlines()) for path in files - set((ROOT / "tests/bench").rglob("*.py")))
    assert lines <= most, f"{lines} lines: take some away, or raise the budget and say why"
    assert lines > most * 0.97, f"{lines} lines: lower the budget"


def test_a_folder_has_few_files() -> None:
    files = Counter(str(path.parent.relative_to(ROOT)) for path in CODE if path.name != "__init__.py")
    assert {folder for folder, count in files.items() if count > MAX_FILES} == FULL_FOLDERS


def classes() -> Iterator[tuple[str, ast.ClassDef, dict[str, str]]]:
    """Yield each class with its module and with the full names of what its module imports and defines."""
    for name, path in MODULES.items():
        tree = parsed(path)
        known = {node.name: f"{name}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        yield from ((name, node, known) for node in tree.body if isinstance(node, ast.ClassDef))


def plain(bases: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the names of base classes, without what is in brackets behind them."""
    for base in bases:
        yield ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def used_in(module: str, name: str, but: str) -> bool:
    """Return whether a module uses one of its own names elsewhere than in the class `but`."""
    rest = [node for node in parsed(MODULES[module]).body if getattr(node, "name", "") != but]
    return any(isinstance(node, ast.Name) and node.id == name for each in rest for node in ast.walk(each))


def test_no_class_is_cut_in_two() -> None:
    """A base class with one subclass in another file, which nothing else uses, is half of a class."""
    subclasses: dict[str, set[str]] = {}
    for module, node, known in classes():
        for base in plain(node.bases):
            if base in known:
                subclasses.setdefault(known[base], set()).add(module)
    users: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for found in ast.walk(parsed(path)):
            if isinstance(found, ast.ImportFrom):
                for alias in found.names:
                    users.setdefault(f"{found.module}.{alias.name}", set()).add(name)
    halves = set()
    for base, modules in subclasses.items():
        module, _, name = base.rpartition(".")
        if (
            module in MODULES
            and module != "gateway"
            and len(modules) == 1
            and modules == users.get(base)
            and not used_in(module, name, but=name)
        ):
            halves.add(base)
    assert halves == BASES_OF_ONE


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A name is searched for: it finds one class in the gateway and the shipped plugins together."""
    names = Counter(node.name for _, node, _ in classes() if not node.name.startswith("_"))
    assert {name for name, count in names.items() if count > 1} == NAMED_TWICE


ABOUT_THE_WHOLE = {
    "test_architecture.py",
    "test_bills.py",
    "test_dependencies.py",
    "test_deploy.py",
    "test_helm.py",
    "test_docs.py",
    "test_forked.py",
    "test_parallel.py",
    "test_systemd.py",
}
"""Tests of the whole, and of what the tests use."""


def package_under_test(path: Path) -> str:
    """Return the package that a test is about: of `tests/chat/test_events.py`, it is `gateway.chat`."""
    folders = path.parent.relative_to(ROOT / "tests").parts
    return ".".join(folders if folders[:1] == ("plugins",) else ("gateway", *folders))


def test_a_test_is_in_the_folder_of_the_package_that_it_tests() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    about_packages = [path for path in files if path.parent.name not in ("whole", "fuzz", "decoders")]
    elsewhere = {
        str(path.relative_to(ROOT))
        for path in about_packages
        if path.name not in ABOUT_THE_WHOLE
        and (package_under_test(path) == "gateway" or package_under_test(path) not in PACKAGE_MODULES)
    }
    assert elsewhere == TESTS_ELSEWHERE


def main() -> None:
    """Print each package, from the top: files, lines, longest file, and what it imports how often."""
    counts = between_packages()
    print(f"{'package':14} {'files':>5} {'lines':>6}  {'longest file':28} imports")
    for layer in reversed(LAYERS):
        for package in layer:
            paths = [MODULES[name] for name in CORE if package_of(name) == package]
            lines = {path: len(path.read_text().splitlines()) for path in paths}
            if not paths:
                continue
            longest = max(lines, key=lambda path: lines[path])
            imported = ", ".join(f"{name} {count}" for (by, name), count in sorted(counts.items()) if by == package)
            print(
                f"{package:14} {len(paths):5} {sum(lines.values()):6}  {f'{longest.name} {lines[longest]}':28} {imported}"
            )
    upward = sum(count for (by, name), count in counts.items() if layer_of(name) > layer_of(by))
    print(f"{counts.total()} imports between packages, {upward} of them upward")


if __name__ == "__main__":
    main()
