"""The comparison of configured prices with a public catalogue: `gateway prices import`."""
