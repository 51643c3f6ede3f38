"""Runners, through which every operation, transfer, read, drop and storage task passes."""
