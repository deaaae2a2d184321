"""Small example plugins, one for each hook: to use as they are, or to start your own from."""
