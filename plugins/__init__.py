"""The shipped plugins: thin, each turns the hooks of an exchange into calls of the store."""
