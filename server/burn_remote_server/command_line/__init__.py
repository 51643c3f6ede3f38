"""The command burn-remote-server: its arguments, its process, its signals and its health check."""
