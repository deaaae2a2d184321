"""Small plugins that people ask gateways for, one for each moment: to use as they are, or to begin your own from."""
