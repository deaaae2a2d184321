"""Every parser against random and hostile inputs: it accepts or refuses, in time, and what it accepts is read correctly.

A few seconds in the usual run. `FUZZ_SECONDS=600 pytest tests/fuzz` gives each parser ten minutes of new inputs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.base.errors import Misconfigured, Refused
from gateway.chat.events import EventStream
from gateway.chat.request import BodyRules, check
from gateway.config import schema
from gateway.store.token_format import TokenCodec
from plugins.auth import _credential
from tests.fuzz import seeds

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
EXAMPLES = 300
MAX_S = 0.5
RULES = BodyRules(allow_non_streaming=True)
SECRET = "kanarienvogel-4711"
REFERENCE = b"${KEY}"
CODEC = TokenCodec(b"pepper" * 6)

Edit = tuple[int, int, bytes]


def mutated(inputs: list[bytes], pieces: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for seeds with a few random edits, and for random sequences of `pieces`."""
    edit = st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(pieces) | st.binary(max_size=4))
    edits = st.lists(edit, max_size=6)
    random_sequences = st.lists(st.sampled_from(pieces), max_size=20).map(b"".join)
    return st.builds(_edited, st.sampled_from(inputs), edits) | random_sequences


def _edited(seed: bytes, edits: list[Edit]) -> bytes:
    for offset, removed, inserted in edits:
        start = offset % (len(seed) + 1)
        seed = seed[:start] + inserted + seed[start + removed :]
    return seed


def fuzz(target: Callable[..., None], *inputs: st.SearchStrategy[object]) -> None:
    """Run a target on many inputs, each within `MAX_S`."""

    def timed(given_inputs: tuple[object, ...]) -> None:
        if seconds_of(target, given_inputs) > MAX_S:  # once more: the garbage collector may have run
            assert seconds_of(target, given_inputs) < MAX_S

    run = settings(
        max_examples=2_000 if SECONDS else EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )(given(st.tuples(*inputs))(timed))
    ends = time.monotonic() + SECONDS
    run()
    while time.monotonic() < ends:
        run()


def seconds_of(target: Callable[..., None], given_inputs: tuple[object, ...]) -> float:
    began = time.process_time()
    target(*given_inputs)
    return time.process_time() - began


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} passed")


def body_is_checked_or_refused(raw: bytes) -> None:
    try:
        body = check(raw, RULES)
    except Refused as refused:
        assert refused.status == 400
        assert refused.message.isprintable()
        return
    original = json.loads(raw, parse_constant=no_constant)
    assert (body.model, body.stream, body.messages) == (
        original["model"],
        original.get("stream") is True,
        len(original["messages"]),
    )
    sent = b"".join(body.upstream("other", "max_tokens", 7, ask_usage=True))
    received = json.loads(sent)
    assert len(received) == len(set(received))
    assert received["model"] == "other"
    settings = {"model", "stream_options", "stream", "n", "max_tokens", "max_completion_tokens"}
    assert without(received, settings) == without(original, settings)
    again = check(sent, RULES)
    assert (again.max_tokens, again.n, again.stream) == (body.max_tokens or 7, body.n, body.stream)
    assert "max_completion_tokens" not in received
    assert top_level_keys(sent) == len(received)


def without(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def top_level_keys(raw: bytes) -> int:
    keys: list[int] = []
    json.loads(raw, object_pairs_hook=lambda pairs: keys.append(len(pairs)))
    return keys[-1]


def stream_means_the_same_however_it_is_cut(data: bytes, cuts: list[int], *, drop_usage: bool) -> None:
    whole, whole_facts = relay(data, [], drop_usage=drop_usage)
    parts, parts_facts = relay(data, cuts, drop_usage=drop_usage)
    assert whole == parts
    assert whole_facts == parts_facts
    assert len(whole) <= len(data)
    if not drop_usage:
        assert data.startswith(whole)


def relay(data: bytes, cuts: list[int], *, drop_usage: bool) -> tuple[bytes, tuple[object, ...]]:
    stream = EventStream(drop_usage=drop_usage)
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    relayed, start = b"", 0
    for end in ends:
        relayed += stream.feed(data[start:end])
        while stream.backlog and cuts:
            relayed += stream.feed(b"")
        start = end
    relayed += stream.close()
    estimate = stream.output.tokens()
    return relayed, (stream.events, stream.usage, stream.finished, stream.done, stream.error, stream.complete, estimate)


def document_is_read_or_refused_in_one_line(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    try:
        loaded = schema.load(path, {"KEY": SECRET})
    except Misconfigured as wrong:
        text = str(wrong)
        assert text.isprintable()
        assert len(text) < 2000
        assert text.startswith(str(path))
        assert SECRET not in text
    else:
        elsewhere = REFERENCE in raw.replace(b'api_key: "%b"' % REFERENCE, b"")  # in a setting that is not a credential
        assert elsewhere or SECRET not in repr(loaded)


def only_a_whole_token_passes(raw: bytes) -> None:
    value = raw.decode("utf-8", "surrogateescape")
    try:
        credential = _credential(CIMultiDict({"Authorization": value}))
    except Refused as refused:
        assert refused.status == 401
        return
    assert CODEC.read(credential) is None
    good = CODEC.make("tester")[1]
    assert CODEC.read(good) is not None
    for wrong in (good + credential, credential + good, good[:-1] + credential[:1], good.replace("t", credential, 1)):
        assert wrong == good or CODEC.read(wrong) is None or not credential


def test_body() -> None:
    fuzz(body_is_checked_or_refused, mutated(seeds.BODY, seeds.BODY_PIECES))


@pytest.mark.parametrize("drop_usage", [False, True])
def test_sse(drop_usage: bool) -> None:
    def target(data: bytes, cuts: list[int]) -> None:
        stream_means_the_same_however_it_is_cut(data, cuts, drop_usage=drop_usage)

    fuzz(target, mutated(seeds.SSE, seeds.SSE_PIECES), st.lists(st.integers(0, 400), max_size=6))


def test_document(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    fuzz(lambda raw: document_is_read_or_refused_in_one_line(file, raw), mutated(seeds.DOCUMENT, seeds.DOCUMENT_PIECES))


def test_token() -> None:
    fuzz(only_a_whole_token_passes, mutated(seeds.TOKEN, seeds.TOKEN_PIECES))
