"""The transport over Iroh: QUIC between two keys, directly or through a relay."""
