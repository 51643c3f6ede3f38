"""Kernels of neural-network modules, one class per subject."""

from burn_remote_server.backends.array.kernels.module.subjects import SUBJECTS, module_families

__all__ = ["SUBJECTS", "module_families"]
