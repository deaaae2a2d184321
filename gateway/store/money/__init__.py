"""Account balances: holds, settlements and credits, each exactly once; the ledger, its archive and its audit.

Imports `store.client`, `domain` and `base` from the rest of the gateway.
"""
