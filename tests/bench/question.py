"""The request that every gateway gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

PATH: Final = "/v1/chat/completions"


def question(token: str, plan: str, headers: Mapping[str, str], size: int = 0) -> tuple[bytes, dict[str, str]]:
    """Return body and headers. The prompt is about `size` bytes and ends with the upstream's plan, EVENTS INTERVAL_US BYTES."""
    prompt = f"{'h' * size} plan {plan}"
    body = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    lines = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    return json.dumps(body).encode(), lines
