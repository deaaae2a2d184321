"""The operator's port and the portal over HTTP: connections, callers, the API and its description, writes that are done once."""
