"""Mutation tests of the wallet's model: it must detect each script with one deliberate fault."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.base.errors import GatewayError
from gateway.store.money.scripts import script
from tests.store.money.wallet_machine import REAL_CLOCK, REAL_STAMP, WalletMachine

MUTANTS: dict[str, tuple[str, str] | tuple[str, str, int]] = {
    "ends are trimmed while the id is fresh": ("now - keep - 2 * skew", "now - skew", 2),
    "a repeated hold is not recognised": (
        'return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT", hold.marks)',
        "",
    ),
    "another request may use the hold": ("hold.fingerprint == fingerprint", "true"),
    "a resolved request may be held again": ("if end_in(record) then", "if false then"),
    "any id may be held": ("math.abs(arrived - now) > skew", "false"),
    "a resolved request may be settled again": ('past and past.kind ~= "expire"', "false", 3),
    "an old request is charged": ("arrived < now - keep or arrived > now + skew", "false"),
    "the charge of an expiry is not deducted": ("past.charged - cost", "-cost", 3),
    "the end of a late settlement is not stored": ('change(account, request_id, "1 late " .. digits(cost))', ""),
    "holds do not reduce the available balance": ("account.balance - account.held +", "account.balance +"),
    "the credit line is not counted": ("- account.held + credit_line", "- account.held"),
    "overdue holds stay": ("account.holds > 0 and account.due <= now", "false"),
    "a hold expires one millisecond late": ('leases, "-inf", now', 'leases, "-inf", "(" .. digits(now)'),
    "expiry charges nothing": ('"expire", hold.floor, hold', '"expire", 0, hold'),
    "a settlement does not reduce the sum of holds": ("account.held - hold.amount", "account.held"),
    "one hold too many": ("account.holds >= max_holds", "account.holds > max_holds"),
    "an extension is not saved": ('(.*)$"))\nsave(account)', '(.*)$"))'),
    "an extension is not stored": ('change(account, request_id, raised .. record:match("^1 %d+ %d+ %d+(.*)$"))', ""),
    "an extension adds the whole amount": ("local more = amount - hold.amount", "local more = amount"),
    "an earlier extension that is repeated lowers the hold": ("more <= 0", "more == 0", 6),
    "an extension does not need the balance": ("account.balance - account.held + credit_line < more", "false", 6),
    "an extension does not count the credit line": ("- account.held + credit_line < more", "- account.held < more", 6),
    "an extension does not count other holds": (
        "- account.held + credit_line < more",
        "- hold.amount + credit_line < more",
        4,
    ),
    "an extension does not add to the sum of holds": ("account.held = account.held + more", ""),
    "a suspended account extends its holds": (
        'if status ~= "active" then\n  return reply("INACTIVE")\nend\nif account.balance - account.held + credit_line < more',
        "if account.balance - account.held + credit_line < more",
        81,
    ),
    "an overdue hold is extended": ("if hold.expiry <= clock() then -- the next", "if false then -- the next", 6),
    "a resolved request is taken for a lost one": ('reply(end_in(record) and "DONE" or "LOST")', 'reply("LOST")'),
    "an extension prolongs the lease": ("amount, hold.expiry, math", "amount, hold.expiry + 1, math", 6),
    "an extension does not raise the floor": ("math.max(floor, hold.floor)", "hold.floor"),
    "an extension lowers the floor": ("math.max(floor, hold.floor)", "floor", 6),
    "an extension forgets whose hold it is": ('record:match("^1 %d+ %d+ %d+(.*)$")', '" another"', 6),
    "a credit may be repeated": ('redis.call("HGET", credits, transaction)', "false", 3),
    "zero is written as minus zero": ('string.format("%d", number)', 'string.format("%.0f", number)'),
    "a hold is not saved": ("expiry, request_id)\nsave(account)", "expiry, request_id)"),
    "a settlement is not saved": ("if #account.changed > 0 then\n  save(account)", "if false then\n  save(account)"),
    "expiry by a hold is not saved": ("if #over > 0 then\n    save(account)", "if false then\n    save(account)", 6),
    "expiry by a sweep is not saved": ("if #over > 0 or #account.changed > 0 then", "if false then"),
    "an end is not stored": ("    change(account, request_id, stored)\n", ""),
    "a hold is not stored": (
        'change(account, request_id, string.format("1 %d %d %d %s", amount, expiry, floor, fingerprint))',
        "",
    ),
    "what is due is not brought forward": ("account.holds == 0 or expiry < account.due", "account.holds == 0"),
    "what is due after an expiry is not known": (
        'account.due = tonumber(redis.call("ZRANGE", leases, 0, 0, "WITHSCORES")[2] or 0)',
        "account.due = MOST",
    ),
    "a hold that was ended is read as before": (
        '    save(account)\n    record = redis.call("HGET", wallet_key, request_id)',
        "    save(account)",
        6,
    ),
    "an end that was trimmed is read as before": (
        'trim(account, now, keep, skew) then\n  record = redis.call("HGET", wallet_key, request_id)',
        "trim(account, now, keep, skew) then",
    ),
    "a credit is not saved": ("reason)\nsave(account)", "reason)"),
    "the balance is not saved": ('%d %d %d", account.balance, ', '%d %d %d", 0, '),
    "the sum of holds is not saved": ("account.balance, account.held, ", "account.balance, 0, "),
    "the number of holds is not saved": ("account.held, account.holds, ", "account.held, 0, "),
    "what is due is not saved": ("account.holds, account.due)", "account.holds, MOST)"),
    "ends are never trimmed": ("if #old > 0 then", "if false then"),
    "a settlement trims no ends": ('request_id:find("[08]$") and', "false and"),
    "ends are not deleted": ("    if #request_ids > 0 then\n      redis.call", "    if false then\n      redis.call"),
    "transactions are taken for requests": ('kind ~= "credit" and kind ~= "adjust" and kind', "kind", 7),
    "the line up to which ends were deleted is not stored": ('change(account, "trimmed", old[#old][1])', ""),
    "the ends of archived lines stay": (
        'if #request_ids > 0 then\n  redis.call("HDEL"',
        'if false then\n  redis.call("HDEL"',
        6,
    ),
    "trimmed lines are not counted": ('redis.call("HSET", wallet_key, "archived", archived)', ""),
    "counted lines are not trimmed": ('redis.call("XTRIM", ledger, "MINID", "=", ', "string.len("),
    "all lines are trimmed": ('"MINID", "=", ms .. "-" .. digits(tonumber(number) + 1)', '"MAXLEN", 0'),
    "only the last page is counted": ("total = total + amount", "total = amount"),
    "archived credits are counted as charges": ('fields.kind == "credit" or fields.kind == "adjust"', "false"),
    "an archived page may be counted again": ('(redis.call("HGET", wallet_key, "archived") or "") ~= before', "false"),
    "young lines are archived": ("tonumber(ms) >= clock() - keep - 2 * skew", "false"),
    "a budget refuses nothing": ("sum + added > ARGV[8 + budgets + index] + 0", "false"),
    "a budget cannot be used up": (
        "sum + added > ARGV[8 + budgets + index]",
        "sum + added >= ARGV[8 + budgets + index]",
    ),
    "a request that costs nothing is refused by a budget of money": ("added > 0 and sum + added", "sum + added", 3),
    "a request that costs nothing needs a balance": ("and (amount > 0 or budgets == 0)", "", 25),
    "a hold counts in no budget": ("count(account, marks, amount, 1)", "", 2),
    "a hold has no marks": ("fingerprint = fingerprint .. text", ""),
    "a hold that is repeated returns no marks": ('"HELD" or "CONFLICT", hold.marks)', '"HELD" or "CONFLICT")'),
    "budgets are not saved": ("for field in pairs(account.counted) do", "for field in pairs({}) do"),
    "a budget counts one window for ever": ('ends == "" or ends + 0 <= now or', 'ends == "" or', 1),
    "a window begins with the sum of the last": (
        "ends, sum = first_after(now, windows), 0\n",
        "ends = first_after(now, windows)\n",
        7,
    ),
    "a window that has not ended begins again": (
        'ends == "" or ends + 0 <= now or',
        'ends == "" or not windows:find(ends, 1, true) or',
        4,
    ),
    "a request counts in the latest window": (
        "ends, sum = first_after(now, windows), 0",
        "ends, sum = windows:sub(-13), 0",
        4,
    ),
    "what was held in a window that is over is settled in the next": (
        "more ~= 0 and account.ends[field] == marks.ends[index] then",
        "more ~= 0 then",
        8,
    ),
    "an extension counts in no budget": ("count(account, marks, more, 0)", "", 4),
    "an extension counts as another request": ("count(account, marks, more, 0)", "count(account, marks, more, 1)", 2),
    "an extension is refused by no budget": ("if limit and account.ends", "if false and account.ends", 4),
    "an extension needs the budget for all of its amount": (
        "account.sums[field] + more > limit",
        "account.sums[field] + amount > limit",
        4,
    ),
    "an extension uses a budget up but for a micro": (
        "account.sums[field] + more > limit",
        "account.sums[field] + more >= limit",
        4,
    ),
    "a settlement changes no budget": (
        "count(account, marks, charge - (hold",
        "count(account, {fields = {}}, charge - (hold",
    ),
    "a settlement counts beside its hold": ("charge - (hold and hold.amount or 0)", "charge", 1),
    "a released request counts": ("(answered and 1 or 0) - (hold and 1 or 0)", "(hold and 0 or 1)", 1),
    "an expired hold loses its marks": ('kind == "expire" and stored .. " " .. marks.text or stored', "stored", 4),
    "a late settlement changes no budget": (
        "    count(account, marks, cost - past.charged, answered and 1 or 0)\n",
        "",
        6,
    ),
    "a late settlement counts what expiry has charged again": ("marks, cost - past.charged,", "marks, cost,", 6),
    "a late request does not count": ("cost - past.charged, answered and 1 or 0)", "cost - past.charged, 0)", 6),
    "an orphan begins no window": ("if account.ends[field] < marks.ends[index] then", "if false then", 18),
    "a settlement counts by the marks of its gateway alone": ("if own and not (given", "if false and not (given", 12),
    "a line of the ledger has no marks": ("return answered and marks.text or", 'return "" or', 4),
    "the line of a released request has the mark of a request": (
        "return answered and marks.text or",
        "return marks.text or",
        1,
    ),
    "arguments are not checked": ("number < least or number > most", "false", 1),
}
"""The text and what is in its place; and a seed with which a few histories are enough, where others need dozens or hundreds.

A change of the model may need others: then such a mutant takes minutes.
"""


HISTORIES = settings(
    max_examples=3000,  # the run stops at the first failure
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
FEW = settings(HISTORIES, max_examples=12, derandomize=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_detects(store_url: str, name: str) -> None:
    class Mutant(WalletMachine):
        url = store_url

    text, other, *seeds = MUTANTS[name]
    Mutant.mutation = (text, other)
    texts = [script(name).text for name in ("hold", "extend", "settle", "credit", "sweep", "archive")]
    assert any(text in each for each in texts), "the scripts changed: there is nothing to replace"
    assert all(REAL_CLOCK in each and REAL_STAMP in each for each in texts), (
        "the scripts changed: the clock is not the test's"
    )
    with pytest.raises((AssertionError, GatewayError, ExceptionGroup)):
        for each in seeds:
            run_state_machine_as_test(seed(each)(Mutant), settings=FEW)
        run_state_machine_as_test(Mutant, settings=HISTORIES)
