"""Limits by a row give the bits of limits by the number itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.number_limits import limited_by_row, takes_row
from burn_remote_server.backends.numpy.backend import NumpyBackend
from support.kernels import signature
from support.specs import f32

SHAPES = ((8192,), (64, 128), (3, 5, 1280), (130, 128))
DTYPES = (np.float32, np.float64)
NUMBERS = (0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan)


def elements(shape: tuple[int, ...], dtype: Any) -> Any:
    random = np.random.default_rng(0)
    found = (random.standard_normal(shape) * 4).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -3.0], dtype)
    places = random.random(shape) < 0.5
    found[places] = random.choice(special, int(places.sum()))
    return found


@pytest.mark.parametrize("function", [np.maximum, np.minimum])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_gives_the_bits_of_the_number(
    shape: tuple[int, ...], dtype: Any, function: Any
) -> None:
    assert takes_row(np, shape, np.dtype(dtype))
    array = elements(shape, dtype)
    before = array.copy()
    for number in [np.array(number, dtype) for number in NUMBERS]:
        expected = function(array, number)
        run = limited_by_row(function, number)
        found = run(array)
        assert found.base is None and found.flags.c_contiguous and found.flags.writeable
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
        assert array.tobytes() == before.tobytes()
        out = np.empty_like(array)
        assert run(array, out=out) is out
        assert out.tobytes() == expected.tobytes()
        overwritten = array.copy()
        assert run(overwritten, out=overwritten) is overwritten
        assert overwritten.tobytes() == expected.tobytes()


@pytest.mark.parametrize("function", [np.maximum, np.minimum])
def test_views_and_other_orders_give_the_bits_and_the_order_of_the_number(function: Any) -> None:
    whole = elements((128, 130), np.float32)
    zero = np.array(0, np.float32)
    for array in (whole.T, whole[:, 1:], whole[::-1], np.broadcast_to(whole[0], (64, 130))):
        expected = function(array, zero)
        found = limited_by_row(function, zero)(array)
        assert found.tobytes() == expected.tobytes()
        assert found.strides == expected.strides
        out = np.empty(array.shape, np.float32, order="F")
        limited_by_row(function, zero)(array, out=out)
        assert out.tobytes() == expected.tobytes()


def test_small_arrays_odd_sizes_and_other_dtypes_take_the_number() -> None:
    cases = (((16, 16), "f4"), ((8191,), "f4"), ((8193,), "f4"), ((8192,), "f2"), ((8192,), "i8"))
    for shape, dtype in cases:
        assert not takes_row(np, shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Activation.Relu", {}),
        ("Numeric.ClampMin", {"rhs": 0.0}),
        ("Numeric.ClampMax", {"rhs": 0.0}),
        ("Numeric.Clamp", {"min": 0.0, "max": float("inf")}),
        ("Numeric.Clamp", {"min": -1.0, "max": 2.0}),
    ],
)
def test_an_operation_has_the_same_bits_alone_and_as_elementwise_calls(
    name: str, parameters: dict[str, Any]
) -> None:
    spec: TensorSpec = f32(64, 128)
    signed = signature(name, spec, **parameters)
    session = NumpyBackend().open_session()
    array = elements((64, 128), np.float32)
    alone = session.bind(signed)(array)
    into = session.bind_into(signed)
    assert into is not None
    copied = array.copy()
    assert into(copied, out=copied) is copied
    (call,) = session.bind_elementwise(signed)
    assert alone.base is None
    assert alone.tobytes() == call.function(array, *call.constants).tobytes() == copied.tobytes()
