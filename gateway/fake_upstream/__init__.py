"""An OpenAI-compatible upstream for demos, rehearsals and tests, which can also misbehave on purpose.

Imports nothing else of the gateway.
"""

from gateway.fake_upstream.modes import MODES
from gateway.fake_upstream.server import FakeUpstream, ReceivedRequest

__all__ = ["MODES", "FakeUpstream", "ReceivedRequest"]
