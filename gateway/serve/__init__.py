"""The composition of a gateway: the parent process, the processes around the workers, the demo, and the terminal.

Imports `admin` and what lies below it.
"""
