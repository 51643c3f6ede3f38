"""What is particular to CuPy: its missing functions, random numbers and matrix products."""
