"""The configuration of the gateway, its harmless changes while it runs, and its mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tests.bench.life.answers import KINDS
from tests.bench.life.hostile import EXACT_PRICE

CANARY: Final = "canary-credential-{}-4711c0ffee"
"""The credential of a channel, which must appear nowhere."""
LEASE_S: Final = 20.0
"""Seconds after which every hold of a killed worker is over, with the timers below."""

TOP: Final = """\
listen: 127.0.0.1:{port}
admin: {admin}
workers: 2
redis: {redis}
data: {data}
port:
  {{allow_non_streaming: true, head_timeout: 3, body_timeout: 4, body_grace: 2, idle_timeout: 4, drain: 4}}
"""
TIMERS: Final = {
    False: "{connect: 0.5, first_byte: 5, idle: 5, total: 15, write_stall: 10}",
    True: "{connect: 0.5, first_byte: 1, idle: 1, total: 3, write_stall: 2}",
}
CHAIN: Final = """\
groups:
  default: {{ratio: 1.0}}
plugins:
  - use: usage-logger
  - {{use: auth, with: {{wrong_tokens_per_minute: 600}}}}
  - {{use: rate-limit, with: {{requests_per_minute: 1000000, concurrent: 1000}}}}
  - {{use: quota, with: {{max_holds: 1000, lease_margin: 1}}}}
  - {{use: "tests.bench.census:Census", with: {{folder: "{folder}"}}}}
  - use: model-routing
"""

MISTAKES: Final[dict[str, Callable[[str], str]]] = {
    "syntax": lambda text: text + "models: [",
    "half a file": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "a price that is no number": lambda text: text.replace("output: ", "output: .nan #", 1),
    "an unknown plugin": lambda text: text.replace("use: usage-logger", "use: no-such-plugin"),
    "an unknown channel": lambda text: text.replace("channels: [c-words]", "channels: [c-gone]", 1),
    "an unknown key": lambda text: text + "surprise: 1\n",
    "a plugin that raises in start": lambda text: text.replace(
        "  - use: model", "  - use: tests.faulty:Fails\n  - use: model"
    ),
    "a plugin that does not start": lambda text: text.replace(
        "  - use: model", "  - use: tests.faulty:NeverStarts\n  - use: model"
    ),
    "a hold that is no number": lambda text: text.replace("lease_margin: 1", "lease_margin: 1, max_hold: .nan"),
    "a hold without end": lambda text: text.replace("lease_margin: 1", "lease_margin: 1, max_hold: .inf"),
    "a lease of a day": lambda text: text.replace("lease_margin: 1", "lease_margin: 86400"),
}
"""Mistakes, each a change of the file's text. The running configuration stays."""


class Settings:
    """The file's content, which harmless edits change. `prices`: all prices that a model ever had, in micros a million."""

    def __init__(self, text: dict[str, object], ports: dict[str, int]) -> None:
        """`ports`: of the upstreams (`upstream`), the network before them (`network`), and one that is closed (`closed`)."""
        self._text = text
        self._ports = ports
        self._current = dict.fromkeys(KINDS, (1000000, 2000000))
        self._current["exact"] = (0, EXACT_PRICE * 1_000_000)
        self.prices = {name: {price} for name, price in self._current.items()}
        self._seasonal = True
        self._extra = 0
        self._weight = 1

    def change(self, chance: random.Random) -> str:
        """Change something harmless, and say what."""
        what = chance.choice(("prices", "season", "channels", "weights"))
        match what:
            case "prices":
                for name in chance.sample(sorted(set(KINDS) - {"exact"}), 5):
                    price = (chance.randrange(1, 500) * 10_000, chance.randrange(1, 900) * 10_000)
                    self._current[name] = price
                    self.prices[name].add(price)
            case "season":
                self._seasonal = not self._seasonal
            case "channels":
                self._extra = (self._extra + 1) % 3
            case _:
                self._weight = chance.randint(1, 9)
        return what

    def render(self) -> str:
        """Return the file's text."""
        lines = [TOP.format(**self._text), "channels:"]
        lines += [self._channel(name) for name in KINDS]
        lines += [self._channel("words", f"extra-{number}") for number in range(self._extra)]
        lines.append("models:")
        lines += [self._model(name) for name in KINDS if name != "seasonal" or self._seasonal]
        return "\n".join(lines) + "\n" + CHAIN.format(folder=self._text["folder"])

    def _channel(self, name: str, called: str = "") -> str:
        port = self._ports[{"proxied": "network", "refused": "closed"}.get(name, "upstream")]
        key = CANARY.format(called or name)
        timers = TIMERS[KINDS[name].short]
        return f'  c-{called or name}: {{base_url: "http://127.0.0.1:{port}/v1", api_key: {key}, timers: {timers}}}'

    def _model(self, name: str) -> str:
        served = f"[c-{name}]"
        if name == "spare":
            spare = f"{{use: c-words, priority: 1, weight: {self._weight}}}"
            served = f"[{{use: c-status-500, model: status-500}}, {{use: c-refused}}, {spare}]"
        prices = [f"{price // 1_000_000}.{price % 1_000_000:06}" for price in self._current[name]]
        return f"  {name}: {{input: {prices[0]}, output: {prices[1]}, max_output_tokens: 1024, channels: {served}}}"
