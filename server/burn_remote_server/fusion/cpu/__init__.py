"""The fusers of the NumPy backend."""
