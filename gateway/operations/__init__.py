"""The operations of upstreams, each with its wire format: path, body, answer and errors. Sans-I/O: nothing here opens a socket.

Imports `config` and what lies below it.
"""
