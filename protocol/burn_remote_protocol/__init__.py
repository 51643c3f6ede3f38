"""The protocol: messages, operations and their bytes, which client and server share; links."""
