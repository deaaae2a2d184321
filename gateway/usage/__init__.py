"""The usage log: one record for each request, from the stream in the store to the files that answer questions.

Imports `store` and what lies below it; nothing here decides about a request.
"""
