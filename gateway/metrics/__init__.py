"""Metrics: what is counted, in memory that all processes share, and how a scrape of it is answered.

Imports `store` and the layers below it.
"""
