"""The caller's side: connections, request heads and bodies, and what the gateway answers by itself.

Imports `proxy` and what lies below it.
"""
