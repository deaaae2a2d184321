"""A benchmark that anyone can repeat: `python -m tests.bench.run`. It asserts nothing."""
