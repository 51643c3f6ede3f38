"""Transposed convolutions follow the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_server.backends.array.kernels.networks.module_kernels import WORKSPACE_BYTES
from support.layers import Convolution, convolutions, spread
from support.module_kernels import call_kernel, normal, run

OPTIONS: dict[str, Any] = {
    "stride": (2,),
    "padding": (0,),
    "padding_out": (0,),
    "dilation": (1,),
    "groups": 1,
}


@given(convolutions(transposed=True), st.sampled_from([1, 512, WORKSPACE_BYTES]))
@settings(deadline=None)
def test_a_transposed_convolution_matches_its_definition(
    layer: Convolution, workspace: int
) -> None:
    found = run(
        f"ConvTranspose{layer.rank}d",
        layer.x,
        layer.weight,
        layer.bias,
        **layer.options,
        settings={"workspace_bytes": workspace},
    )
    np.testing.assert_allclose(found, spread(layer), rtol=1e-10, atol=1e-10)


def test_a_transposed_convolution_is_the_adjoint_of_the_convolution() -> None:
    x, weight = normal(1, 2, 4, 9, 8), normal(2, 6, 2, 3, 2)
    options: dict[str, Any] = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
    y = run("Conv2d", x, weight, None, **options)
    probe = normal(3, *y.shape)
    # The remainders of the strides: (9 + 2 - 3) % 2 and (8 - 3) % 3.
    back = run("ConvTranspose2d", probe, weight, None, **options, padding_out=(0, 2))
    np.testing.assert_allclose(np.sum(y * probe), np.sum(x * back))


def test_output_padding_holds_only_the_bias() -> None:
    x, weight, bias = np.ones((1, 1, 2)), np.ones((1, 1, 1)), np.full(1, 5.0)
    found = run("ConvTranspose1d", x, weight, bias, **(OPTIONS | {"padding_out": (1,)}))
    np.testing.assert_array_equal(found, [[[6, 5, 6, 5]]])


@pytest.mark.parametrize(
    ("shapes", "changed", "words"),
    [
        (((1, 4), (4, 1, 3), None), {}, "shape of x .* expected 3 axes"),
        (((1, 4, 5), (4, 3), None), {}, "shape of weight .* expected 3 axes"),
        (((1, 4, 5), (3, 1, 3), None), {}, r"shape of weight .* expected \[4, 1, 3\]"),
        (((1, 4, 5), (4, 1, 3), (2,)), {}, r"shape of bias is \[2\], expected \[1\]"),
        (((1, 4, 5), (4, 1, 3), None), {"groups": 3}, "groups is 3, .* divisor of channels=4"),
        (((1, 4, 5), (4, 1, 0), None), {}, r"kernel_size is \[0\]"),
        (((1, 4, 0), (4, 1, 3), None), {}, r"spatial size of x is \[0\]"),
        (((1, 4, 5), (4, 1, 3), None), {"stride": (0,)}, r"stride is \[0\]"),
        (((1, 4, 5), (4, 1, 3), None), {"dilation": (0,)}, r"dilation is \[0\]"),
        (((1, 4, 5), (4, 1, 3), None), {"padding": (-1,)}, r"padding is \[-1, 0\]"),
        (
            ((1, 4, 5), (4, 1, 3), None),
            {"padding": (6,)},
            r"padding is \[6\], expected an output of 1 or more, not -1",
        ),
    ],
)
def test_a_mismatched_layer_is_refused_by_name(
    shapes: tuple[Any, ...], changed: dict[str, Any], words: str
) -> None:
    tensors = [None if shape is None else np.zeros(shape) for shape in shapes]
    with pytest.raises(ShapeMismatch, match=f"^ConvTranspose1d: {words}"):
        call_kernel("ConvTranspose1d", *tensors, **(OPTIONS | changed))
