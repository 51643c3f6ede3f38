"""The kernels of every operation, a module per subject."""
