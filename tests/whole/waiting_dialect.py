"""A dialect that writes a request only once it is let, and tells in which thread it did."""

from __future__ import annotations

import threading

from gateway import ChatRequest, Plugin
from plugins.anthropic import Messages

let = threading.Event()
begun = threading.Event()
threads: list[int] = []


class Waiting(Messages):
    name = "waiting"

    def request(self, chat: ChatRequest) -> bytes:
        threads.append(threading.get_ident())
        begun.set()
        assert let.wait(40)
        return super().request(chat)


class Provides(Plugin):
    dialects = (Waiting,)
