"""Explanations of invalid calls, and names of other libraries with our equivalents."""
