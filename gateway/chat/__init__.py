"""The bytes of chat completions: request bodies, event streams, token counts. Sans-I/O: nothing here opens a socket.

Imports only `base` from the rest of the gateway.
"""
