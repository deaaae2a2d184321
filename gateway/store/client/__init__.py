"""How the store is reached: connections, the shapes a store may have, and the embedded server.

Imports only `errors` and `config` from the rest of the gateway.
"""
