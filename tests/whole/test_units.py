"""Operations that are billed by pictures, seconds and characters: what is held and charged, and what has no price."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED
from gateway.testing import Running, running
from gateway.usage.record import charge_of
from tests.patience import PATIENCE_S
from tests.place import Place
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import Fin, Hold, Scripted, Step

FILE = """
channels:
  up: {{base_url: "{url}", operations: [{operations}], on_caller_gone: cancel}}
models:
  pictures: {{image: {{low: 0.01, "high 1024x1024": 0.17, "1024x1536": 0.05}}, channels: [{{use: up, model: theirs}}]}}
  plain: {{image: 0.04, request: 0.001, channels: [up]}}
  voice: {{character: 15, channels: [up]}}
  ears: {{second: 0.0001, channels: [{{use: up, model: the longer name}}]}}
  words: {{input: 1, output: 2, channels: [up]}}
  gratis: {{free: true, channels: [up]}}
groups: {{default: {{}}}}
{chain}
"""
SECOND = 16_000
CREDIT = 5_000_000
IMAGES, EDITS, SPEECH = "/v1/images/generations", "/v1/images/edits", "/v1/audio/speech"
HEARD = ("/v1/audio/transcriptions", "/v1/audio/translations")


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(pace_s=0) as fake:
        yield fake


@asynccontextmanager
async def serving(
    upstream: FakeUpstream | Scripted, folder: Path, url: str, chain: str = CHAIN
) -> AsyncIterator[tuple[Running, str]]:
    yaml = FILE.format(url=upstream.base_url, operations=", ".join(SERVED), chain=chain)
    async with running(yaml, folder, url) as gateway:
        yield gateway, await gateway.token(credit=CREDIT)


async def post(gateway: Running, token: str, path: str, body: dict[str, Any]) -> Answer:
    return await ask(gateway.port, chat(token, json.dumps(body).encode(), path=path))


async def send_form(gateway: Running, token: str, path: str, fields: dict[str, Any]) -> Answer:
    raw = written(fields, "border-7")
    return await ask(gateway.port, chat(token, raw, path=path, headers={"Content-Type": f"{FORM}; boundary=border-7"}))


async def charged(gateway: Running) -> int:
    """Return what the account was charged."""
    async with asyncio.timeout(PATIENCE_S):  # an error is sent before its end is written
        while (account := await gateway.store.accounts.get("tester")) is None or account.holds:
            await asyncio.sleep(0.01)
    assert await gateway.store.wallet.verify("tester") == []
    return CREDIT - account.balance_micros


def wav(seconds: float) -> bytes:
    data = bytes(int(seconds * SECOND))
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", len(data) + 36, b"WAVE", b"fmt ", 16, 1, 1, SECOND // 2, SECOND, 2, 16
    )
    return head + b"data" + struct.pack("<I", len(data)) + data


ORDERED = [
    (IMAGES, {"model": "pictures", "prompt": "x", "quality": "low", "size": "1024x1024"}, 10_000),
    (IMAGES, {"model": "pictures", "prompt": "x", "quality": "high", "size": "1024x1024", "n": 3}, 510_000),
    (IMAGES, {"model": "pictures", "prompt": "x", "quality": "medium", "size": "1024x1536"}, 50_000),
    (IMAGES, {"model": "pictures", "prompt": "x", "quality": "medium", "size": "64x64"}, 170_000),
    (IMAGES, {"model": "pictures", "prompt": "x", "quality": "auto", "size": "1024x1536"}, 50_000),
    (IMAGES, {"model": "pictures", "prompt": "x"}, 170_000),
    (IMAGES, {"model": "plain", "prompt": "x", "n": 2, "size": "64x64"}, 81_000),
    (IMAGES, {"model": "gratis", "prompt": "x", "n": 2}, 0),
    (SPEECH, {"model": "voice", "input": "Grüß dich", "voice": "alloy", "instructions": "softly"}, 225),
]


@pytest.mark.parametrize(("path", "body", "cost"), ORDERED)
async def test_what_is_ordered_is_charged_by_its_unit(
    upstream: FakeUpstream, place: Place, path: str, body: dict[str, Any], cost: int
) -> None:
    async with serving(upstream, *place) as (gateway, token):
        answer = await post(gateway, token, path, body)
        assert answer.status == 200, answer.body
        if path == SPEECH:
            assert (answer.headers["content-type"], answer.body) == ("audio/mpeg", b"ID3" + body["input"].encode())
        else:
            assert len(json.loads(answer.body)["data"]) == body.get("n", 1)
        record = await last_end_record(gateway)
        assert await charged(gateway) == record.charge_micros == cost
        assert body["model"] == "gratis" or charge_of(record) == cost
        assert json.loads(upstream.requests[0].body) == body | (
            {"model": "theirs"} if body["model"] == "pictures" else {}
        )


@pytest.mark.parametrize("path", HEARD)
@pytest.mark.parametrize(("kind", "seconds"), [("json", 5), ("text", 5), ("verbose_json", 5)])
async def test_a_sound_is_charged_by_its_seconds_in_whichever_form_it_is_written_down(
    upstream: FakeUpstream, place: Place, path: str, kind: str, seconds: int
) -> None:
    async with serving(upstream, *place) as (gateway, token):
        sound = wav(4.5)
        fields = {"response_format": kind, "model": "ears", "language": "en"}
        answer = await send_form(gateway, token, path, fields | {"file": sound})
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"].startswith("text/plain" if kind == "text" else "application/json")
        assert await charged(gateway) == (await last_end_record(gateway)).charge_micros == seconds * 100
        (sent,) = upstream.requests
        assert sent.body == written(fields | {"model": "the longer name", "file": sound}, "border-7")
        assert sent.headers.getall("Content-Type") == [f"{FORM}; boundary=border-7"]


async def test_pictures_are_changed_by_a_form(upstream: FakeUpstream, place: Place) -> None:
    async with serving(upstream, *place) as (gateway, token):
        files = {"image[]": b"\x89PNG", "mask": b"\x89PNG"}
        answer = await send_form(gateway, token, EDITS, {"model": "plain", "prompt": "x", "n": 2} | files)
        assert (answer.status, len(json.loads(answer.body)["data"])) == (200, 2)
        assert await charged(gateway) == 81_000
        assert (await send_form(gateway, token, EDITS, {"model": "plain"} | files)).error["param"] == "prompt"
        like = {"model": "plain", "image": b"\x89PNG"}
        assert (await send_form(gateway, token, "/v1/images/variations", like)).status == 200
        assert await charged(gateway) == 81_000 + 41_000


UNPRICED: list[tuple[str, dict[str, Any]]] = [
    (IMAGES, {"model": "words", "prompt": "x"}),
    (SPEECH, {"model": "words", "input": "x", "voice": "v"}),
    (SPEECH, {"model": "plain", "input": "x", "voice": "v"}),
    ("/v1/chat/completions", {"model": "plain", "messages": [{"role": "user", "content": "hi"}], "stream": True}),
    ("/v1/embeddings", {"model": "voice", "input": "hi"}),
]


async def test_a_model_without_a_price_for_the_unit_is_not_served(upstream: FakeUpstream, place: Place) -> None:
    async with serving(upstream, *place) as (gateway, token):
        for path, body in UNPRICED:
            answer = await post(gateway, token, path, body)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found"), body
        assert upstream.requests == []
        assert await charged(gateway) == 0


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (SPEECH, {"model": "voice", "input": "x", "stream": True}, "stream", "not_served"),
    (IMAGES, {"model": "plain", "prompt": "x", "stream": "yes"}, "stream", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "n[]": 3}, "n[]", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "num_return_sequences": 3}, "num_return_sequences", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "n": 11}, "n", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "num_images": 3}, "num_images", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "N": 3}, "N", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "width": 4096}, "width", "invalid_request"),
    (IMAGES, {"model": "plain", "prompt": "x", "partial_images": 3}, "partial_images", "unpriced_option"),
    (IMAGES, {"model": "plain", "prompt": "x", "service_tier": "priority"}, "service_tier", "unpriced_option"),
    (IMAGES, {"model": "plain"}, "prompt", "invalid_request"),
    (SPEECH, {"model": "voice", "input": "x", "text": "a longer one"}, "text", "invalid_request"),
    (SPEECH, {"model": "voice", "input": "x", "voice": {"id": "voice_1"}}, "voice", "invalid_request"),
    (SPEECH, {"model": "voice", "input": ""}, "input", "invalid_request"),
]


async def test_what_nothing_bounds_is_refused(upstream: FakeUpstream, place: Place) -> None:
    async with serving(upstream, *place) as (gateway, token):
        for path, body, param, code in REFUSED:
            answer = await post(gateway, token, path, body)
            assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param), body
        assert upstream.requests == []


ENDINGS: dict[str, tuple[list[Step], int, int]] = {
    # What the upstream does: its script, the status, and how many channels are asked.
    "closes": ([Fin], 502, 1),
    "breaks off": ([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{", Fin], 502, 1),
    "is too slow": ([Hold], 504, 1),
    "answers with a page": ([b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"], 502, 2),
    "fails": ([b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"], 502, 2),
}


@pytest.mark.parametrize("path", [IMAGES, SPEECH])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_what_does_not_come_is_not_charged_and_not_ordered_twice(place: Place, path: str, ending: str) -> None:
    script, status, asked = ENDINGS[ending]
    body = {"model": "plain", "prompt": "x"} if path == IMAGES else {"model": "voice", "input": "x"}
    if path == SPEECH:
        script = [
            each.replace(b"application/json", b"audio/mpeg") if isinstance(each, bytes) else each for each in script
        ]
    async with Scripted(script) as one, Scripted(script) as other:
        yaml = FILE.format(url=one.base_url, operations=", ".join(SERVED), chain=CHAIN).replace(
            "models:",
            f'  two: {{base_url: "{other.base_url}", operations: [images, speech], timers: {{total: 0.5}}}}\nmodels:',
        )
        yaml = yaml.replace("channels: [up]", "channels: [up, two]").replace(
            "on_caller", "timers: {total: 0.5}, on_caller"
        )
        async with running(yaml, *place) as gateway:
            answer = await post(gateway, await gateway.token(), path, body)
            assert (answer.status, len(one.requests) + len(other.requests)) == (status, asked)
            assert await charged(gateway) == 0


STREAMED = [
    (IMAGES, {"model": "plain", "prompt": "x", "n": 2, "stream": True}, 81_000, "image_generation.completed", 2),
    (
        SPEECH,
        {"model": "voice", "input": "Hello", "voice": "alloy", "stream_format": "sse"},
        *(75, "speech.audio.done", 1),
    ),
    (
        EDITS,
        {"model": "plain", "prompt": "x", "image": b"\x89PNG", "stream": "true"},
        *(41_000, "image_edit.completed", 1),
    ),
    (HEARD[0], {"model": "ears", "stream": "true"}, 500, "transcript.text.done", 1),
]


@pytest.mark.parametrize(("path", "body", "cost", "last", "count"), STREAMED)
async def test_a_stream_passes_byte_for_byte_and_costs_what_an_answer_in_json_costs(
    upstream: FakeUpstream, place: Place, path: str, body: dict[str, Any], cost: int, last: str, count: int
) -> None:
    async with serving(upstream, *place) as (gateway, token):
        if path in (EDITS, *HEARD):
            answer = await send_form(gateway, token, path, body | ({"file": wav(4.5)} if path in HEARD else {}))
        else:
            answer = await post(gateway, token, path, body)
            assert json.loads(upstream.requests[0].body) == body
        assert (answer.status, answer.body.count(f"event: {last}".encode())) == (200, count)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert upstream.requests[0].headers["accept"] == "text/event-stream"
        record = await last_end_record(gateway)
        assert (record.outcome, record.error_code) == ("completed", "")
        assert await charged(gateway) == record.charge_micros == cost


async def test_a_stream_of_pictures_that_breaks_off_costs_what_was_ordered_and_ends_with_an_error(place: Place) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
    event = b'event: image_generation.completed\ndata: {"type":"image_generation.completed","b64_json":"AAAA"}\n\n'
    async with Scripted([head + event, Fin]) as upstream, serving(upstream, *place) as (gateway, token):
        body = {"model": "plain", "prompt": "x", "n": 2, "stream": True}
        answer = await post(gateway, token, IMAGES, body)
        assert answer.status == 200 and answer.body.startswith(event) and b'"error"' in answer.body
        assert await charged(gateway) == 81_000


async def test_a_picture_of_megabytes_passes_in_an_event(place: Place) -> None:
    data = b'{"type":"image_generation.completed","b64_json":"%b","usage":{"total_tokens":9}}' % (b"QUFB" * 1_000_000)
    event = b"event: image_generation.completed\ndata: " + data + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    async with Scripted([head + event, Fin]) as upstream, serving(upstream, *place) as (gateway, token):
        answer = await post(gateway, token, IMAGES, {"model": "plain", "prompt": "x", "stream": True})
        assert answer.body == event
        assert (await last_end_record(gateway)).outcome == "completed"
        assert await charged(gateway) == 41_000


async def test_a_caller_that_leaves_pays_for_what_is_made_all_the_same(place: Place) -> None:
    async with Scripted([Hold]) as upstream, serving(upstream, *place) as (gateway, token):
        body = json.dumps({"model": "plain", "prompt": "x", "n": 2}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token, body, path=IMAGES))
        await upstream.arrived.wait()
        writer.close()
        assert await charged(gateway) == 81_000


async def test_an_upstream_that_refuses_is_charged_nothing(upstream: FakeUpstream, place: Place) -> None:
    upstream.mode = "500"
    async with serving(upstream, *place) as (gateway, token):
        assert (await post(gateway, token, IMAGES, {"model": "plain", "prompt": "x"})).status == 502
        answer = await send_form(gateway, token, HEARD[0], {"model": "ears", "file": wav(1)})
        assert answer.status in (502, 503)
        assert await charged(gateway) == 0


async def test_by_openais_library(upstream: FakeUpstream, place: Place) -> None:
    async with (
        serving(upstream, *place) as (gateway, token),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=token, max_retries=0) as client,
    ):
        made = await client.images.generate(model="plain", prompt="a dot", n=2, size="1024x1024")
        assert len(made.data or ()) == 2
        changed = await client.images.edit(model="plain", prompt="another", image=("a.png", b"\x89PNG", "image/png"))
        assert len(changed.data or ()) == 1
        spoken = await client.audio.speech.create(model="voice", input="Hello", voice="alloy")
        assert spoken.content == b"ID3Hello"
        heard = await client.audio.transcriptions.create(
            model="ears", file=("a.wav", wav(2)), timestamp_granularities=["word"], response_format="verbose_json"
        )
        assert heard.text == "Hello there."
        drawn = [each.type async for each in await client.images.generate(model="plain", prompt="a dot", stream=True)]
        assert drawn == ["image_generation.partial_image", "image_generation.completed"]
        told = await client.audio.transcriptions.create(model="ears", file=("a.wav", wav(2)), stream=True)
        assert [each.type async for each in told] == ["transcript.text.delta", "transcript.text.done"]
        text = await client.audio.transcriptions.create(model="ears", file=("a.wav", wav(2)), response_format="text")
        assert str(text) == "Hello there."
        listed = json.loads((await ask(gateway.port, get("/v1/models/voice", token))).body)
        assert listed["pricing"] == {"request": "0", "character": "0.000015"}
        assert await charged(gateway) == 81_000 + 41_000 + 75 + 2 * 200 + 41_000 + 200


REDACTED = CHAIN.replace(
    "  - use: rate-limit", "  - use: redact\n  - use: stop-words\n    with: {words: [forbidden]}\n  - use: rate-limit"
)


async def test_texts_are_redacted_or_not_sent(upstream: FakeUpstream, place: Place) -> None:
    async with serving(upstream, *place, chain=REDACTED) as (gateway, token):
        assert (await post(gateway, token, IMAGES, {"model": "plain", "prompt": "of ann@example.com"})).status == 200
        assert b"ann@" not in upstream.requests.pop().body
        spoken = await post(gateway, token, SPEECH, {"model": "voice", "input": "call ann@example.com"})
        assert (spoken.status, spoken.body) == (200, b"ID3call [e-mail]")
        upstream.requests.clear()
        fields = {"model": "ears", "file": wav(1), "prompt": "ann@example.com speaks"}
        answer = await send_form(gateway, token, HEARD[0], fields)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
        assert upstream.requests == []
        assert (await send_form(gateway, token, HEARD[0], fields | {"prompt": "she speaks"})).status == 200
