"""Benchmarks that anyone can repeat; they assert nothing. `run` compares gateways, `endurance` looks for leaks, and `crowd`,
`settles` and `usage_log` each measure one thing."""
