"""Benchmarks that anyone can repeat; they assert nothing. `run` compares gateways, `endurance` looks for leaks, and `crowd`,
`settles`, `usage_log`, `admin_views`, `pages` and `live_page` each measure one thing."""
