"""The fairness table: what one account or one address can do to others, for each thing that callers share.

`python -m tests.bench.fairness --help` says how it is measured.
"""
