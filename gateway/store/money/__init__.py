"""Balances: hold before the upstream is called, settle after it, each exactly once; and the proof that it was so.

Imports `errors`, `request_id`, `crash_points` and `store.client` from the rest of the gateway.
"""
