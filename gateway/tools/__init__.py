"""Tools beside the requests: explain, doctor, the check of ledgers, prices against a catalogue, bills against the usage log.

Imports `proxy` and what lies below it.
"""
