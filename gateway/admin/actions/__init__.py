"""Actions of operators on accounts, tokens, channels and the usage log: one table of actions, for HTTP, commands and pages.

Imports `tools` and what lies below it.
"""
