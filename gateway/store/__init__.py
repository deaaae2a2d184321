"""The data in Redis: accounts, tokens, limits and channels, each in a module with its `.lua` files beside it.

`client` connects to Redis, `money` holds the balances.
Imports `store.client`, `config`, `errors`, `facts`, `log` and `crash_points` from the rest of the gateway.
"""
