"""The operator's port: health, metrics, the API over the table of actions, and pages.

Imports `tools` and what lies below it.
"""
