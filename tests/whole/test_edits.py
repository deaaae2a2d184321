"""A request that a plugin changes: the upstream, the counters, the charge and the record have it as changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway import Caller, Exchange, Operation, Outcome, Plugin
from gateway.testing import Running, running
from gateway.tools.explain import explain
from tests.patience import wait_until
from tests.place import Place
from tests.whole.aftermath import CREDIT, last_end_record
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import Answer, ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk
from tests.whole.test_stream import STREAM

DROP = "drop"


class Edits(Plugin):
    """Changes what the header `x-edit` says."""

    requires = (Caller,)
    edits = True

    async def on_request(self, exchange: Exchange) -> None:
        wanted = exchange.request.headers.get("x-edit")
        if wanted and exchange.request.operation is Operation.CHAT:
            fields = json.loads(wanted)
            await exchange.edit(
                {k: v for k, v in fields.items() if v != DROP}, drop=[k for k, v in fields.items() if v == DROP]
            )

    async def explain(self, exchange: Exchange) -> str:
        await self.on_request(exchange)
        return "as the header says"


class Undeclared(Edits):
    """Changes what the header says, and does not declare it."""

    edits = False


def with_plugins(base_url: str, *plugins: str, more: str = "") -> str:
    used = "".join(f"  - use: {plugin}\n" for plugin in plugins)
    return configuration(
        base_url, chain=CHAIN.replace("  - use: rate-limit\n", f"{used}  - use: rate-limit\n"), more=more
    )


@pytest.fixture
async def upstream() -> AsyncIterator[Scripted]:
    async with Scripted([CHUNKED + chunk(STREAM) + LAST]) as scripted:
        yield scripted


@pytest.fixture
async def gateway(upstream: Scripted, store_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    yaml = with_plugins(
        upstream.base_url,
        "'tests.whole.test_edits:Edits'",
        "redact",
        more="port: {allow_non_streaming: true, max_body: 300000}",
    )
    async with running(yaml, tmp_path, store_url) as whole:
        yield whole


async def edited(gateway: Running, token: str, fields: dict[str, Any], body: Any = None) -> Answer:
    return await ask(gateway.port, chat(token, body, headers={"x-edit": json.dumps(fields)} if fields else {}))


def sent(upstream: Scripted) -> bytes:
    return upstream.requests[-1].partition(b"\r\n\r\n")[2]


async def test_the_upstream_gets_the_changed_body_and_the_record_says_by_whom(
    gateway: Running, upstream: Scripted
) -> None:
    token = await gateway.token()
    raw = b'{"model":"words","stream":true,"user":"u","top_p":1.0e0,"messages":[{"role":"user","content":"\\u0068i"}]}'
    assert (await edited(gateway, token, {}, raw)).whole
    unedited, record = sent(upstream), await last_end_record(gateway)
    assert b'"top_p":1.0e0,"messages":[{"role":"user","content":"\\u0068i"}]' in unedited
    assert (record.changed_by, record.requested_model) == ([], "")

    assert (await edited(gateway, token, {"seed": 7, "user": DROP}, raw)).whole
    changed = unedited.replace(b'"user":"u",', b"").replace(b'\\u0068i"}]', b'\\u0068i"}],"seed":7')
    assert sent(upstream) == changed != unedited
    record = await last_end_record(gateway)
    assert (record.changed_by, record.requested_model) == (["tests.whole.test_edits:Edits"], "")

    mail = [{"role": "user", "content": "write to ann@example.org"}]
    assert (await edited(gateway, token, {"messages": mail})).whole
    assert b'"messages":[{"role":"user","content":"write to [e-mail]"}]' in sent(upstream)
    assert (await last_end_record(gateway)).changed_by == ["tests.whole.test_edits:Edits", "redact"]
    assert b"example.org" not in sent(upstream)


async def test_routing_rights_and_price_are_those_of_the_model_that_a_plugin_chose(
    gateway: Running, upstream: Scripted
) -> None:
    token = await gateway.token()
    assert (await edited(gateway, token, {"model": "other"})).whole
    assert b'"model":"renamed"' in sent(upstream)
    record = await last_end_record(gateway)
    assert (record.model, record.requested_model, record.outcome) == ("other", "words", Outcome.COMPLETED)

    hidden = await edited(gateway, token, {"model": "hidden"})
    assert (hidden.status, hidden.error["code"]) == (404, "model_not_found")
    record = await last_end_record(gateway)
    assert (record.model, record.requested_model, record.refused_by) == ("hidden", "words", "model-routing")

    unknown = await edited(gateway, token, {"model": "words"}, {"model": "no-such-model"})
    assert unknown.whole
    record = await last_end_record(gateway)
    assert (record.model, record.requested_model) == ("words", "no-such-model")


async def test_what_counts_tokens_and_holds_money_sees_the_body_as_changed(gateway: Running) -> None:
    token = await gateway.token(credit=500)
    assert (await edited(gateway, token, {}, {"max_tokens": 100})).whole
    refused = await edited(gateway, token, {"max_tokens": 400}, {"max_tokens": 100})
    assert (refused.status, refused.error["code"]) == (402, "insufficient_balance")
    long = await edited(gateway, token, {"messages": [{"role": "user", "content": "x" * 2000}]}, {"max_tokens": 1})
    assert (long.status, long.error["code"]) == (402, "insufficient_balance")


async def test_a_change_that_is_not_valid_is_the_plugins_fault_and_one_that_is_too_large_the_callers(
    gateway: Running, upstream: Scripted
) -> None:
    token = await gateway.token()
    invalid = await edited(gateway, token, {"messages": []})
    assert (invalid.status, invalid.error["code"]) == (500, "internal_error")
    record = await last_end_record(gateway)
    assert (record.outcome, record.refused_by) == (Outcome.INTERNAL_ERROR, "tests.whole.test_edits:Edits")
    delivery = await edited(gateway, token, {"stream": False})
    assert delivery.status == 500
    content = [{"role": "user", "content": "x" * 290_000}]
    large = {"messages": content}
    assert (await edited(gateway, token, {"seed": 1}, large)).whole
    assert b'"seed":1' in sent(upstream)
    assert len(sent(upstream)) > 290_000
    grown = await edited(gateway, token, {"user": "u" * 20_000}, large)
    assert (grown.status, grown.error["code"]) == (413, "body_too_large")
    await wait_until(lambda: not gateway.gateway.budget.reserved)


async def test_explain_shows_the_change_and_goes_on_with_it(gateway: Running) -> None:
    headers = [("Authorization", f"Bearer {await gateway.token()}"), ("x-edit", '{"model":"other","user":"drop"}')]
    body = b'{"model":"words","stream":true,"user":"u","messages":[{"role":"user","content":"to ann@example.org"}]}'
    explained = await explain(gateway.gateway.chain, headers, body, gateway.gateway._rules, "127.0.0.1")
    changes = {each.plugin: each.changes for each in explained.plugins if each.changes}
    assert changes == {
        "tests.whole.test_edits:Edits": ['-model: "words"', '+model: "other"', '-user: "u"'],
        "redact": ['-    "content": "to ann@example.org"', '+    "content": "to [e-mail]"'],
    }
    assert [(choice.channel, choice.model) for choice in explained.channels] == [("fake", "renamed")]
    assert explained.served


async def test_a_plugin_that_does_not_declare_its_change_is_named(
    upstream: Scripted, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = with_plugins(upstream.base_url, "'tests.whole.test_edits:Undeclared'")
    async with running(yaml, *place) as gateway:
        token = await gateway.token()
        assert (await edited(gateway, token, {})).whole
        refused = await edited(gateway, token, {"seed": 1})
        assert (refused.status, refused.error["code"]) == (500, "internal_error")
        record = await last_end_record(gateway)
        assert record.refused_by == "tests.whole.test_edits:Undeclared"
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        assert account.balance_micros > CREDIT - 1000
    assert "changes the request without declaring it: write `edits = True` in Undeclared" in capsys.readouterr().out
