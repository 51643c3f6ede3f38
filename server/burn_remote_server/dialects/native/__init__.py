"""The native dialect: its handshake, its session connections and its peer connections."""
