"""Validation and conversion of arguments: numbers, axes and shapes, dtypes, NumPy arrays."""
