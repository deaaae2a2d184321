"""Runs tests in several processes that are forked once the tests are collected: `pytest -p tests.parallel --processes 4`.

With pytest-xdist every process imports and collects all tests for itself, which took as long as a thousand tests take to run.
Here they are collected once, in a process that then only gives out tests and reports what it is told, as pytest does.

A process takes a file, and runs its tests in their order. Where no file is left that nobody has begun, it helps with the file
that has the most tests left. So fixtures of modules are made once in each process that runs tests of theirs, and those of the
session once in each process. Files are taken from both ends in turn: at the end are the tests of whole gateways, which mostly
wait, and so run beside those that compute. Nothing is run twice: a process that ends fails the test that it ran, and another
takes its place.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections import Counter, deque
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

Pipe: TypeAlias = "Connection[Any, Any]"
LONGEST: Final = ("whole/test_life.py", "whole/test_page_walk.py", "whole/test_install.py")
"""Files whose tests take the longest, which are begun first, so that no process waits for them at the end."""
ALIVE_S: Final = 1.0
"""Seconds after which a process is looked at that has said nothing."""
ENDING_S: Final = 5.0
"""Seconds that a process has to tear down its fixtures when the run is interrupted."""
WARNING: Final = ("warning_message", "when", "nodeid", "location")
"""The parameters of pytest's hook for a warning."""


class Queue:
    """The tests that are still to be begun, as their indices, by file."""

    def __init__(self, paths: Iterable[Path], longest: tuple[str, ...] = LONGEST) -> None:
        files: dict[Path, deque[int]] = {}
        for index, path in enumerate(paths):
            files.setdefault(path, deque()).append(index)
        ranks = {path: _rank(path, longest) for path in files}
        self._files = {path: files[path] for path in sorted(files, key=ranks.__getitem__)}
        self._path_of = {index: path for path, indices in files.items() for index in indices}
        self._new = deque(self._files)
        self._is_last_next = False

    def next(self, after: int | None = None) -> int | None:
        """Take a test for a process that runs `after` before it. Return None if there is none."""
        if after is not None and (own := self._files[self._path_of[after]]):
            return own.popleft()
        while self._new:
            path = self._new.pop() if self._is_last_next else self._new.popleft()
            self._is_last_next = not self._is_last_next
            if unbegun := self._files[path]:
                return unbegun.popleft()
        most = max(self._files.values(), key=len, default=deque[int]())
        return most.popleft() if most else None

    def give_back(self, index: int) -> None:
        """Put back a test that was taken and not begun."""
        self._files[self._path_of[index]].appendleft(index)

    def clear(self) -> None:
        """Drop all tests that have not been taken."""
        for indices in self._files.values():
            indices.clear()


def _rank(path: Path, longest: tuple[str, ...]) -> int:
    return next((rank for rank, end in enumerate(longest) if path.as_posix().endswith(f"/{end}")), len(longest))


class Worker:
    """A process that runs tests, as the process that collected them sees it."""

    def __init__(self, session: pytest.Session, number: int, queue: Queue, others: Iterable[Worker]) -> None:
        self._queue = queue
        self.connection, theirs = multiprocessing.Pipe()
        inherited = [self.connection, *(other.connection for other in others)]
        self.process: ForkProcess = multiprocessing.get_context("fork").Process(
            target=_work, args=(session, number, theirs, inherited), name=f"tests-{number}"
        )
        self.process.start()
        theirs.close()
        self.taken: deque[int] = deque()
        """The test that it runs, and the one after it: what follows decides which fixtures a test tears down."""
        self.ran: int | None = None
        """The test that it ran before."""
        self._last: int | None = None
        self._ended = False
        for _ in range(2):
            self.give()

    def give(self) -> None:
        """Give it another test, or let it end."""
        if self._ended:
            return
        index = self._queue.next(self._last)
        self._last, self._ended = index, index is None
        if index is not None:
            self.taken.append(index)
        try:
            self.connection.send(index)
        except OSError:
            self._ended = True  # what it ran is found when what it sent has been read


class Parallel:
    """The plugin of the process that collected the tests."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._started = 0
        self._workers: list[Worker] = []
        self._ends: Counter[int] = Counter()

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests, and report each as pytest does. Raise what pytest raises where `-x` or `--maxfail` end it."""
        option = session.config.option
        if (
            option.collectonly
            or not session.items
            or (session.testsfailed and not option.continue_on_collection_errors)
        ):
            return None  # pytest says it
        _alone()
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.showfspath = False  # files take turns
        queue = Queue(item.path for item in session.items)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # once for all
        gc.collect()
        gc.freeze()  # no collection in any of the processes goes through what is imported
        for _ in range(min(self._processes, len(session.items))):
            self._start(session, queue)
        try:
            while self._workers:
                self._listen(session, queue)
        finally:
            for worker in self._workers:  # there are some only where this was interrupted
                worker.connection.close()
                worker.process.join(ENDING_S)
                worker.process.terminate()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        for index, item in enumerate(session.items):
            if self._ends[index] != 1:
                _fail(item, f"The test was run {self._ends[index]} times.")
        return True

    def _start(self, session: pytest.Session, queue: Queue) -> None:
        self._started += 1
        self._workers.append(Worker(session, self._started, queue, self._workers))

    def _listen(self, session: pytest.Session, queue: Queue) -> None:
        wait([worker.connection for worker in self._workers], ALIVE_S)
        for worker in tuple(self._workers):
            is_over = not worker.process.is_alive()  # asked first: what it sent before its end is read after it
            try:
                while worker.connection.poll():
                    self._heard(session, queue, worker, *worker.connection.recv())
            except (EOFError, ConnectionResetError):
                is_over = True
            if is_over:
                self._ended(session, queue, worker)

    def _heard(self, session: pytest.Session, queue: Queue, worker: Worker, index: int | None, data: Any) -> None:
        hook = session.config.hook
        if isinstance(data, dict):
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=session.config, data=data))
        elif data is not None:
            hook.pytest_warning_recorded.call_historic(kwargs=dict(zip(WARNING, data, strict=True)))
        elif index is not None:
            self._finish(session.items[index], index)
            worker.taken.remove(index)
            worker.ran = index
            if session.shouldfail or session.shouldstop:
                queue.clear()
            worker.give()

    def _finish(self, item: pytest.Item, index: int) -> None:
        self._ends[index] += 1
        item.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _ended(self, session: pytest.Session, queue: Queue, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()
        code = worker.process.exitcode
        if worker.taken:
            begun, *others = worker.taken
            _fail(session.items[begun], f"The process that ran the test ended with {code} (a signal where negative).")
            self._finish(session.items[begun], begun)
            for index in others:
                queue.give_back(index)
            if others and not (session.shouldfail or session.shouldstop):
                self._start(session, queue)
        elif code:
            last = session.items[worker.ran or 0]
            _fail(last, f"The process ended with {code} after the test, its last one: the reason is above.")


def _alone() -> None:
    """Raise `pytest.UsageError` if this process has more than one thread: a fork would take it from under what it holds."""
    threads = Path("/proc/self/task")
    count = len(list(threads.iterdir())) if threads.exists() else threading.active_count()
    if count > 1:
        raise pytest.UsageError(f"{count} threads run after the collection of tests: a module must not start any")


def _fail(item: pytest.Item, reason: str) -> None:
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
    item.config.hook.pytest_runtest_logreport(report=report)


class Sender:
    """The plugin of a process that runs tests: sends what pytest would print."""

    def __init__(self, config: pytest.Config, connection: Pipe) -> None:
        self._config = config
        self._connection = connection
        self.is_told_the_past = True
        """Whether it is being registered, when pytest repeats the warnings of before."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send((None, data))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        """Send a warning."""
        if self.is_told_the_past:
            return
        self._connection.send((None, (warning_message, when, nodeid, location)))


def _work(session: pytest.Session, number: int, connection: Pipe, inherited: list[Pipe]) -> None:
    """Run the tests that the connection tells, in this process."""
    for other in inherited:
        other.close()  # so that it ends with the process that holds it
    config = session.config
    _have_own_files(config, number)
    for name in ("terminalreporter", "parallel"):
        config.pluginmanager.unregister(name=name)
    sender = Sender(config, connection)
    config.pluginmanager.register(sender)
    sender.is_told_the_past = False
    try:
        index = connection.recv()
        while index is not None:
            following = connection.recv()
            after = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=after)
            connection.send((index, None))
            index = following
    except (KeyboardInterrupt, EOFError):  # also where the other process is gone
        session._setupstate.teardown_exact(None)
    config._ensure_unconfigure()  # what no test was told, such as errors of objects that are freed only now, ends the process


def _have_own_files(config: pytest.Config, number: int) -> None:
    """Take temporary files of its own for what tests print, and a folder of its own for theirs."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp /= f"process-{number}"
    factory._basetemp.mkdir(mode=0o700)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--processes`."""
    parser.addoption(
        "--processes", type=int, default=0, help="run tests in so many processes, forked once they are collected"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take the place of pytest's loop where processes are asked for."""
    if config.option.processes:
        config.pluginmanager.register(Parallel(config.option.processes), "parallel")
