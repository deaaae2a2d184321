"""The result of one check of a plugin, and the ways in which an exchange can end, as a plugin sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.exchange import Outcome

MODEL: Final = "the-model-at-the-upstream"
"""What the upstream calls the model of each request."""
CHUNKS: Final = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"Gr\xc3\xbc\xc3\x9fe"}}]}\n\n: a comment\r\n\r\n',
    b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\ndata: no JSON\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":10}}\n\n',
    b"data: [DONE]\n\n",
)
"""Chunks as upstreams send them, well-formed and malformed."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `text` says what was seen, or what is wrong and how to mend it."""

    check: str
    passed: bool
    text: str

    @classmethod
    def of(cls, check: str, problems: Iterable[str], text: str) -> Finding:
        """Return a finding that lists the problems, each once; or one that passed, with `text`, if there are none."""
        distinct = list(dict.fromkeys(problems))
        return cls(check, not distinct, "; ".join(distinct) or text)


class Ending(msgspec.Struct, frozen=True):
    """One way to end: the request, the chunks that the plugin sees before `on_end`, and the outcome that it finds there."""

    name: str
    outcome: Outcome
    chunks: int | None = None
    """How many chunks the plugin sees; None if the upstream never responds."""
    lost_from: int | None = None
    """From which `await` of `on_request` on, counted from 0, the store's replies are lost; None for no lost replies."""
    fails_over: bool = False
    """Whether an upstream fails first, which may have been billed."""
    method: str = "POST"
    path: str = "/v1/chat/completions"


COMPLETED: Final = Ending("the answer was complete", Outcome.COMPLETED, len(CHUNKS))
INCOMPLETE: Final = (
    Ending("a plugin below refused", Outcome.REFUSED),
    Ending("the caller left before the answer", Outcome.CALLER_GONE),
    Ending("the caller left before the first chunk", Outcome.CALLER_GONE, 0),
    Ending("the caller left after a chunk", Outcome.CALLER_GONE, 1),
    Ending("the upstream failed", Outcome.UPSTREAM_FAILED),
    Ending("one upstream failed and another answered", Outcome.COMPLETED, len(CHUNKS), fails_over=True),
    Ending("the upstream ended the stream early", Outcome.UPSTREAM_TRUNCATED, 1),
    Ending("the gateway stopped", Outcome.STOPPED),
)
MODELS: Final = Ending("GET /v1/models", Outcome.COMPLETED, method="GET", path="/v1/models")
MISDIRECTED: Final = Ending("GET /v1/nowhere", Outcome.REFUSED, method="GET", path="/v1/nowhere")
