"""The YAML configuration file: its schema as frozen structs, the reader, and error messages with file and line.

Imports only `base` and `chat` from the rest of the gateway.
"""
