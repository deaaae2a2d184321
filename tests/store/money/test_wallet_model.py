"""Random histories of an account on the real store, each step compared with a model.

`WALLET_EXAMPLES=5000 pytest tests/store/money/test_wallet_model.py --hypothesis-seed=N` runs the longer form.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.store.money.wallet_machine import WalletMachine


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
