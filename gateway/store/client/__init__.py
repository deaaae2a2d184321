"""The Redis client: connections, the topologies (one server, Sentinel, cluster), steps, durability.

Imports only `base` and `config` from the rest of the gateway.
"""
