"""A session's tensors: their table, slots and memory, and the plans of operations on them."""
