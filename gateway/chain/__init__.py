"""The plugins in their order: checked when the chain is built, started, and run hook by hook for each exchange.

Imports `usage`, `metrics`, `alerts` and what lies below them.
Nothing here knows a plugin by its name, or what a step does in the store.
"""
