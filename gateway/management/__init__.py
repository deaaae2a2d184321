"""What operators do with accounts, tokens, channels and the usage log: one table of operations, for HTTP, commands and pages alike.

Imports `server`, `tools`, `services`, `usage`, `store` and the packages below them.
"""
