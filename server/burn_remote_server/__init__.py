"""The daemon ``burn-remote-server``: sessions, workers, backends, transfers."""
