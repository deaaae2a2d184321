"""A token that is replaced shares its budgets and limits with its successor, and open streams finish where the operator says so."""

from __future__ import annotations

import asyncio

from gateway import Outcome
from gateway.domain.facts import AccountLimits, Budgets
from gateway.testing import Running
from tests.patience import PATIENCE_S, wait_until
from tests.whole.aftermath import charged, end_records, last_end_record
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import CHUNKED, LAST, Forever, Scripted, Step, chunk
from tests.whole.test_stream import STREAM, WORDS


async def test_a_successor_has_what_is_left_of_the_budgets_and_limits_of_its_predecessor(gateway: Running) -> None:
    await gateway.token()
    tokens = gateway.store.tokens
    old = await tokens.create("tester", budgets=Budgets(requests=3), limits=AccountLimits(requests_per_minute=1000))
    assert (await ask(gateway.port, chat(old.token))).status == 200
    new = await tokens.rotate(old.id, 3600)
    answers = [await ask(gateway.port, chat(text)) for text in (new.token, old.token, new.token, old.token)]
    assert [answer.status for answer in answers] == [200, 200, 402, 402]
    third = await tokens.rotate(new.id, 0)
    assert (await ask(gateway.port, chat(third.token))).error["code"] == "budget_exceeded"
    shown = (await ask(gateway.port, get("/v1/account", third.token))).body
    assert b'"used_requests":3' in shown
    assert (await ask(gateway.port, chat(new.token))).error["code"] == "token_expired"
    await tokens.change(third.id, budgets={"requests": None}, limits={"requests_per_minute": 4})
    taken = [await ask(gateway.port, chat(third.token)) for _ in range(5)]
    assert "429" in {str(answer.status) for answer in taken}
    assert (await ask(gateway.port, chat(third.token))).status == 429
    assert await gateway.store.wallet.verify("tester") == []


async def test_what_is_revoked_finishes_where_the_operator_chose_so(serve: Serve) -> None:
    gate = asyncio.Event()
    script: list[Step] = [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with Scripted(script) as upstream, serve(upstream.base_url, more="port: {open_streams: finish}") as gateway:
        token = await gateway.token()
        open_ = asyncio.create_task(ask(gateway.port, chat(token)))
        exchanges = gateway.gateway.runner.exchanges
        await wait_until(lambda: any(exchange.first_byte for exchange in exchanges))
        (known,) = await gateway.store.tokens.all_of("tester")
        await gateway.store.tokens.delete(known.id)
        assert (await ask(gateway.port, chat(token))).status == 401
        await asyncio.sleep(2.2)
        assert not open_.done()
        gate.set()
        answer = await asyncio.wait_for(open_, PATIENCE_S)
        await last_end_record(gateway)
        assert (answer.status, answer.whole) == (200, True)
        assert b"data: [DONE]" in answer.body
        assert b'"error"' not in answer.body
        (record,) = [each for each in await end_records(gateway) if each.id == answer.headers["x-request-id"]]
        assert record.outcome is Outcome.COMPLETED
        assert record.charge_micros == await charged(gateway) > 0
