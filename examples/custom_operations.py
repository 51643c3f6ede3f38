"""Custom operations, which a server executes and any client calls by name.

    PYTHONPATH=examples burn-remote-server --custom-operations custom_operations

Run as a program, this file calls them on a device in its own process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import burn_remote as br
from burn_remote import LocalDevice, TensorSpec
from burn_remote_server.custom import custom_operation


@custom_operation("swish_gate", inputs={"x": "float32 float64", "gate": "float32 float64"},
                  shapes=lambda x, gate: x)  # fmt: skip
def swish_gate(xp: Any, x: Any, gate: Any) -> Any:
    """Return ``x * gate / (1 + exp(-gate))`` with one temporary array instead of four."""
    result = xp.exp(-gate)
    result += 1
    xp.divide(gate, result, out=result)
    result *= x
    return result


def one_per_row(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """Return the output shapes of ``mean_and_spread``: the input's without the last axis."""
    if not x.shape:
        raise br.ShapeMismatch("x must have an axis")
    return TensorSpec(x.shape[:-1], x.dtype), TensorSpec(x.shape[:-1], x.dtype)


@custom_operation("mean_and_spread", inputs={"x": "float32 float64"}, outputs=("mean", "spread"),
                  shapes=one_per_row)  # fmt: skip
def mean_and_spread(xp: Any, x: Any) -> tuple[Any, Any]:
    """Return the mean of each row, and the difference of its largest and smallest elements."""
    return x.mean(axis=-1), xp.max(x, axis=-1) - xp.min(x, axis=-1)


def main() -> None:
    """Call both operations without a server."""
    with LocalDevice(custom_operations=[swish_gate, mean_and_spread]) as device:
        x = device.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        gated = br.custom("swish_gate", x, x, outputs=TensorSpec(x.shape, x.dtype))
        rows = TensorSpec((2,), x.dtype)
        mean, spread = br.custom("mean_and_spread", gated, outputs=[rows, rows])
        print(mean.numpy(), spread.numpy())


if __name__ == "__main__":
    main()
