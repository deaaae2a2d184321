"""What is kept in Redis, each kind of thing in a file of its own with its `.lua` beside it."""
