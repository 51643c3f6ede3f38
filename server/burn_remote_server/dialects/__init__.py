"""The dialects of the wire: how each one serves its sockets."""
