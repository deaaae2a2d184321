"""Faults planted at random in the product, and which tests find each.

First, which test runs which lines, and how long it takes (as a plugin, so that it works in the processes of tests.parallel):

    python -m pytest -q -p tests.bench.planted_faults --lines-of-tests FOLDER -p tests.parallel --processes 2 tests

Then the faults, each in a process of its own, with the tests that run its line, the shortest first, until one fails:

    python -m pytest -q -p tests.bench.planted_faults --lines-of-tests FOLDER --faults 40 --fault-seed 7 tests

With `--faults-found FILE` each fault, and by which test it was found, is appended as a line of JSON; with `--all-finders` a fault's
tests go on after the first that fails. Only the tests given are tried: leave files away (`--ignore`) to see what is missed without
them.

A fault is put into the code of a function that is loaded: code that runs on import, compiled modules (set `GATEWAY_PURE=1`), and
what other programs than the tests' own processes run have none. So what it says is what the fast tests find, not all tests.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import os
import random
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).parent.parent.parent
LONGEST_TEST_S: Final = 1.5
"""Tests that take longer are not tried: most of these start programs, which have no fault."""
HANGS_S: Final = 20.0
"""Seconds of one test after which it hangs."""
SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Fault:
    """One change of one function."""

    path: str
    line: int
    what: str
    names: tuple[str, ...]
    code: types.CodeType


class Recorder:
    """Records which lines each test runs, in each process that runs tests."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._coverage: coverage.Coverage | None = None
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test as a context of its own."""
        if self._coverage is None:
            file = self._folder / f"{os.getpid()}.lines"
            self._coverage = coverage.Coverage(
                file, include=[f"{ROOT}/gateway/*", f"{ROOT}/plugins/*"], config_file=False
            )
            self._coverage.set_option(
                "run:disable_warnings", ["no-data-collected", "module-not-measured", "already-imported"]
            )
            self._coverage.start()
        self._coverage.switch_context(item.nodeid)
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - begun

    def pytest_unconfigure(self) -> None:
        """Write what this process recorded."""
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()
            (self._folder / f"{os.getpid()}.seconds").write_text(json.dumps(self._seconds))


class Recorded:
    """The tests of lines."""

    def __init__(self, folder: Path) -> None:
        self._data = []
        for file in folder.glob("*.lines"):
            data = coverage.CoverageData(file)
            data.read()
            self._data.append(data)
        self.seconds: dict[str, float] = {}
        for file in folder.glob("*.seconds"):
            self.seconds |= json.loads(file.read_text())
        self._lines: dict[str, dict[int, set[str]]] = {}

    def lines_of(self, path: str) -> set[int]:
        """Return the lines of a file that a test runs."""
        return {line for data in self._data for line in data.lines(str(ROOT / path)) or ()}

    def of_file(self, path: str) -> dict[int, set[str]]:
        """Return the tests of each line of a file."""
        if path not in self._lines:
            lines: dict[int, set[str]] = defaultdict(set)
            for data in self._data:
                for line, tests in data.contexts_by_lineno(str(ROOT / path)).items():
                    lines[line].update(filter(None, tests))
            self._lines[path] = lines
        return self._lines[path]


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the faults that a node may have, each as a sentence and what makes it in a copy."""

    def with_(name: str, value: Any, index: int | None = None) -> Callable[[Any], None]:
        return lambda found: (
            setattr(found, name, value) if index is None else getattr(found, name).__setitem__(index, value)
        )

    operators: list[Any] = list(node.ops) if isinstance(node, ast.Compare) else [getattr(node, "op", None)]
    for index, operator in enumerate(operators):
        if swapped := SWAPPED.get(type(operator)):
            of_several = isinstance(node, ast.Compare)
            change = with_("ops", swapped(), index) if of_several else with_("op", swapped())
            yield f"{type(operator).__name__} is {swapped.__name__}", change
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} is {value}", with_("value", value)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "a condition is negated", lambda found: setattr(found, "test", ast.UnaryOp(ast.Not(), found.test))
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "None is returned", with_("value", ast.Constant(None))
    elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield "a call is left out", with_("value", ast.Constant(None))
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        yield "an attribute is not set", with_("targets", [ast.Name("_planted", ast.Store())])


def functions(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
    """Yield the functions and methods of a module with their names."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.name,), node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield (node.name, inner.name), inner


def code_of(code: types.CodeType, names: tuple[str, ...], line: int) -> types.CodeType | None:
    """Return the code of a function in that of its module."""
    for name in names:
        inner = [each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name]
        if len(inner) > 1:
            inner = [each for each in inner if each.co_firstlineno <= line <= max(n or 0 for *_, n in each.co_lines())]
        if not inner:
            return None
        code = inner[-1]
    return code


def faults_of(path: str, lines: set[int]) -> Iterator[tuple[int, str, tuple[str, ...], int, int]]:
    """Yield the faults that a file may have in the lines that tests run: by which node of a walk, and which change of it."""
    tree = ast.parse((ROOT / path).read_text())
    for names, function in functions(tree):
        for number, node in enumerate(ast.walk(function)):
            for index, (what, _) in enumerate(changes(node)):
                line = getattr(node, "lineno", 0)
                if line in lines:
                    yield line, what, names, number, index


def planted(path: str, names: tuple[str, ...], line: int, number: int, index: int, what: str) -> Fault | None:
    """Return a fault with its code."""
    tree = copy.deepcopy(ast.parse((ROOT / path).read_text()))
    for found, function in functions(tree):
        if found == names and function.lineno <= line <= (function.end_lineno or 0):  # type: ignore[attr-defined]
            for position, node in enumerate(ast.walk(function)):
                if position == number:
                    list(changes(node))[index][1](node)
    code = code_of(compile(ast.fix_missing_locations(tree), str(ROOT / path), "exec"), names, line)
    return None if code is None else Fault(path, line, what, names, code)


def plant(fault: Fault) -> bool:
    """Put the fault into the function that is loaded. Return whether there is one."""
    module: Any = sys.modules.get(fault.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    found: Any = module
    for name in fault.names:
        found = getattr(found, "__dict__", {}).get(name)
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(found, attribute, None) or found
    if not isinstance(found, types.FunctionType) or found.__code__.co_freevars != fault.code.co_freevars:
        return False
    found.__code__ = fault.code
    return True


def choose(recorded: Recorded, count: int, seed: int, under: str) -> list[Fault]:
    """Return faults at random, each line as likely as another."""
    everything = []
    for package in ("gateway", "plugins"):
        for file in sorted((ROOT / package).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if path.startswith(under):
                everything += [(path, *each) for each in faults_of(path, recorded.lines_of(path))]
    chance = random.Random(seed)
    chance.shuffle(everything)
    found: list[Fault] = []
    for path, line, what, names, number, index in everything:
        if len(found) == count:
            break
        if fault := planted(path, names, line, number, index, what):
            found.append(fault)
    return found


class Planter:
    """Runs the tests of each fault in place of pytest's loop."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.option
        self._recorded = Recorded(Path(config.option.lines_of_tests))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Plant the faults, one after another, and print who finds each."""
        items = {item.nodeid: item for item in session.items}
        seconds = self._recorded.seconds
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # once for all
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        missed = 0
        faults = choose(self._recorded, self._option.faults, self._option.fault_seed, self._option.faults_under)
        if self._option.faults_missed:
            rows = map(json.loads, Path(self._option.faults_missed).read_text().splitlines())
            missed_before = {(row["place"], row["what"]) for row in rows if not row["found"] and row["planted"]}
            faults = [each for each in faults if (f"{each.path}:{each.line}", each.what) in missed_before]
        share, of = map(int, self._option.share.split("/"))
        for fault in faults[share::of]:
            tests = [test for test in self._recorded.of_file(fault.path)[fault.line] if test in items]
            tests = sorted((test for test in tests if seconds[test] < LONGEST_TEST_S), key=seconds.__getitem__)
            result = self._try(fault, [items[test] for test in tests])
            missed += not result["found"] and result["planted"]
            row = {"place": f"{fault.path}:{fault.line}", "what": fault.what, "tests": len(tests), **result}
            said = ", ".join(result["found"])[:110] or ("MISSED" if result["planted"] else "not loaded")
            terminal.write_line(f"{row['place']}  {fault.what}  {len(tests)} tests  {said}")
            if self._option.faults_found:
                with Path(self._option.faults_found).open("a") as file:
                    file.write(json.dumps(row) + "\n")
        terminal.write_line(f"{len(faults[share::of])} faults, {missed} missed")
        return True

    def _try(self, fault: Fault, items: list[pytest.Item]) -> dict[str, Any]:
        """Return which tests find it, from a process that ends with it."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.setpgid(0, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            try:
                _run(fault, items, writing, self._option.fault_seconds, all_of_them=self._option.all_finders)
            finally:
                os._exit(0)
        os.close(writing)
        heard, text = time.monotonic(), b""
        os.set_blocking(reading, False)
        while time.monotonic() < heard + HANGS_S:
            try:
                got = os.read(reading, 65536)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            if not got:
                break
            text += got
            heard = time.monotonic()
        for stop in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                stop(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        said = text.decode().splitlines()
        last = next((line[4:] for line in reversed(said) if line.startswith("RUN ")), "")
        found = [line[5:] for line in said if line.startswith("FAIL ")]
        if "END" not in said and "NONE" not in said:
            found.append(f"{last} (no end)")  # it has ended its process, or hangs
        return {"found": found, "planted": "NONE" not in said, "ran": sum(line.startswith("RUN ") for line in said)}


def _run(fault: Fault, items: list[pytest.Item], to: int, most_s: float, *, all_of_them: bool) -> None:
    """Run tests with a fault, and write what they say."""

    def say(text: str) -> None:
        os.write(to, f"{text}\n".encode())

    if not plant(fault):
        say("NONE")
        return
    if not items:
        say("END")
        return
    config, session = items[0].config, items[0].session
    for name in ("terminalreporter", "parallel"):
        config.pluginmanager.unregister(name=name)
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp /= f"fault-{os.getpid()}"
    factory._basetemp.mkdir(mode=0o700)
    failed: list[str] = []

    class Said:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and report.nodeid not in failed:
                failed.append(report.nodeid)
                say(f"FAIL {report.nodeid}")

    config.pluginmanager.register(Said())
    until = time.monotonic() + most_s
    for item, following in zip(items, [*items[1:], None], strict=True):
        say(f"RUN {item.nodeid}")
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if (failed and not all_of_them) or time.monotonic() > until:
            break
    say("END")
    session._setupstate.teardown_exact(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--lines-of-tests", help="the folder of what is recorded of the tests")
    parser.addoption("--faults", type=int, default=0, help="how many faults; without it, lines of tests are recorded")
    parser.addoption("--fault-seed", type=int, default=1)
    parser.addoption("--faults-under", default="", help="the beginning of paths that have faults")
    parser.addoption("--faults-found", help="a file to which the results are appended")
    parser.addoption("--faults-missed", help="a file that another run wrote: only what it missed is tried")
    parser.addoption("--fault-seconds", type=float, default=60, help="how long the tests of one fault may take")
    parser.addoption("--all-finders", action="store_true", help="also the tests after the first that fails")
    parser.addoption(
        "--share", default="0/1", help="every how many faults, of which this takes one: 0/2 and 1/2 are all"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Record lines, or plant faults."""
    if config.option.lines_of_tests:
        folder = Path(config.option.lines_of_tests)
        config.pluginmanager.register(Planter(config) if config.option.faults else Recorder(folder.absolute()))
