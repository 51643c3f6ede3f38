"""The WebSocket transport: links over TCP and TLS, for threads and for event loops."""
