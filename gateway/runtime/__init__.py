"""The processes of one gateway: how they start, reload, do their background work and stop.

Imports `server` and what lies below it.
"""
