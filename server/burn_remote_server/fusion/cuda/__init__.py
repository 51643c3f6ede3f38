"""Fusion on GPUs: element-wise operations and reductions become one CUDA kernel."""
