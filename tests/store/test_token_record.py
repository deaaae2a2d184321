"""Records of tokens are read as they were written, and those of tokens without budgets and limits are as short as ever."""

from __future__ import annotations

import pytest

from gateway.domain.facts import NO_BUDGETS, NO_LIMITS, AccountLimits, Budgets
from gateway.store.tokens import Token, TokenRecord, TokenStatus, decode, encode, token_of

BEFORE = (
    b'{"digest":"AAEC","token":{"id":"alice-1a2b3c4d","name":"laptop","status":"active","created_at":5,"expires_at":null,'
    b'"last_used":null,"models":["a"],"addresses":[]}}'
)
"""A record without the fields `budgets` and `limits`."""


def test_a_token_that_was_replaced_or_replaces_one_has_its_links() -> None:
    links = {"replaces": "alice-00000001", "replaced_by": "alice-00000002", "counts_as": "alice-00000003"}
    record = decode(BEFORE).replaced(**links)
    assert decode(encode(record)) == record
    assert all(f'"{name}":"{value}"'.encode() in encode(record) for name, value in links.items())


@pytest.mark.parametrize("budgets", [NO_BUDGETS, Budgets(day=1), Budgets(1, 2, 3, 4, 5)])
@pytest.mark.parametrize("limits", [NO_LIMITS, AccountLimits(concurrent=1), AccountLimits(1, 2, 3)])
def test_what_was_written_is_read(budgets: Budgets, limits: AccountLimits) -> None:
    token = Token(id="alice-1a2b3c4d", created_at=1, budgets=budgets, limits=limits, addresses=("10.0.0.0/8",))
    record = TokenRecord(b"\x00\xff", token)
    assert decode(encode(record)) == record
    assert token_of(encode(record)) == token
    changed = record.replaced(status=TokenStatus.DISABLED).token
    assert (changed.status, changed.budgets, changed.limits) == (TokenStatus.DISABLED, budgets, limits)
