"""The shipped plugins: thin, each turns the moments of an exchange into calls of the store."""
