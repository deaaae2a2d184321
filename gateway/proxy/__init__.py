"""One exchange from the chain to an upstream and back: attempts, failover, the relay of bytes, its end.

Imports `chain`, `metrics` and what lies below them; never the server.
"""
