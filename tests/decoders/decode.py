"""Reads a body a line and prints what Python's own decoder understands. It takes the last of several equal names."""

import json
import sys

for line in sys.stdin.buffer:
    try:
        body = json.loads(line)
        ceiling = body.get("max_completion_tokens") or body.get("max_tokens")
        n = 1 if body.get("n") is None else body["n"]
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        answer = {
            "model": body["model"],
            "ceiling": ceiling,
            "n": n,
            "stream": body.get("stream", False),
            "usage": usage,
        }
    except ValueError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
