"""Operations of half precision accumulate in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G

# The number of ones to sum: adding 1 has no effect from 256 in bfloat16 and 2,048 in float16, but
# both represent the sum.
MANY = 4096

Ones = Callable[..., br.Tensor]


def zeros_of(ones: Ones, *shape: int) -> br.Tensor:
    return (ones(*shape) - 1).astype(br.int64)


LONG_SUMS: dict[str, Callable[[Ones], br.Tensor]] = {
    "sum": lambda ones: ones(MANY).sum(),
    "sum of an axis": lambda ones: ones(2, MANY).sum(axis=1),
    "mean": lambda ones: ones(MANY).mean() * MANY,
    "cumulative sum": lambda ones: br.cumulative_sum(ones(MANY), axis=0)[-1],
    "matmul": lambda ones: ones(2, MANY) @ ones(MANY, 3),
    "linear": lambda ones: F.linear(ones(2, MANY), ones(3, MANY)),
    "conv1d": lambda ones: F.conv1d(ones(1, MANY, 2), ones(2, MANY, 1)),
    "conv2d": lambda ones: F.conv2d(ones(1, 64, 8, 8), ones(2, 64, 8, 8)),
    "conv3d": lambda ones: F.conv3d(ones(1, 8, 8, 8, 8), ones(2, 8, 8, 8, 8)),
    "transposed convolution": lambda ones: F.conv_transpose1d(ones(1, MANY, 1), ones(MANY, 2, 1)),
    "weight gradient of a convolution": lambda ones: G.conv_weight_backward(
        ones(1, 1, MANY), ones(1, 1, 1), ones(1, 1, MANY)
    ),
    "bias gradient of a linear layer": lambda ones: G.linear_bias_backward(ones(MANY, 2)),
    "average pool": lambda ones: F.avg_pool2d(ones(1, 1, 64, 64), 64) * MANY,
    "embedding gradient": lambda ones: G.embedding_backward(
        ones(1, 2), ones(1, MANY, 2), zeros_of(ones, 1, MANY)
    ),
    "scatter": lambda ones: br.scatter(
        ones(1) - 1, 0, zeros_of(ones, MANY), ones(MANY), update="add"
    ),
    "attention": lambda ones: (
        F.scaled_dot_product_attention(ones(1, 1, 1, 2), ones(1, 1, MANY, 2), ones(1, 1, MANY, 2))
        * MANY
    ),
    "fourier transform": lambda ones: F.rfft(ones(MANY))[0][0],
    "softmax": lambda ones: F.softmax(ones(MANY)).sum() * MANY,
}


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16], ids=str)
@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_are_exact(device: br.Device, name: str, dtype: br.DType) -> None:
    found = LONG_SUMS[name](lambda *shape: br.ones(shape, dtype=dtype, device=device))

    assert found.dtype is dtype
    assert set(found.numpy().astype(np.float64).reshape(-1)) == {MANY}
