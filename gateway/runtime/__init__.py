"""The processes of one gateway: how they start, reload, do their background work and stop.

Imports `server`, `admin`, `tools` and the packages below them.
"""
