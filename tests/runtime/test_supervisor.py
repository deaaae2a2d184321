"""Children are started, started again and stopped. They are real processes that append lines to a file."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.base.errors import GatewayError, Misconfigured
from gateway.runtime.supervisor import Ready, Supervisor, Work, open_listeners
from tests.patience import PATIENCE_S


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor whose children are killed at the end; then the signal handlers are as before."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    supervisor = Supervisor()
    yield supervisor
    supervisor.stop(timeout_s=0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file to which children append lines."""
    path = tmp_path / "trace"
    path.touch()
    return path


def append(trace: Path, line: object) -> None:
    with trace.open("a") as file:
        file.write(f"{line}\n")


def waiting(trace: Path, line: str, before_line: Callable[[], None] = lambda: None) -> Work:
    """Return a child's work that is ready at once; on SIGTERM it calls `before_line` and then appends `line`."""

    def work(ready: Ready) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        ready()
        signal.sigwait([signal.SIGTERM])
        before_line()
        append(trace, line)

    return work


def test_add_returns_once_the_child_is_ready(supervisor: Supervisor, trace: Path) -> None:
    def work(ready: Ready) -> None:
        append(trace, "prepared")
        ready()
        signal.pause()

    supervisor.add("child", work)
    assert trace.read_text() == "prepared\n"


def failing(error: Exception) -> Work:
    def work(ready: Ready) -> None:
        raise error

    return work


def test_the_reason_why_a_child_cannot_start_is_raised_in_the_parent(supervisor: Supervisor) -> None:
    with pytest.raises(Misconfigured, match=r"^gateway.yaml:3: x: no such y$"):
        supervisor.add("child", failing(Misconfigured("gateway.yaml:3: x: no such y")))
    with pytest.raises(GatewayError, match=r"^away$") as away:
        supervisor.add("child", failing(GatewayError("away")))
    assert not isinstance(away.value, Misconfigured)


def test_a_bug_in_a_child_is_logged_and_named(supervisor: Supervisor, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GatewayError, match=r"^the worker 2 did not start; its reason is above$"):
        supervisor.add("worker", failing(RuntimeError("a bug")), 2)
    logged = capfd.readouterr().err
    assert "a bug" in logged
    assert "worker 2" in logged


def test_a_signal_before_the_watch_begins_ends_it_at_once(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended"))
    supervisor.handle_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    supervisor.watch(lambda: pytest.fail("it watches"))
    supervisor.stop(timeout_s=PATIENCE_S)
    assert trace.read_text() == "ended\n"


def test_the_last_kind_stops_first_and_those_of_one_kind_at_the_same_time(supervisor: Supervisor, trace: Path) -> None:
    def until_all_got_sigterm() -> None:
        append(trace, "sigterm")
        while trace.read_text().count("sigterm") < 3:
            time.sleep(0.01)

    supervisor.add("sink", waiting(trace, "sink"))
    for number in (1, 2, 3):
        supervisor.add("worker", waiting(trace, "worker", until_all_got_sigterm), number)
    supervisor.stop(timeout_s=PATIENCE_S)
    assert trace.read_text().split() == [*["sigterm"] * 3, *["worker"] * 3, "sink"]


def test_what_does_not_end_in_time_is_killed(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended", lambda: time.sleep(PATIENCE_S)))
    supervisor.stop(timeout_s=0.2)
    assert trace.read_text() == ""


def test_every_worker_has_a_listening_socket_of_its_own_on_one_port() -> None:
    sockets = open_listeners("127.0.0.1:0", 3)
    assert len({listener.getsockname() for listener in sockets}) == 1
    assert len({listener.fileno() for listener in sockets}) == 3
    with socket.create_connection(sockets[0].getsockname()):
        pass
    for listener in sockets:
        listener.close()


def test_a_port_of_another_gateway_is_refused_although_its_sockets_allow_sharing() -> None:
    (first,) = open_listeners("127.0.0.1:0", 1)
    address = f"127.0.0.1:{first.getsockname()[1]}"
    with pytest.raises(Misconfigured) as refused:
        open_listeners(address, 1)
    assert str(refused.value) == (
        f"cannot listen on {address}: another program listens there; stop it or change `listen:`"
    )
    first.close()


def test_an_address_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"^cannot listen on 192\.0\.2\.1:8080: .*; stop it or change `listen:`$"):
        open_listeners("192.0.2.1:8080", 1)


def test_ctrl_c_while_it_stops_cuts_and_sigterm_does_not(supervisor: Supervisor) -> None:
    supervisor.handle_signals()
    for number, cut in ((signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGTERM, True)):
        signal.raise_signal(number)
        assert supervisor.cut == cut


def test_what_waits_for_a_child_is_called_until_it_has_ended(supervisor: Supervisor, trace: Path) -> None:
    supervisor.add("child", waiting(trace, "ended", lambda: time.sleep(0.2)))
    calls: list[str] = []
    supervisor.stop(timeout_s=PATIENCE_S, on_wait=lambda: calls.append(trace.read_text()))
    assert calls
    assert trace.read_text() == "ended\n"
