"""Account balances: holds, settlements and credits, each exactly once; the ledger, its archive and its audit.

Imports `amounts`, `budgets`, `errors`, `request_id`, `durable`, `log`, `crash_points` and `store.client` from the rest of the
gateway.
"""
