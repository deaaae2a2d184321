"""The data in Redis: accounts, tokens, limits and channels, each in a module with its `.lua` files beside it.

`client` connects to Redis, `money` holds the balances. Imports only `config`, `errors` and `facts` from the rest of the
gateway; `money` also imports `request_id` and `crash_points`.
"""
