"""Creation of tensors, without a server."""

from __future__ import annotations

import math

import numpy as np
import pytest

import burn_remote as br
from burn_remote import random
from burn_remote.dispatch.operators import MAX_UPLOADED_RANGE
from burn_remote.functions import creation
from support.runners import RecordingDevice


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


@pytest.fixture
def default(device: RecordingDevice, monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    monkeypatch.setattr(creation, "default_device", lambda: device)
    monkeypatch.setattr(random, "default_device", lambda: device)
    return device


def test_tensors_without_a_device_are_on_the_default_device(default: RecordingDevice) -> None:
    made = [
        br.tensor([1, 2]), br.asarray(np.ones(3)), br.zeros(3), br.ones((2, 3)), br.empty(()),
        br.full((2,), 7), br.arange(3), br.linspace(0, 1, 3), br.eye(3), br.random.normal((2,)),
    ]  # fmt: skip
    assert all(x.device is default for x in made)


def test_data_is_uploaded_unchanged(device: RecordingDevice) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    x = br.tensor(array, device=device)
    assert (x.shape, x.dtype) == ((2, 3), br.int16)
    assert device.runner.uploads[x.handle.id].bytes == array.tobytes()


def test_a_tensor_is_converted_without_an_upload(device: RecordingDevice) -> None:
    x = br.ones((2,), device=device)
    assert br.asarray(x) is x
    assert br.tensor(x) is not x
    assert br.tensor(x).handle is x.handle
    assert br.tensor(x, dtype=br.float64, device=device).dtype is br.float64
    assert device.runner.uploads == {}


def test_the_default_dtype_is_float32_and_that_of_full_is_the_numbers(
    device: RecordingDevice,
) -> None:
    assert br.zeros((2,), device=device).dtype is br.float32
    assert br.full((2,), 1, device=device).dtype is br.int64
    assert br.full((2,), 1.0, device=device).dtype is br.float32
    assert br.full((2,), True, device=device).dtype is br.bool
    assert br.full((2,), 1, dtype="float16", device=device).dtype is br.float16
    with pytest.raises(br.DTypeMismatch):
        br.full((2,), 1.5, dtype=br.int8, device=device)


def test_like_copies_shape_dtype_and_device(device: RecordingDevice) -> None:
    x = br.zeros((2, 3), dtype=br.uint8, device=device)
    for y in (br.zeros_like(x), br.ones_like(x), br.empty_like(x), br.full_like(x, 3)):
        assert (y.shape, y.dtype, y.device) == ((2, 3), br.uint8, device)
    assert br.ones_like(x, dtype=br.float32).dtype is br.float32


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 5), (5, 2), (0, 10, 3), (10, 0, -3), (0.5,), (0, 1, 0.1), (1, 0, -0.25), (3.0, 1)],
)
def test_ranges_match_numpy(device: RecordingDevice, arguments: tuple[float, ...]) -> None:
    x = br.arange(*arguments, device=device)
    expected = np.arange(*arguments)
    assert x.shape == expected.shape
    assert x.dtype is (br.int64 if expected.dtype.kind == "i" else br.float32)
    sent = device.runner.uploads[x.handle.id]
    np.testing.assert_allclose(
        np.frombuffer(sent.bytes, str(sent.dtype)), expected, rtol=1e-6, atol=1e-7
    )


def test_a_long_range_is_computed_on_the_device(device: RecordingDevice) -> None:
    x = br.arange(MAX_UPLOADED_RANGE + 1, device=device)
    assert (x.shape, x.dtype) == ((MAX_UPLOADED_RANGE + 1,), br.int64)
    assert br.linspace(0, 1, 10_000, device=device).shape == (10_000,)
    assert device.runner.uploads == {}


def test_a_step_of_zero_is_refused(device: RecordingDevice) -> None:
    with pytest.raises(br.UsageError, match="step"):
        br.arange(0, 5, 0, device=device)


def test_random_operations_carry_their_distribution(device: RecordingDevice) -> None:
    cases = [
        (br.random.uniform((2,), low=-1, high=1, device=device), ("Uniform", -1.0, 1.0)),
        (br.random.normal((2,), std=3, device=device), ("Normal", 0.0, 3.0)),
        (br.random.bernoulli((2,), 0.3, device=device), ("Bernoulli", 0.3)),
        (br.random.default((2,), device=device), ("Default",)),
        (br.random.integers(1, 7, (2,), device=device), ("Uniform", 1.0, 7.0)),
    ]
    seen = [op.signature.call.parameters["distribution"] for op in device.runner.operations]
    assert seen == [distribution for _, distribution in cases]
    assert cases[-1][0].dtype is br.int64


def test_random_arguments_are_checked(device: RecordingDevice) -> None:
    with pytest.raises(br.UsageError, match="p must be from 0 to 1"):
        br.random.bernoulli((2,), 1.5, device=device)
    with pytest.raises(br.UsageError, match="low must be less than high, not 3 and 3"):
        br.random.integers(3, 3, (2,), device=device)
    with pytest.raises(br.UsageError, match="astype"):
        br.random.integers(0, 3, (2,), dtype=br.float32, device=device)
    assert br.random.bernoulli((2,), dtype=br.bool, device=device).dtype is br.bool
    assert br.random.permutation(5, device=device).shape == (5,)


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (2**53, 2**53 + 3, br.int64), (2**62, 2**62 + 3, br.int64),
        (-(2**53) - 3, -(2**53), br.int64), (2**63 + 1, 2**63 + 4, br.uint64),
        (2**64 - 3, 2**64, br.uint64),
    ],
)  # fmt: skip
def test_random_integers_beyond_exact_floats_stay_in_their_range(
    low: int, high: int, dtype: br.DType
) -> None:
    with br.LocalDevice() as device:
        drawn = br.random.integers(low, high, (200,), dtype=dtype, device=device)
        assert {int(one) for one in drawn.numpy()} == {low, low + 1, low + 2}


def test_a_range_of_random_integers_that_float64_cannot_represent_is_refused(
    device: RecordingDevice,
) -> None:
    for low, high in ((0, 2**53 + 1), (1 - 2**63, 2049)):
        with pytest.raises(br.UsageError, match=f"the range from {low} to {high} cannot be sent"):
            br.random.integers(low, high, (2,), device=device)


def test_grids_have_the_shapes_of_numpys(device: RecordingDevice) -> None:
    axes = [br.ones((size,), device=device) for size in (2, 3, 4)]
    assert {grid.shape for grid in br.meshgrid(*axes)} == {(3, 2, 4)}
    assert {grid.shape for grid in br.meshgrid(*axes, indexing="ij")} == {(2, 3, 4)}
    with pytest.raises(br.UsageError, match="indexing"):
        br.meshgrid(*axes, indexing="yx")
    with pytest.raises(br.ShapeMismatch):
        br.meshgrid(br.ones((2, 2), device=device))


@pytest.mark.parametrize("shape", [(-1,), (2**60,)])
def test_shapes_beyond_the_limits_are_refused(
    device: RecordingDevice, shape: tuple[int, ...]
) -> None:
    with pytest.raises(br.BurnRemoteError):
        br.zeros(shape, device=device)


@pytest.mark.parametrize("count", [300, 3000])
def test_a_range_beyond_its_dtype_is_refused(device: RecordingDevice, count: int) -> None:
    with pytest.raises(br.DTypeMismatch, match=f"{count - 1} does not fit in uint8"):
        br.arange(count, dtype=br.uint8, device=device)
    assert br.arange(250, -1, -50, dtype=br.uint8, device=device).shape == (6,)
    assert br.arange(256.0, dtype=br.uint8, device=device).dtype is br.uint8


def test_a_range_of_fractions_is_refused_for_integer_dtypes(device: RecordingDevice) -> None:
    with pytest.raises(br.DTypeMismatch, match=r"0\.25 has a fraction, but int32 holds integers"):
        br.arange(0, 1, 0.25, dtype=br.int32, device=device)


def test_linspace_has_50_numbers_by_default(device: RecordingDevice) -> None:
    assert br.linspace(0, 1, device=device).shape == (50,)


def test_linspace_truncates_for_integer_dtypes(device: RecordingDevice) -> None:
    x = br.linspace(0, 1, 3, dtype=br.int32, device=device)
    sent = device.runner.uploads[x.handle.id]
    assert np.frombuffer(sent.bytes, np.int32).tolist() == [0, 0, 1]
    with pytest.raises(br.DTypeMismatch, match="500"):
        br.linspace(0, 500, 2, dtype=br.uint8, device=device)
    with pytest.raises(br.UsageError, match="num must be from 0"):
        br.linspace(0, 1, -1, device=device)


@pytest.mark.parametrize("num", [5, 20_000])
def test_linspace_beyond_its_dtype_is_refused(device: RecordingDevice, num: int) -> None:
    refused = [
        (0, 1000, "1000 does not"),
        (-1, 5, "-1 does not"),
        (0, math.inf, "inf is not a value of uint8"),
    ]
    for start, stop, text in refused:
        with pytest.raises(br.DTypeMismatch, match=text):
            br.linspace(start, stop, num, dtype="uint8", device=device)
    for low, high in ((0, 255), (-0.5, 255.5), (255, 0)):
        assert br.linspace(low, high, num, dtype="uint8", device=device).dtype is br.uint8
    with pytest.raises(br.DTypeMismatch, match=r"3\d\d does not fit"):
        br.linspace(0, 400, num, dtype="uint8", endpoint=False, device=device)
    assert br.linspace(0, 256, num, dtype="uint8", endpoint=False, device=device).shape == (num,)


def test_linspace_of_one_number_is_its_start(device: RecordingDevice) -> None:
    assert br.linspace(7, 1000, 1, dtype="uint8", device=device).shape == (1,)
    assert br.linspace(7, 1000, 0, dtype="uint8", device=device).shape == (0,)


@pytest.mark.parametrize(
    "arguments",
    [(math.inf,), (-math.inf,), (math.nan,), (0, 1, math.nan), (0, 1e308, 1e-308), (10**400, 0.5)],
)
def test_an_infinite_range_is_refused(
    device: RecordingDevice, arguments: tuple[float, ...]
) -> None:
    with pytest.raises(br.UsageError, match=r"the range from .* is not finite"):
        br.arange(*arguments, device=device)


@pytest.mark.parametrize("arguments", [(2**64,), (1e300,), (2**70, 2**70 + 3)])
def test_a_range_that_is_too_large_is_refused(
    device: RecordingDevice, arguments: tuple[float, ...]
) -> None:
    with pytest.raises(br.BurnRemoteError):
        br.arange(*arguments, device=device)


@pytest.mark.parametrize(
    "numbers",
    [
        range(2**64 - 3, 2**64), range(2**64 - 1, 2**64 - 7, -2), range(2**63 - 2, 2**63 + 2),
        range(0, 2**64, 2**63), range(2**64 - 2000, 2**64),
    ],
)  # fmt: skip
def test_ranges_of_unsigned_integers_are_exact(numbers: range) -> None:
    with br.LocalDevice() as device:
        ends = (numbers.start, numbers.stop, numbers.step)
        assert br.arange(*ends, dtype="uint64", device=device).tolist() == list(numbers)


def test_a_tensor_without_axes_fills_another() -> None:
    number = br.tensor(2.5, dtype=br.float64, device="local")
    filled = br.full((2, 3), number)
    assert (filled.dtype, filled.device) == (br.float64, number.device)
    np.testing.assert_array_equal(filled.numpy(), np.full((2, 3), 2.5))
    like = br.full_like(br.zeros(2, dtype=br.int32, device="local"), number)
    assert (like.dtype, like.tolist()) == (br.int32, [2, 2])


def test_a_tensor_with_axes_or_of_another_device_fills_nothing() -> None:
    with pytest.raises(br.ShapeMismatch, match="broadcast_to"):
        br.full((2, 3), br.zeros(3, device="local"))
    with pytest.raises(br.UsageError, match="move it with"):
        br.full((2, 3), br.tensor(1.0, device=br.LocalDevice()), device="local")
