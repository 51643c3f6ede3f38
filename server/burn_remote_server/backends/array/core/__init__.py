"""What kernels are made of: array dtypes, forms of kernels, precision, scalars, rounding."""
