"""What the commands do that serve no request: explain, doctor, exposure, reconcile, scaffold.

Imports `proxy`, `loading` and what lies below them.
"""
