"""Benchmarks that can be repeated; they assert nothing. `run` compares with others, `endurance` looks for what grows, `crowd`,
`settles` and `usage_log` each look at one thing."""
