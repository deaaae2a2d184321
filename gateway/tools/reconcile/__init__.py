"""The comparison of an upstream's bill with the usage log: `gateway reconcile`."""
