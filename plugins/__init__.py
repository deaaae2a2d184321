"""The shipped plugins. They are thin: their hooks call the store, and turn its results into decisions."""
