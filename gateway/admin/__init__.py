"""The operator's port: health, metrics, the API over the table of operations, and pages.

Imports `management`, `metrics` and the packages below them.
"""
