"""The pages of the operator's port: HTML made on the server by templates, and a little JavaScript for what lives.

Imported by the process of that port alone, since the workers need no template engine. Pages do what they do by the actions of
`gateway.admin.actions`, with the scopes of who looks at them.
"""
