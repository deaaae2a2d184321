"""The usage log: one record for each request, from the stream in the store to the files that are queried.

Imports `store`, `store.money` and the layers below them; nothing here decides about a request.
"""
