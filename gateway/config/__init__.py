"""The YAML configuration file: its schema as frozen structs, the reader, and error messages with file and line.

Imports only `errors` and `durable` from the rest of the gateway.
"""
