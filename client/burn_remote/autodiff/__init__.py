"""Automatic differentiation: recording operations on tracked tensors, and the backward pass."""
