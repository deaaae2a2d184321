"""Small plugins that people ask gateways for, one for each hook: to use as they are, or to begin your own from."""
