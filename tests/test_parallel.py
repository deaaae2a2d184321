"""Tests in several processes: each is run once and reported as pytest does, and whatever keeps one from its end fails the run."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.forked import FORKED
from tests.parallel import LONGEST, Queue

ROOT = Path(__file__).parent.parent


def run(folder: Path, *options: str, **files: str) -> tuple[int, list[str]]:
    """Run files of tests in two processes, and return the exit code with the lines that are printed."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(f"import gc, os, signal, threading, time, warnings\nimport pytest\n{text}")
    options = (*options, "--rootdir", str(folder), f"--basetemp={folder / 'made'}", str(folder))
    given = ["-p", "tests.parallel", "--processes", "2", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    done = subprocess.run(
        (FORKED, "-m", "pytest", *given, *options),
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout.replace(os.path.relpath(folder, ROOT) + "/", "").splitlines()


OUTCOMES = """
def test_passes(): print("said by one that passes")
def test_fails():
    print("said before")
    warnings.warn("told")
    assert 1 == 2, "said by one that fails"
def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_is_between(): pass
def test_ends_the_process(): os._exit(0)
def test_ends_pytest(): pytest.exit("enough")
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.fixture
def broken(): raise ValueError("a broken fixture")
def test_has_a_broken_fixture(broken): pass
@pytest.mark.xfail
def test_is_expected_to_fail(): assert 0
def test_is_last(): pass
"""


def test_every_outcome_is_told_as_pytest_does(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "-W", "default::UserWarning", test_outcomes=OUTCOMES)
    assert code == pytest.ExitCode.TESTS_FAILED, lines
    assert lines[-1].strip("= ").rpartition(" in ")[0] == (
        "4 failed, 3 passed, 1 skipped, 1 xfailed, 1 warning, 1 error"
    )
    ended = "The process that ran the test ended with"
    assert sorted(line for line in lines if line.startswith(("FAILED", "ERROR "))) == [
        "ERROR test_outcomes.py::test_has_a_broken_fixture - ValueError: a broken fixture",
        f"FAILED test_outcomes.py::test_ends_pytest - {ended} 1 (a signal where negative).",
        f"FAILED test_outcomes.py::test_ends_the_process - {ended} 0 (a signal where negative).",
        "FAILED test_outcomes.py::test_fails - AssertionError: said by one that fails",
        f"FAILED test_outcomes.py::test_is_killed - {ended} -9 (a signal where negative).",
    ]
    assert lines.count("said before") == 1
    assert "said by one that passes" not in lines


NOTES = """
def note(word):
    with open("PATH", "a") as file:
        file.write(f"{word} {os.getpid()}\\n")
@pytest.fixture(scope="session")
def once(tmp_path_factory):
    note(f"session:{tmp_path_factory.mktemp('here')}")
    yield
    note("over")
"""
COUNTED = """
from conftest import note
@pytest.fixture(scope="module")
def module(): note(__name__)
@pytest.mark.parametrize("number", range(20))
def test_it(once, module, number):
    note(f"{__name__}:{number}")
    time.sleep(0.002)
"""


def test_each_test_is_run_once_with_the_fixtures_of_its_process(tmp_path: Path) -> None:
    notes = NOTES.replace("PATH", str(tmp_path / "noted"))
    code, lines = run(tmp_path, conftest=notes, test_one=COUNTED, test_two=COUNTED, test_three=COUNTED)
    assert (code, lines[-1].split()[1:3]) == (0, ["60", "passed"])
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    names = [f"test_{name}" for name in ("one", "two", "three")]
    assert Counter(word for word, _ in noted if word.rpartition(":")[0] in names) == Counter(
        f"{name}:{number}" for name in names for number in range(20)
    )
    processes = {process for _, process in noted}
    sessions = [word for word, _ in noted if word.startswith("session")]
    assert (
        len(processes) == len(sessions) == len(set(sessions)) == len([word for word, _ in noted if word == "over"]) == 2
    )
    modules = Counter((word, process) for word, process in noted if word in names)
    assert set(modules) == {
        (word.partition(":")[0], process) for word, process in noted if word.rpartition(":")[0] in names
    }
    assert max(modules.values()) <= 2, "made again only where a process came back to help"


def test_an_import_that_fails_and_a_thread_of_an_import_end_the_run(tmp_path: Path) -> None:
    passing = "def test_passes(): (open({!r}, 'w').close())".format(str(tmp_path / "was_run"))
    code, lines = run(tmp_path, test_broken="import no_such_module", test_passing=passing)
    assert code == pytest.ExitCode.INTERRUPTED
    assert lines[-2].strip("! ") == "Interrupted: 1 error during collection"
    assert "ERROR test_broken.py" in lines
    thread = "threading.Thread(target=time.sleep, args=(3,), daemon=True).start()"
    code, lines = run(tmp_path, test_broken=thread, test_passing=passing)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: 2 threads run after the collection of tests: a module must not start any" in lines
    assert not (tmp_path / "was_run").exists()


def test_what_is_told_after_the_last_test_fails_the_run(tmp_path: Path) -> None:
    text = """
class Late:
    def __init__(self): self.circle = self
    def __del__(self): raise ValueError("told late")
def test_leaves_it():
    gc.disable()
    Late()
"""
    code, lines = run(tmp_path, test_late=text)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert (
        "FAILED test_late.py::test_leaves_it - The process ended with 1 after the test, its last one: the reason is above."
        in lines
    )
    assert "ValueError: told late" in lines


def test_it_stops_where_the_first_failure_is_enough(tmp_path: Path) -> None:
    text = "@pytest.mark.parametrize('number', range(300))\ndef test_it(number): assert time.sleep(0.01) or number != 1"
    code, lines = run(tmp_path, "-x", test_many=text)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "stopping after 1 failures" in lines[-2]
    assert "1 failed" in lines[-1]
    assert int(lines[-1].partition(" passed")[0].split()[-1]) < 150


def test_a_process_keeps_to_its_file_and_helps_with_the_longest() -> None:
    paths = [Path(f"tests/{name}.py") for name in ("few", "many", "few", "many", "many", "first", "many")]
    queue = Queue(paths, ("first.py",))
    assert (queue.next(), queue.next(5), queue.next()) == (5, 1, 0)
    assert [queue.next(0), queue.next(2)] == [2, 3]
    queue.give_back(3)
    assert [queue.next(1), queue.next(2), queue.next(3), queue.next(6), queue.next()] == [3, 4, 6, None, None]


def test_files_are_taken_from_both_ends_in_turn() -> None:
    queue = Queue([Path(f"tests/{name}.py") for name in "abcde"], ("c.py", "b.py"))
    assert [queue.next() for _ in range(6)] == [2, 4, 1, 3, 0, None]


def test_what_is_dropped_is_not_given_out() -> None:
    queue = Queue([Path("tests/one.py")] * 3, ())
    assert queue.next() == 0
    queue.clear()
    assert queue.next(0) is None


@pytest.mark.parametrize("name", LONGEST)
def test_a_file_that_is_begun_first_is_there(name: str) -> None:
    assert (ROOT / "tests" / name).is_file()
