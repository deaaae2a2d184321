"""What the commands do that serve no request: explain, doctor, exposure, ledger check, scaffold; prices against
a catalogue, and bills against the usage log.

Imports `proxy`, `loading` and what lies below them.
"""
