"""The Redis client: connections, the topologies (one server, Sentinel, cluster), and the embedded server.

Imports only `compiled`, `errors`, `log` and `durable` from the rest of the gateway.
"""
