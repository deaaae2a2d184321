"""An upstream that only sends events, each with a time stamp: `python -m tests.bench.upstream PORT [FOLDER]`.

The end of the prompt says what to send: `plan EVENTS INTERVAL_US BYTES`, BYTES being the size of an event's text. With
interval 0 the events are sent as fast as possible. Each event is a separate write, as from a model. It uses plain sockets, so
that upstream and load together cost less than most of the measured gateways. With FOLDER it serves TLS, with the certificate
there.
"""

from __future__ import annotations

import re
import select
import socket
import sys
import time
from collections import defaultdict, deque
from functools import cache
from typing import Final

from tests.bench.encryption import NOT_NOW, accepted

PLAN: Final = re.compile(rb"plan (\d+) (\d+) (\d+)")
LENGTH: Final = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)
CHUNKED: Final = re.compile(rb"transfer-encoding: ?chunked", re.IGNORECASE)
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FRAME: Final = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[%b]%b}\n\n'
)
EVENT: Final = FRAME % (b'{"index":0,"delta":{"content":"%b"},"finish_reason":null}', b"")
READ: Final = 256 * 1024


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END: Final = (
    chunk(
        FRAME % (b'{"index":0,"delta":{},"finish_reason":"stop"}', b"")
        + FRAME % (b"", b',"usage":{"prompt_tokens":5,"completion_tokens":20,"total_tokens":25}')
        + b"data: [DONE]\n\n"
    )
    + b"0\r\n\r\n"
)


@cache
def event(size: int) -> bytes:
    """Return a chunk whose text has `size` bytes. 22 of them, `@...@`, are the time of sending, which is put in with `%`."""
    stamp = b"@" + b"0" * 20 + b"@"
    return chunk(EVENT % (stamp + b"x" * (size - len(stamp)))).replace(stamp, b"@%020d@")


class Answering:
    """A connection, with one request after the other."""

    def __init__(self, upstream: Upstream, sock: socket.socket) -> None:
        self.upstream, self.socket = upstream, sock
        self.head = b""
        self.last = b""
        self.missing = 0
        self.unsent = b""
        self.left = self.interval_ns = 0
        self.event = b""

    def ready(self, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self.send(b"")
            if mask & ~select.EPOLLOUT:
                self.received(self.socket.recv(READ))
        except NOT_NOW:
            pass
        except OSError:
            self.close()

    def received(self, data: bytes) -> None:
        if not data:
            self.close()
            return
        if not self.head:
            head, border, body = (self.last + data).partition(b"\r\n\r\n")
            if not border:
                self.last += data
                return
            length = LENGTH.search(head)
            self.head, self.last = head, body
            self.missing = int(length[1]) - len(body) if length else 0
        else:
            self.missing -= len(data)
            self.last = self.last[-256:] + data  # the plan is at the end of the body
        if self.missing <= 0 and (not CHUNKED.search(self.head) or self.last.endswith(b"0\r\n\r\n")):
            self.answer(PLAN.search(self.last[-512:]))

    def answer(self, plan: re.Match[bytes] | None) -> None:
        events, interval_us, size = map(int, plan.groups()) if plan else (0, 0, 22)
        self.head = self.last = b""
        self.event = event(size)
        if interval_us:
            self.left, self.interval_ns = events, interval_us * 1000
            self.send(HEAD)
            self.due(time.monotonic_ns())
        else:
            self.send(HEAD)
            for _ in range(events):
                self.send(self.event % time.monotonic_ns())
            self.send(END)

    def due(self, due_ns: int) -> None:
        """Send the next event, or the end."""
        if self.left == 0:
            self.send(END)
            return
        self.left -= 1
        self.upstream.schedule[self.interval_ns].append((due_ns + self.interval_ns, self))
        self.send(self.event % time.monotonic_ns())

    def send(self, data: bytes) -> None:
        data = self.unsent + data
        try:
            sent = self.socket.send(data)
        except NOT_NOW:
            sent = 0
        if bool(data[sent:]) != bool(self.unsent):
            self.upstream.watch(self, select.EPOLLIN | (select.EPOLLOUT if data[sent:] else 0))
        self.unsent = data[sent:]

    def close(self) -> None:
        self.upstream.forget(self)
        self.socket.close()
        self.left = -1


class Upstream:
    """All connections, and the schedule of their events."""

    def __init__(self, port: int, folder: str = "") -> None:
        self.folder = folder
        self.listening = socket.create_server(("127.0.0.1", port), backlog=16384)
        self.listening.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listening, select.EPOLLIN)
        self.connections: dict[int, Answering] = {}
        self.schedule: defaultdict[int, deque[tuple[int, Answering]]] = defaultdict(deque)
        """The due events for each interval. In one interval all wait equally long, so each queue is in order."""

    def watch(self, connection: Answering, mask: int) -> None:
        self.poll.modify(connection.socket, mask)

    def forget(self, connection: Answering) -> None:
        self.connections.pop(connection.socket.fileno(), None)

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listening.accept()
            except BlockingIOError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                sock = accepted(sock, self.folder)
            except OSError:
                sock.close()
                continue
            sock.setblocking(False)
            self.connections[sock.fileno()] = Answering(self, sock)
            self.poll.register(sock, select.EPOLLIN)

    def run(self) -> None:
        while True:
            for descriptor, mask in self.poll.poll(self.wait_s(), 256):
                if descriptor == self.listening.fileno():
                    self.accept()
                elif descriptor in self.connections:
                    self.connections[descriptor].ready(mask)
            now = time.monotonic_ns()
            for waiting in list(self.schedule.values()):
                while waiting and waiting[0][0] <= now:
                    due_ns, connection = waiting.popleft()
                    if connection.left >= 0:
                        try:
                            connection.due(due_ns)
                        except OSError:
                            connection.close()

    def wait_s(self) -> float | None:
        """Return the seconds until the next event is due, or None."""
        due_times = [waiting[0][0] for waiting in self.schedule.values() if waiting]
        return max(0, min(due_times) - time.monotonic_ns()) / 1e9 if due_times else None


if __name__ == "__main__":
    Upstream(int(sys.argv[1]), *sys.argv[2:]).run()
