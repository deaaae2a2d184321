"""The plugins in their order: checked when the chain is built, started, and run hook by hook for each exchange.

Imports `plugin` and what is below it. Nothing here knows a plugin by its name, or what a step does in the store.
"""
