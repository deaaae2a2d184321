"""The diagnosis of a caller's way to the gateway: `gateway doctor`."""
