"""Adds headers to responses that say which channel served them, also to streams. The hook: `on_response`."""

from __future__ import annotations

import re
from urllib.parse import quote

import msgspec

from gateway import Exchange, Plugin


class ResponseStamp(Plugin):
    """Adds headers to every upstream response: which channel served it, as which model, after how many attempts."""

    API = 1
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"x-served-by": "{channel}"})
    """Values by header names. `{channel}`, `{model}` and `{attempts}` are replaced; everything else is sent unchanged.

    Characters of names that are not printable ASCII are percent-encoded.
    """

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not re.fullmatch(r"x-[a-z0-9-]+", name) or name == "x-request-id":
                raise ValueError(f"`{name}` must begin with x- and have only a-z, 0-9 and -; x-request-id is taken")
            if not re.fullmatch(r"[ -~]*", value):
                raise ValueError(f"the value of `{name}` must be printable ASCII")

    def on_response(self, exchange: Exchange) -> None:
        """Add the headers. The upstream has responded, and nothing was sent to the caller yet."""
        values = {
            "{channel}": exchange.channel,
            "{model}": exchange.attempts[-1].model,
            "{attempts}": str(len(exchange.attempts)),
        }
        for name, value in self.headers.items():
            stamp = re.sub(r"\{\w+\}", lambda match: values.get(match[0], match[0]), value)
            # A header cannot have all characters of a name.
            exchange.response_headers[name] = re.sub("[^ -~]+", lambda match: quote(match[0]), stamp)
