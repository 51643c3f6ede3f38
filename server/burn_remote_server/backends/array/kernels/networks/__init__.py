"""The kernels of neural-network modules, the operation family ``Module``."""
