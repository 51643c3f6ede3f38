"""A session's tensors: their table, their slots and their memory."""
