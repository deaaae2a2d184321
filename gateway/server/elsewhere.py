"""What a caller is told that asks for a part of OpenAI's API which is not served, or whose base address has too much."""

from __future__ import annotations

import re
from typing import Final

LONGER: Final = re.compile(
    r"(/v1)?(?P<more>/chat/completions|/chat|/models)/(v1/)?(chat/completions|models|responses|embeddings)(/|$)"
)
BASE_HAS_MORE: Final = (
    "The base address must end in /v1: this one goes on with the path of a request, which the client adds itself. Remove {more} "
    "from the end of the base address."
)
NO_SLASH: Final = "Remove the slash at the end of the path."
USE_CHAT: Final = "{api} is not served here. Use chat completions with this client: {how}."
NOT_SERVED: Final = "{api} is not served here, but only chat completions: use another service for it."
HOW: Final = {
    "responses": ("The Responses API", "`client.chat.completions.create(...)`, or `.chat(...)` of the Vercel AI SDK"),
    "completions": ("The older completions API", "POST /v1/chat/completions, with `messages` in place of `prompt`"),
    "messages": ("Anthropic's Messages API", "an OpenAI-compatible client, which sends POST /v1/chat/completions"),
    "assistants": ("The Assistants API", "`client.chat.completions.create(...)`"),
    "threads": ("The Assistants API", "`client.chat.completions.create(...)`"),
    "conversations": ("The Conversations API", "`client.chat.completions.create(...)`"),
    "realtime": ("The Realtime API", "`client.chat.completions.create(..., stream=True)`"),
}
OTHERS: Final = {
    "embeddings": "The Embeddings API",
    "images": "The Images API",
    "videos": "The Videos API",
    "audio": "The Audio API",
    "files": "The Files API",
    "uploads": "The Uploads API",
    "batches": "The Batch API",
    "moderations": "The Moderations API",
    "fine_tuning": "The Fine-tuning API",
    "vector_stores": "The Vector stores API",
    "rerank": "The Rerank API",
}


def advice(path: str) -> str:
    """Return what to use instead of a path; empty where nothing is known of it."""
    if (longer := LONGER.match(path)) is not None:
        return BASE_HAS_MORE.format(more=longer["more"])
    if path.rstrip("/") in ("/v1/chat/completions", "/v1/models") and path.endswith("/"):
        return NO_SLASH
    name = path.removeprefix("/v1").removeprefix("/").partition("/")[0]
    if name in HOW:
        api, how = HOW[name]
        return USE_CHAT.format(api=api, how=how)
    return NOT_SERVED.format(api=OTHERS[name]) if name in OTHERS else ""
