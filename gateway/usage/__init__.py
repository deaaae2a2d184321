"""The usage log: one record for each request, from the stream in the store to the files that are queried.

Imports `store` and the layers below it; nothing here decides about a request.
"""
