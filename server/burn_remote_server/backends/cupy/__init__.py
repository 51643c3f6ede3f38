"""The CuPy backend: the array kernels on CUDA GPUs, and the kernels that CuPy lacks."""
