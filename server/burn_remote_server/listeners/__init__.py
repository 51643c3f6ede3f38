"""The listening port: routes, connection limits and plain HTTP responses."""
