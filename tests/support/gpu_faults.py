"""A ``--custom-operations`` module that makes a server's process lose its GPU."""

from __future__ import annotations

from typing import Any

from burn_remote_server.custom import custom_operation

__all__ = ["write_nowhere"]

SOURCE = """
extern "C" __global__ void write_nowhere(float* x) { *reinterpret_cast<float*>(16) = x[0]; }
"""


@custom_operation("write_nowhere", inputs={"x": "float32"}, shapes=lambda x: x)
def write_nowhere(xp: Any, x: Any) -> Any:
    """Write to an invalid address: CUDA then refuses all further calls of the process."""
    xp.RawKernel(SOURCE, "write_nowhere")((1,), (1,), (x,))
    return xp.empty_like(x)
