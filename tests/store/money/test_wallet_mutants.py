"""Mutation tests of the wallet's model: it must detect each script with one deliberate fault."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.errors import GatewayError
from gateway.store.money.scripts import script
from tests.store.money.wallet_machine import REAL_CLOCK, REAL_STAMP, WalletMachine

MUTANTS = {
    "ends are trimmed while the id is fresh": ("now - keep - 2 * skew", "now - skew"),
    "a repeated hold is not recognised": ('return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT")', ""),
    "another request may use the hold": ("hold.fingerprint == fingerprint", "true"),
    "a resolved request may be held again": ("if end_of(request_id) then", "if false then"),
    "any id may be held": ("math.abs(born - now) > skew", "false"),
    "a resolved request may be settled again": ('past and past.kind ~= "expire"', "false"),
    "an old request is charged": ("born < now - keep or born > now + skew", "false"),
    "the charge of an expiry is not deducted": ("past.charged - cost", "-cost"),
    "the end of a late settlement is not stored": (
        '"HSET", ended, request_id, "1 late "',
        '"HGET", ended, request_id .. "1 late "',
    ),
    "holds do not reduce the available balance": ("account.balance - account.held +", "account.balance +"),
    "the credit line is not counted": ("- account.held + account.credit_line", "- account.held"),
    "overdue holds stay": ("expire(account, now, 16)", "{}"),
    "a hold expires one millisecond late": ('leases, "-inf", now', 'leases, "-inf", "(" .. digits(now)'),
    "expiry charges nothing": ('"expire", hold.floor, now)', '"expire", 0, now)'),
    "a settlement does not reduce the sum of holds": ("account.held - hold.amount", "account.held"),
    "one hold too many": ("account.holds >= most_holds", "account.holds > most_holds"),
    "a credit may be repeated": ('redis.call("HGET", credits, transaction)', "false"),
    "zero is written as minus zero": ("number + 0", "number"),
    "a hold is not saved": ("now + lease, request_id)\nsave(account)", "now + lease, request_id)"),
    "a settlement is not saved": ("kind, cost, now)\n  save(account)", "kind, cost, now)"),
    "a late settlement is not saved": ("past.charged - cost)\n  save(account)", "past.charged - cost)"),
    "an orphan's settlement is not saved": ('"orphan", cost, now)\nsave(account)', '"orphan", cost, now)'),
    "expiry is not saved": ("save(account)\n  return over", "return over"),
    "a credit is not saved": ("reason)\nsave(account)", "reason)"),
    "the balance is not saved": ('"balance", account.balance, ', ""),
    "the sum of holds is not saved": ('"held", account.held, ', ""),
    "the number of holds is not saved": (', "holds", account.holds', ""),
    "ends are never trimmed": ("if #old > 0 then", "if false then"),
    "a settlement trims no ends": ('request_id:find("[08]$")', "false"),
    "ends are trimmed except their times": ('redis.call("ZREM", ended_at, unpack(old))', ""),
    "ends are trimmed except their charges": ('redis.call("HDEL", ended, unpack(old))', ""),
    "trimmed lines are not counted": ('redis.call("HSET", account_key, "archived", archived)', ""),
    "counted lines are not trimmed": ('redis.call("XTRIM", ledger, "MINID", "=", ', "string.len("),
    "all lines are trimmed": ('"MINID", "=", ms .. "-" .. digits(tonumber(number) + 1)', '"MAXLEN", 0'),
    "only the last page is counted": ("total = total + amount", "total = amount"),
    "archived credits are counted as charges": ('fields.kind == "credit" or fields.kind == "adjust"', "false"),
    "an archived page may be counted again": ('(redis.call("HGET", account_key, "archived") or "") ~= before', "false"),
    "young lines are archived": ("tonumber(ms) >= clock() - keep - 2 * skew", "false"),
    "arguments are not checked": ("number < least or number > most", "false"),
}


@pytest.mark.parametrize("mutation", MUTANTS.values(), ids=MUTANTS)
def test_the_model_detects(store_url: str, mutation: tuple[str, str]) -> None:
    class Mutant(WalletMachine):
        url = store_url

    Mutant.mutation = mutation
    texts = [script(name).text for name in ("hold", "settle", "credit", "sweep", "archive")]
    assert any(mutation[0] in text for text in texts), "the scripts changed: there is nothing to replace"
    assert all(REAL_CLOCK in text and REAL_STAMP in text for text in texts), (
        "the scripts changed: the clock is not the test's"
    )
    with pytest.raises((AssertionError, GatewayError, ExceptionGroup)):
        run_state_machine_as_test(
            Mutant,
            settings=settings(
                max_examples=3000,  # the run stops at the first failure
                stateful_step_count=40,
                phases=[Phase.generate],
                derandomize=True,
                report_multiple_bugs=False,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
