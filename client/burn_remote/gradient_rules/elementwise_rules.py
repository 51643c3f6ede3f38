"""Gradients of the extension rows for elementwise functions."""
