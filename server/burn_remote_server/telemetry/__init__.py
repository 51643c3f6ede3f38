"""Logs, counters and metrics of a server."""
