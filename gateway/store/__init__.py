"""The data in Redis: accounts, tokens, limits and channels, each in a module with its `.lua` files beside it.

`client` connects to Redis, `money` holds the balances.
Imports `store.client` and what lies below it.
"""
