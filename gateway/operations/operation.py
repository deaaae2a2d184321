"""The operations: what a path asks for."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from gateway.operations.audio import SpeechFormat, TranscriptionsFormat, TranslationsFormat
from gateway.operations.chat_completions import ChatFormat
from gateway.operations.completions import CompletionsFormat
from gateway.operations.images import ImageEditsFormat, ImagesFormat, ImageVariationsFormat
from gateway.operations.input_only import EmbeddingsFormat, ModerationsFormat, RerankFormat
from gateway.operations.messages import MessageErrors, MessagesFormat, MessageTokensFormat
from gateway.operations.responses import CompactFormat, InputTokensFormat, ResponseErrors, ResponsesFormat
from gateway.operations.wire_format import Errors, WireFormat


class Operation(StrEnum):
    """What a path asks for. `wire`: the format of what is asked of upstreams; None for what the gateway answers itself.

    A plugin that concerns only generated text in the form of chat completions checks for `CHAT`.
    """

    wire: WireFormat | None

    def __new__(cls, name: str, wire: WireFormat | None = None) -> Self:
        """Return the member with this name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.wire = wire
        return member

    CHAT = "chat.completions", ChatFormat()
    COMPLETIONS = "completions", CompletionsFormat()
    EMBEDDINGS = "embeddings", EmbeddingsFormat()
    RERANK = "rerank", RerankFormat()
    MODERATIONS = "moderations", ModerationsFormat()
    IMAGES = "images", ImagesFormat()
    IMAGE_EDITS = "images.edits", ImageEditsFormat()
    IMAGE_VARIATIONS = "images.variations", ImageVariationsFormat()
    SPEECH = "speech", SpeechFormat()
    TRANSCRIPTIONS = "transcriptions", TranscriptionsFormat()
    TRANSLATIONS = "translations", TranslationsFormat()
    MESSAGES = "messages", MessagesFormat()
    MESSAGE_TOKENS = "messages.tokens", MessageTokensFormat()
    RESPONSES = "responses", ResponsesFormat()
    RESPONSE_TOKENS = "responses.tokens", InputTokensFormat()
    RESPONSES_COMPACT = "responses.compact", CompactFormat()
    STORED_RESPONSES = "responses.stored"
    MODELS = "models"
    ACCOUNT = "account"
    LEDGER = "ledger"
    USAGE = "usage"
    REQUESTS = "requests"
    MISDIRECTED = "misdirected"

    __hash__ = str.__hash__


MISDIRECTED: Final = Operation.MISDIRECTED  # a name of a module, as each request asks for it

SERVED: Final = {operation: operation.wire for operation in Operation if operation.wire is not None}
"""The operations of upstreams."""

ERRORS: Final = Errors()
MESSAGE_ERRORS: Final = MessageErrors()
MESSAGE_PATHS: Final = ("/v1/messages", "/v1/v1/messages", "/messages")
RESPONSE_ERRORS: Final = ResponseErrors()


def errors_of(path: str) -> Errors:
    """Return how errors are told on a path, also on one that is not served."""
    if path.startswith(MESSAGE_PATHS):
        return MESSAGE_ERRORS
    return RESPONSE_ERRORS if path == "/v1/responses" else ERRORS
