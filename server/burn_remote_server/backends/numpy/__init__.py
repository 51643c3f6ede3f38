"""The NumPy backend: the array kernels on the CPU."""
