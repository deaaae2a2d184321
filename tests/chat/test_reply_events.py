"""What a plugin yields after `[DONE]` is neither relayed nor counted, wherever the data is cut."""

from __future__ import annotations

from gateway.chat.events import ReplyEvents

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a word"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":900,"total_tokens":901}}\n\n'
DONE = b"data: [DONE]\n\n"
AFTER = WORD * 40 + USAGE + b'data: {"error":{"message":"late"}}\n\n: comment\n\n' + b"data: " + b"x" * 300


def test_every_cut_of_what_follows_the_end_gives_the_same() -> None:
    data = WORD * 2 + DONE + AFTER
    for cut in range(len(data)):
        stream, relayed = ReplyEvents(drop_usage=False, max_event_bytes=200), b""
        for piece in (data[:cut], data[cut:]):
            relayed += stream.feed(piece)
            while stream.backlog:
                relayed += stream.feed(b"")
        assert relayed + stream.close() == WORD * 2 + DONE
        assert (stream.events, stream.output.all_events, stream.usage.completion, stream.error) == (3, 2, 0, None)
        assert stream.complete and stream.concluded
