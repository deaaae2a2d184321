"""Calls Ollama's own `/api/chat`, which streams a line of JSON for each piece of the answer. The dialect: `ollama`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway import AnswerDelta, AnswerReader, ChatRequest, LinesDialect, Plugin, Refused

OPTIONS: Final = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")
TEXTS: Final = {"content": "content", "reasoning_content": "thinking"}
COUNTS: Final = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}


class OllamaMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message that Ollama takes as it is."""

    role: str
    content: str


class Ollama(LinesDialect):
    """Ollama's API for chats. The channel's `base_url` is that of the server, such as `http://127.0.0.1:11434`."""

    name = "ollama"
    path = "/api/chat"

    def request(self, chat: ChatRequest) -> bytes:
        """Return the body. What Ollama does not know would be left out by it in silence: it is refused."""
        for name in chat.fields.keys() - {"messages", *OPTIONS}:
            raise Refused(400, "invalid_request", f"'{name}' cannot be sent to the upstream of this model.", param=name)
        options = {"num_predict": chat.max_tokens, **{name: chat.get(name) for name in OPTIONS if name in chat.fields}}
        messages = chat.get("messages", list[OllamaMessage])
        return msgspec.json.encode({"model": chat.model, "messages": messages, "stream": True, "options": options})

    def reader(self) -> AnswerReader:
        return OllamaLines()


class OllamaLines(AnswerReader):
    """Reads a line."""

    def read(self, name: str, data: bytes) -> Iterable[AnswerDelta]:
        line = msgspec.json.decode(data)
        if "error" in line:
            yield AnswerDelta(error={"message": line["error"], "type": "upstream_error"}, status=500)
        said = line.get("message", {})
        yield AnswerDelta(message={name: said[field] for name, field in TEXTS.items() if said.get(field)})
        if line.get("done"):
            usage = {name: line.get(field, -1) for name, field in COUNTS.items()}
            yield AnswerDelta(finish_reason=line.get("done_reason", "stop"), usage=usage, reported=data, done=True)


class OllamaChat(Plugin):
    """Provides the dialect `ollama`, for texts alone: requests with pictures or tools are refused."""

    API = 1
    dialects = (Ollama,)
