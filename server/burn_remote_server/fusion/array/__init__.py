"""The fusers of array backends whose kernels take NumPy arrays."""
