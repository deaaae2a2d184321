"""Notifications to a service manager, its watchdog, and a public port that it opened."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.base.errors import Misconfigured
from gateway.config.schema import Port
from gateway.runtime.systemd import ServiceManager, inherited_listeners
from tests.cli.processes import alive, children, demo_in
from tests.patience import PATIENCE_S
from tests.whole.raw import ask, get


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that a service manager listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_S)
        yield listening


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **more}


def test_ready_and_stopping_are_reported(manager: socket.socket, tmp_path: Path) -> None:
    variables = environment(tmp_path)
    service = ServiceManager(variables)
    assert variables == {}, "children must not notify in the parent's name"
    service.ready()
    service.stopping()
    assert [manager.recv(100).split(b"\n")[0] for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_a_long_start_extends_its_timeout_and_says_how_far_it_is(manager: socket.socket, tmp_path: Path) -> None:
    ServiceManager(environment(tmp_path)).starting("the store is loading: 42 % done")
    assert manager.recv(100) == b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=the store is loading: 42 % done"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract socket names exist on Linux only")
def test_a_manager_with_an_abstract_socket_name_is_notified() -> None:
    name = f"sluicegate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(PATIENCE_S)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(100).startswith(b"READY=1")


def test_the_watchdog_is_pinged_twice_within_its_timeout_and_no_more_often(
    manager: socket.socket, tmp_path: Path
) -> None:
    service = ServiceManager(environment(tmp_path, WATCHDOG_USEC="200000", WATCHDOG_PID=str(os.getpid())))
    service.ping_watchdog()
    service.ping_watchdog()
    assert manager.recv(100) == b"WATCHDOG=1"
    manager.settimeout(0)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}])
def test_a_watchdog_for_another_process_is_not_pinged(
    manager: socket.socket, tmp_path: Path, more: dict[str, str]
) -> None:
    ServiceManager(environment(tmp_path, **more)).ping_watchdog()
    manager.settimeout(0)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_a_manager_that_went_away_is_logged_and_nothing_is_raised(tmp_path: Path) -> None:
    with capture_logs() as lines:
        ServiceManager(environment(tmp_path)).ready()
    assert [line["event"] for line in lines] == ["service_manager_not_told"]


def test_nothing_is_inherited_unless_it_was_passed_to_this_process() -> None:
    assert inherited_listeners(2, {}) == []
    assert inherited_listeners(2, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == []


def test_more_than_one_socket_is_refused() -> None:
    with pytest.raises(Misconfigured, match="passed 2 sockets"):
        inherited_listeners(1, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


WITH_SOCKET = """
import os, sys
fd = int(sys.argv[1])
if fd != 3:
    os.dup2(fd, 3)
os.set_inheritable(3, True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = "1"
os.execv(sys.executable, [sys.executable, "-m", "gateway", "serve", "--config", sys.argv[2]])
"""
"""What a service manager does between its fork and the start of the gateway."""


async def start(listening: socket.socket, file: Path, **more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITH_SOCKET, str(listening.fileno()), str(file)),
        pass_fds=(listening.fileno(),),
        env={**os.environ, **more},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_gateway_serves_on_the_socket_that_was_passed_and_notifies_its_manager(
    manager: socket.socket, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        early = asyncio.create_task(ask(port, get("/healthz")))
        process = await start(
            listening, demo_in(tmp_path, workers=2), NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000"
        )
        assert (await early).status == 200, "a connection from before the start is served"
        assert (await asyncio.to_thread(manager.recv, 100)).startswith(b"READY=1")
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        family = set(children(process.pid))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), Port().drain - 1) == 0
        assert not [pid for pid in family if alive(pid)]
        state = b""
        while not state.startswith(b"STOPPING=1"):
            state = await asyncio.to_thread(manager.recv, 100)
        assert listening.getsockname()[1] == port, "the manager's socket stays open"


async def test_a_socket_of_another_kind_is_one_line_on_standard_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wrong:
        process = await start(wrong, demo_in(tmp_path))
        _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert err == b"gateway: the service manager must pass a listening TCP socket: use ListenStream=HOST:PORT\n"
