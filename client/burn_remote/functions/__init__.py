"""What can be computed with tensors? The array API, and what the IR has beyond it."""
