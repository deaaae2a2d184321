"""The operator's port: health, metrics, and the usage log as sums and as a live stream.

Imports `management`, `metrics` and the packages below them.
"""
