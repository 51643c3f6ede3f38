"""Combinations of operands: the operation issued, or the error raised."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from support.runners import RecordingDevice


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


@pytest.mark.parametrize(
    "dtype, kind",
    [
        (br.float32, "NumericFloat"), (br.bfloat16, "NumericFloat"),
        (br.int64, "NumericInt"), (br.uint8, "NumericInt"),
    ],
)  # fmt: skip
def test_the_dtype_selects_the_operation_family(
    device: RecordingDevice, dtype: br.DType, kind: str
) -> None:
    x = br.ones((2,), dtype=dtype, device=device)
    result = x + x
    assert result.dtype is dtype
    assert device.runner.names[-1] == f"{kind}.Add"
    assert device.runner.operations[-1].signature.dtype is dtype


def test_shapes_broadcast(device: RecordingDevice) -> None:
    x, y = br.ones((4, 1, 3), device=device), br.ones((1, 5, 1), device=device)
    assert (x + y).shape == (4, 5, 3)


def test_a_tensor_of_lower_rank_is_reshaped_first(device: RecordingDevice) -> None:
    x, y = br.ones((4, 3), device=device), br.ones((3,), device=device)
    before = len(device.runner.names)
    assert (x + y).shape == (4, 3)
    assert (y + x).shape == (4, 3)
    assert device.runner.names[before:] == ["BaseFloat.Reshape", "NumericFloat.Add"] * 2


def test_nothing_is_sent_if_shapes_do_not_broadcast(device: RecordingDevice) -> None:
    x, y = br.ones((4, 3), device=device), br.ones((2,), device=device)
    before = len(device.runner.names)
    with pytest.raises(br.ShapeMismatch, match=r"Numeric\.Add\(float32\[4, 3\], float32\[2\]\)"):
        x + y
    assert len(device.runner.names) == before


def test_tensors_without_a_common_dtype_are_refused(device: RecordingDevice) -> None:
    x = br.ones((2,), dtype=br.uint64, device=device)
    n = br.ones((2,), dtype=br.int64, device=device)
    with pytest.raises(br.DTypeMismatch, match="astype"):
        x * n
    with pytest.raises(br.DTypeMismatch, match="astype"):
        n @ x
    with pytest.raises(br.DTypeMismatch):
        br.ones((2,), dtype=br.bool, device=device) + br.ones((2,), dtype=br.bool, device=device)


def test_tensors_of_different_devices_are_refused(device: RecordingDevice) -> None:
    other = RecordingDevice("other")
    x, y = br.ones((2,), device=device), br.ones((2,), device=other)
    with pytest.raises(br.DeviceMismatch, match=r"on other.*\.to\(device\)"):
        x + y
    with pytest.raises(br.DeviceMismatch, match="on other"):
        br.concat([x, y])
    with pytest.raises(br.DeviceMismatch, match="on other"):
        br.where(x > 0, x, y)


@pytest.mark.parametrize(
    "dtype, number, expected",
    [
        (br.float32, 2, 2.0), (br.float32, 2.5, 2.5), (br.float16, np.float64(2), 2.0),
        (br.float64, np.int8(2), 2.0), (br.int64, 2, 2), (br.uint8, 255, 255),
        (br.uint64, 2**64 - 1, 2**64 - 1), (br.int8, np.int64(-128), -128),
    ],
)  # fmt: skip
def test_a_number_is_converted_to_the_tensors_dtype(
    device: RecordingDevice, dtype: br.DType, number: float, expected: float
) -> None:
    result = br.ones((2,), dtype=dtype, device=device) + number
    assert result.dtype is dtype
    sent = device.runner.operations[-1].signature.call.parameters["rhs"]
    assert (type(sent), sent) == (type(expected), expected)


@pytest.mark.parametrize(
    "dtype, number, advice",
    [
        (br.uint8, 256, "0 to 255"), (br.uint8, -1, "0 to 255"), (br.int64, 2**63, "fit"),
    ],
)  # fmt: skip
def test_an_incompatible_number_is_refused_with_advice(
    device: RecordingDevice, dtype: br.DType, number: float, advice: str
) -> None:
    with pytest.raises(br.DTypeMismatch, match=advice):
        br.ones((2,), dtype=dtype, device=device) * number


@pytest.mark.parametrize("operand", ["text", [1, 2], None, np.array(["a", "b"])])
def test_an_invalid_operand_is_a_type_error(device: RecordingDevice, operand: object) -> None:
    with pytest.raises(TypeError):
        br.ones((2,), device=device) + operand  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        operand - br.ones((2,), device=device)  # type: ignore[arg-type]


def test_two_numbers_are_refused() -> None:
    for function in (br.add, br.pow, br.maximum, br.minimum, br.equal):
        with pytest.raises(TypeError, match="tensor"):
            function(1, 2)


def test_integers_divide_to_floats(device: RecordingDevice) -> None:
    n = br.ones((2,), dtype=br.int32, device=device)
    for quotient in (n / n, n / 2, 2 / n, n / 0.5):
        assert quotient.dtype is br.float32
    for quotient in (n // n, n // 2, 7 // n, br.trunc_divide(n, n)):
        assert quotient.dtype is br.int32


def test_the_exponent_selects_the_operation(device: RecordingDevice) -> None:
    x = br.ones((2,), device=device)
    n = br.ones((2,), dtype=br.int32, device=device)
    for power, row in ((x**2, "PowiScalar"), (x**2.0, "PowfScalar"), (x**n, "Powi")):
        assert power.dtype is br.float32
        assert any(name.endswith(f".{row}") for name in device.runner.names)
    assert (n**3).dtype is br.int32
    with pytest.raises(br.UsageError, match="float32"):
        n**-1


def test_bools_cannot_be_negated(device: RecordingDevice) -> None:
    with pytest.raises(br.DTypeMismatch, match="write ~x"):
        -br.ones((2,), dtype=br.bool, device=device)


def test_floats_have_no_bitwise_operators(device: RecordingDevice) -> None:
    x = br.ones((2,), device=device)
    for function in (br.bitwise_and, br.bitwise_or, br.bitwise_xor, br.bitwise_left_shift):
        with pytest.raises(br.DTypeMismatch):
            function(x, x)
        with pytest.raises(br.DTypeMismatch):
            function(x, 1)
    with pytest.raises(br.DTypeMismatch):
        br.bitwise_invert(x)


def test_bools_and_integers_share_the_bitwise_operators(device: RecordingDevice) -> None:
    t = br.ones((2,), dtype=br.bool, device=device)
    for result in (t & t, t | t, t ^ t, ~t, t & True, False | t, t ^ True):
        assert result.dtype is br.bool
    assert (t & br.ones((2,), dtype=br.int8, device=device)).dtype is br.int8
    assert (t | 1).dtype is br.int64
    with pytest.raises(br.DTypeMismatch):
        t & br.ones((2,), device=device)


def test_logical_functions_treat_nonzero_numbers_as_true(device: RecordingDevice) -> None:
    x = br.ones((2,), device=device)
    for result in (
        br.logical_and(x, x), br.logical_or(x, x > 0), br.logical_xor(x, x), br.logical_not(x),
    ):  # fmt: skip
        assert result.dtype is br.bool


@pytest.mark.parametrize("function", [br.exp, br.sin, br.erf, br.log2, br.sqrt])
def test_functions_of_real_numbers_refuse_integers(
    device: RecordingDevice, function: type[br.Tensor]
) -> None:
    with pytest.raises(br.DTypeMismatch, match="astype"):
        function(br.ones((2,), dtype=br.int64, device=device))  # type: ignore[arg-type]


def test_rounding_integers_returns_the_tensor_itself(device: RecordingDevice) -> None:
    n = br.ones((2,), dtype=br.int64, device=device)
    assert all(function(n) is n for function in (br.round, br.floor, br.ceil, br.trunc))


def test_matrices_and_vectors_multiply(device: RecordingDevice) -> None:
    def f(*shape: int) -> br.Tensor:
        return br.ones(shape, device=device)

    assert (f(2, 3) @ f(3, 4)).shape == (2, 4)
    assert (f(5, 1, 2, 3) @ f(6, 3, 4)).shape == (5, 6, 2, 4)
    assert (f(3) @ f(3, 4)).shape == (4,)
    assert (f(5, 2, 3) @ f(3)).shape == (5, 2)
    assert (f(3) @ f(3)).shape == ()
    with pytest.raises(br.ShapeMismatch, match=r"Float\.Matmul"):
        f(2, 3) @ f(4, 5)
    with pytest.raises(br.ShapeMismatch, match=r"use \* for 0-d tensors"):
        f() @ f(3)


@pytest.mark.parametrize("source", [br.float32, br.int8, br.uint16, br.bool])
@pytest.mark.parametrize("target", [br.float16, br.int64, br.uint8, br.bool])
def test_every_dtype_converts_to_every_other(
    device: RecordingDevice, source: br.DType, target: br.DType
) -> None:
    x = br.ones((2, 3), dtype=source, device=device)
    converted = x.astype(target)
    assert (converted.shape, converted.dtype) == ((2, 3), target)
    assert (converted.handle is x.handle) == (source is target)
    assert (x.astype(target, copy=False) is x) == (source is target)


def test_nothing_converts_to_a_quantized_dtype(device: RecordingDevice) -> None:
    scheme = br.QuantScheme("Q8S", "F32", "Native", None, "Symmetric")
    with pytest.raises(br.DTypeMismatch):
        br.ones((2,), device=device).astype(br.DType.quantized(scheme))
