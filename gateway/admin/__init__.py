"""The operator's port: health, metrics, and what the usage log says, also live.

Imports `usage`, `metrics` and what lies below them.
"""
