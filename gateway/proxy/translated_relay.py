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
        if self.ended.done():
            return False
        received = self._received + len(data)
        kept = self._on_translated(data)
        self._received = max(self._received, received)  # events that say nothing count, too: they may never end
        return kept

    def _on_translated(self, data: bytes) -> bool:
        if self.hooks is None:
            return self._on_data(self._translation.feed(data))
        self._on_data(b"")
        for chunks in self._translation.each(data):
            kept = self._on_data(chunks)
            while kept:
                kept = self._on_data(b"")
            if self.ended.done():
                break  # what an event after that one reports is not charged
        return False

    def _passed(self, whole: bytes) -> bytes:
        passed = super()._passed(whole)
        if self.withheld and (noted := self._translation.noted) is not None and not self.events.usage.final:
            self.events.usage.add(noted, final=False)
        return passed

    def _on_untranslated_end(self, clean: bool) -> None:
        if self.ended.done():
            return
        rest, whole = self._translation.close()
        self._on_data(rest)
        self._on_end(clean and whole)
