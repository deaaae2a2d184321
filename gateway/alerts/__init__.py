"""Alerts: what happened is noted in memory, counted once a window by the store, and sent to the operator's webhook.

Imports `store` and the layers below it.
"""
