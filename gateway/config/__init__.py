"""The YAML file: read, checked against frozen structs, and explained where it is wrong.

Imports only `errors` from the rest of the gateway.
"""
