"""The foundations of kernels: array dtypes, forms of kernels, precision, scalars and rounding."""
