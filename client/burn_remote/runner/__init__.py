"""Runners: what every operation, transfer, read and drop of a device passes through."""
