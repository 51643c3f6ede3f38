"""Fusion on GPUs: a run of element-wise operations becomes one CUDA kernel."""
