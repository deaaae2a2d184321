"""Random histories of an account on the real store, each step compared with a model.

`WALLET_EXAMPLES=5000 pytest tests/store/money/test_wallet_model.py --hypothesis-seed=N` runs the longer form.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.store.money.wallet_machine import LEASE_MS, SESSIONS, SKEW_MS, WalletMachine


def test_no_history_charges_twice_loses_a_charge_or_leaks_a_hold(store_url: str) -> None:
    class Machine(WalletMachine):
        url = store_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=int(os.environ.get("WALLET_EXAMPLES", "60")),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_session_counts_on_where_the_stores_clock_steps_back(store_url: str) -> None:
    class Machine(WalletMachine):
        url = store_url

    machine = Machine()
    machine.open()
    machine.limits = {"Q" + SESSIONS[0]: 2}
    for error_ms in (SKEW_MS, 0, 0):
        machine.time_passes_and_clocks_jump(1, error_ms)
        machine.requests_arrive_and_are_held(0, [1], 0, "", LEASE_MS)
    machine.teardown()
