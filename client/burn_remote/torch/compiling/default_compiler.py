"""``torch.compile(f)`` without a backend: graphs on burn devices go to the backend ``burn_remote``.

PyTorch's default backend, inductor, cannot compile for burn devices, and fails inside its code
generator. Graphs without tensors on burn devices are left to it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

__all__ = ["compile_for_burn_devices"]


def compile_for_burn_devices() -> None:
    """Have the default backend of ``torch.compile`` pass graphs on burn devices to ours."""
    wrapper: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None or hasattr(wrapper.__call__, "__wrapped__"):
        return
    wrapper.__init__ = _prepared(wrapper.__init__)
    wrapper.__call__ = _chosen(wrapper.__call__)


def _backend() -> Any:
    # Imports dynamo, which PyTorch itself does when a program uses ``torch.compile``.
    return importlib.import_module("burn_remote.torch.compiling.dynamo_backend")


def _prepared(original: Any) -> Any:
    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _backend()  # tells dynamo how to trace tensors on burn devices

    return make


def _chosen(original: Any) -> Any:
    @functools.wraps(original)
    def compile_graph(self: Any, module: Any, inputs: Any, **options: Any) -> Any:
        backend = _backend()
        if backend.has_burn_tensors(module):
            return backend.burn_remote(module, inputs)
        return original(self, module, inputs, **options)

    return compile_graph
