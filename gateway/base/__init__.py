"""The ground of all packages: errors, ids, amounts, addresses, texts, loggers, files that survive, and processes that are forked.

Imports nothing else of the gateway.
"""
