"""An OpenAI-compatible upstream that behaves, or misbehaves on purpose: for demo, rehearsals and tests."""

from gateway.fake_upstream.modes import MODES
from gateway.fake_upstream.server import FakeUpstream, Seen, serve_forever

__all__ = ["MODES", "FakeUpstream", "Seen", "serve_forever"]
