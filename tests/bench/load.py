"""Callers that read the time stamps in the events. Prints one JSON line. It uses plain sockets, as the upstream does.

`python -m tests.bench.load '{"port": 8080, "token": "sk-...", "plan": "20 0 150", "streams": 16, "seconds": 4, ...}'`

Each of `streams` connections sends its next request as soon as a response has ended, for `seconds` after `warm_s`. With
`rate`, requests are sent at random times, this many a second. With `once`, each connection sends one request, all at the same
time, and the measurement runs from when all are open until all have ended; memory is read in the middle of `seconds`. With
`requests`, the run ends after this many.
"""

from __future__ import annotations

import json
import random
import re
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

import msgspec

from tests.bench.encryption import NOT_NOW, connected
from tests.bench.process import PATIENCE_S, cpu_ns, raise_descriptors, resident_kib
from tests.bench.question import PATH, question

STAMP: Final = re.compile(rb"@(\d{20})@")
END: Final = b"\r\n0\r\n\r\n"
READ: Final = 64 * 1024
STAGGER: Final = 20
"""How many connections are opened at a time, so that the streams do not all begin together."""


class LoadSettings(msgspec.Struct):
    """The settings of a load. `plan`: the upstream's plan; `body`: the size of the prompt in bytes.

    `folder`: where the authority of the gateway's certificate is; empty where it serves without TLS.
    """

    port: int
    plan: str
    token: str = "none"
    headers: dict[str, str] = {}
    streams: int = 16
    body: int = 0
    seconds: float = 4.0
    warm_s: float = 1.0
    rate: float = 0.0
    once: bool = False
    requests: int = 0
    pids: list[int] = []
    folder: str = ""

    def request(self) -> bytes:
        body, lines = question(self.token, self.plan, self.headers, self.body)
        lines |= {"Host": "bench", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body


class Caller:
    """A connection, which is opened again when the gateway closes it."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.connect()

    def connect(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.load.settings.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected(plain, self.load.settings.folder)
        self.socket.setblocking(False)
        self.load.callers[self.socket.fileno()] = self
        self.load.poll.register(self.socket, select.EPOLLIN)
        self.asking = self.begun = False
        self.rest = self.tail = b""
        self.unsent = memoryview(b"")

    def ask(self) -> None:
        self.asking, self.begun = True, False
        self.rest = self.tail = b""
        self.unsent = self.load.request
        self.asked = time.monotonic_ns()
        self.send()

    def send(self) -> None:
        with suppress(*NOT_NOW):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        if self.unsent or len(self.load.request) > READ:
            self.load.poll.modify(self.socket, select.EPOLLIN | (select.EPOLLOUT if self.unsent else 0))

    def ready(self, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self.send()
            if mask & ~select.EPOLLOUT:
                self.received(self.socket.recv(READ), time.monotonic_ns())
        except NOT_NOW:
            pass
        except OSError:
            self.lost()

    def received(self, data: bytes, now: int) -> None:
        load = self.load
        if not data:
            self.lost()
            return
        if not self.tail and not data.startswith(b"HTTP/1.1 200"):
            load.wrong += 1
            load.cut -= 1  # it is counted as wrong
            load.first_wrong = load.first_wrong or data[:300].decode(errors="replace")
            self.lost()
            return
        seen = self.rest + data
        stamps = STAMP.findall(seen)
        whole = seen.endswith(b"\n") or seen.count(b"@") % 2 == 0
        self.rest = b"" if whole else seen[seen.rfind(b"@") :]
        load.events += len(stamps)
        load.transits.extend([(now - int(stamp)) / 1e6 for stamp in stamps])
        if stamps and not self.begun:
            self.begun = True
            load.begun += 1
            load.first.append((now - self.asked) / 1e6)
        self.tail = data[-7:] if len(data) > 6 else (self.tail + data)[-7:]
        if self.tail == END:
            self.asking = False
            load.completed += 1
            load.answered(self)

    def lost(self) -> None:
        """Handle a closed connection. An open request on it has failed."""
        load, failed = self.load, self.asking
        del load.callers[self.socket.fileno()]
        self.socket.close()
        load.cut += failed
        if not load.settings.once:
            self.connect()
            if failed or not load.settings.rate:
                load.answered(self)


class Load:
    """All callers, and what they have measured."""

    def __init__(self, settings: LoadSettings) -> None:
        self.settings = settings
        self.request = memoryview(settings.request())
        self.poll = select.epoll()
        self.callers: dict[int, Caller] = {}
        self.idle: list[Caller] = []
        self.completed = self.begun = self.events = self.wrong = self.cut = 0
        self.first_wrong = ""
        self.transits, self.first = array("d"), array("d")
        self.random = random.Random(1)
        self.due = time.monotonic() if settings.rate else float("inf")

    def answered(self, caller: Caller) -> None:
        if self.settings.rate:
            self.idle.append(caller)
        elif not self.settings.once:
            caller.ask()

    def run(self, over: Callable[[], bool], seconds: float) -> None:
        """Run until `over` returns true, but no longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while not over() and (now := time.monotonic()) < deadline:
            while self.due <= now:
                self.due += self.random.expovariate(self.settings.rate)
                (self.idle.pop() if self.idle else Caller(self)).ask()
            for descriptor, mask in self.poll.poll(max(0.0, min(0.05, self.due - now)), 256):
                if caller := self.callers.get(descriptor):
                    caller.ready(mask)

    def open(self) -> None:
        for number in count(1):
            self.answered(caller := Caller(self))
            if self.settings.once:
                caller.ask()
            if number == self.settings.streams:
                return
            if number % STAGGER == 0 and not self.settings.once:
                self.run(lambda: False, 0.02)

    def all_ended(self) -> bool:
        return self.completed + self.wrong + self.cut >= self.settings.streams

    def measure(self) -> dict[str, float]:
        """Run the load and return the figures."""
        settings = self.settings
        idle_kib = resident_kib(settings.pids)
        opening = time.monotonic()
        self.open()
        if settings.once:
            self.run(lambda: self.begun + self.wrong + self.cut >= settings.streams, PATIENCE_S)
        elif not settings.requests:
            self.run(lambda: False, settings.warm_s)
        opened_s = time.monotonic() - opening
        open_kib = resident_kib(settings.pids)
        began, cpu, events, completed = time.monotonic(), cpu_ns(settings.pids), self.events, self.completed
        del self.transits[:], self.first[: 0 if settings.once else len(self.first)]
        if settings.once:
            self.run(self.all_ended, settings.seconds / 2)
            open_kib = resident_kib(settings.pids)
            self.run(self.all_ended, 3 * settings.seconds)
        elif settings.requests:
            self.run(lambda: self.completed >= settings.requests, settings.seconds)
            completed = events = 0
        else:
            self.run(lambda: False, settings.seconds)
        cpu, seconds = cpu_ns(settings.pids) - cpu, time.monotonic() - began
        events, requests = self.events - events, self.completed - completed
        return {
            "requests_per_s": round(requests / seconds, 1),
            "events_per_s": round(events / seconds, 1),
            "cpu_share": round(cpu / 1e9 / seconds, 3),
            "cpu_us_per_request": round(cpu / 1000 / max(1, requests), 1),
            "cpu_us_per_event": round(cpu / 1000 / max(1, events), 2),
            "event_ms_p50": percentile(self.transits, 0.5),
            "event_ms_p99": percentile(self.transits, 0.99),
            "first_ms_p50": percentile(self.first, 0.5),
            "first_ms_p99": percentile(self.first, 0.99),
            "kib_per_stream": round((open_kib - idle_kib) / settings.streams, 1),
            "opened_s": round(opened_s, 2),
            "seconds": round(seconds, 2),
            "completed": self.completed,
            "wrong": self.wrong,
            "cut": self.cut,
        }


def percentile(values: array[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0


if __name__ == "__main__":
    raise_descriptors()
    load = Load(msgspec.json.decode(sys.argv[1], type=LoadSettings))
    print(json.dumps(load.measure()))
    if load.first_wrong:
        print(load.first_wrong, file=sys.stderr)
