"""Runners, through which every operation, transfer, read and drop of a device passes."""
