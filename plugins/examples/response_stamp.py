"""Headers on the answer that only the answer can know: who served it. Streams get them too, since they come first."""

from __future__ import annotations

import re

import msgspec

from gateway import Exchange, Plugin


class ResponseStamp(Plugin):
    """Adds headers to every answer of an upstream: which channel served it, as which model, after how many attempts."""

    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"x-served-by": "{channel}"})
    """Names and values. `{channel}`, `{model}` and `{attempts}` are filled in; everything else is sent as it stands."""

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not re.fullmatch(r"x-[a-z0-9-]+", name) or name == "x-request-id":
                raise ValueError(f"`{name}` must begin with x- and have only a-z, 0-9 and -; x-request-id is taken")
            if not re.fullmatch(r"[ -~]*", value):
                raise ValueError(f"the value of `{name}` must be printable ASCII")

    def on_response(self, exchange: Exchange) -> None:
        """The upstream has answered, and nothing was sent yet."""
        known = {
            "{channel}": exchange.channel,
            "{model}": exchange.attempts[-1].model,
            "{attempts}": str(len(exchange.attempts)),
        }
        for name, value in self.headers.items():
            exchange.response_headers[name] = re.sub(r"\{\w+\}", lambda found: known.get(found[0], found[0]), value)
