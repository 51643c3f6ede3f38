"""Endurance runs: servers and clients in processes that start, work, crash and end."""
