"""The native dialect: handshake, session connections and peer connections."""
