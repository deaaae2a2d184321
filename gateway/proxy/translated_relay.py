"""The relay of an answer of an upstream of another dialect: what arrives is translated, and then relayed as any other answer."""

from __future__ import annotations

from typing import Any

from gateway.chat.dialect import Dialect
from gateway.proxy.relay import Relay
from gateway.proxy.translation import Translation


class TranslatedRelay(Relay):
    """A relay whose upstream speaks a dialect. The compiled path of events, which reads what arrives, is not used."""

    def __init__(self, dialect: Dialect, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.translation = self._translation = Translation(dialect, self.events.usage, self._exchange.id)

    def _flow(self) -> None:
        self._upstream.flow_to(self._on_untranslated, self._on_untranslated_end)

    def _begin_pass(self) -> None:
        pass

    def _on_untranslated(self, data: bytes) -> bool:
        translated = self._translation.feed(data)
        self._received += max(0, len(data) - len(translated))  # what says nothing counts, too: it may never end
        return self._on_data(translated)

    def _on_untranslated_end(self, clean: bool) -> None:
        rest, whole = self._translation.close()
        self._on_data(rest)
        self._on_end(clean and whole)
