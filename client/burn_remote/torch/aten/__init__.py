"""The table of aten operations, as functions of ``burn_remote`` tensors, by subject."""
