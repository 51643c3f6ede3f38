"""Compiled functions: recorded once, and then issued as one graph per call."""
