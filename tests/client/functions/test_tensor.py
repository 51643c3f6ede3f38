"""Tensors know shape and dtype without waiting; only conversions wait."""

from __future__ import annotations

import asyncio
import copy
import enum
import pickle
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote.diagnostics.foreign_names import METHODS
from burn_remote_protocol.dtypes import BOOL_U8, BOOL_U32
from support.runners import RecordingDevice
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


def answer(device: RecordingDevice, array: np.ndarray, dtype: br.DType) -> None:
    """Complete the oldest pending read."""
    _, pending = device.runner.reads.pop(0)
    pending.complete(br.TensorData(array.tobytes(), array.shape, dtype))


def answer_soon(device: RecordingDevice, array: np.ndarray, dtype: br.DType) -> threading.Thread:
    """Complete, from another thread, the read that the caller is about to wait for."""
    read = threading.Event()
    register = device.runner.read

    def registered(tensor: int, spec: br.TensorSpec) -> br.Pending[br.TensorData]:
        pending = register(tensor, spec)
        read.set()
        return pending

    device.runner.read = registered  # type: ignore[method-assign]

    def work() -> None:
        assert read.wait(PATIENCE_SECONDS)
        answer(device, array, dtype)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_attributes_and_repr_issue_no_read(device: RecordingDevice) -> None:
    x = br.zeros((64, 10), device=device)
    assert (x.shape, x.ndim, x.size, x.nbytes) == ((64, 10), 2, 640, 2560)
    assert x.dtype is br.float32
    assert x.device is device
    assert len(x) == 64
    assert repr(x) == "Tensor(shape=(64, 10), dtype=float32, device=recording)"
    assert device.runner.reads == []


def test_every_operator_returns_without_a_read(device: RecordingDevice) -> None:
    x = br.zeros((3, 3), device=device)
    n = br.zeros((3, 3), dtype=br.int64, device=device)
    results = [
        x + 1, 1 + x, x - 1, 1 - x, x * 2, 2 * x, x / 2, 2 / x, 1 / x, x // 2, 7 // x, x % 2, 7 % x,
        x**2, x**0.5, 2**x, x @ x, -x, +x, abs(x), x < 1, x <= 1, x > 1, x >= 1, x == 1, x != 1,
        x > 1, n & 1, 1 & n, n | 1, 1 | n, n ^ 1, 1 ^ n, ~n, n << 1, 1 << n, n >> 1, 1 >> n,
        n // 2, 7 // n, n / 2, 1 / n, x.T, x.mT, x[0], *x,
    ]  # fmt: skip
    assert all(isinstance(result, br.Tensor) for result in results)
    assert device.runner.reads == []


def test_a_dropped_tensor_is_freed(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    identifier = x.handle.id
    del x
    assert device.runner.dropped == [identifier]


def test_a_read_gives_a_new_writable_array(device: RecordingDevice) -> None:
    x = br.zeros((2, 3), device=device)
    pending = x.read()
    assert not pending.done()
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer(device, data, br.float32)
    array = pending.result(PATIENCE_SECONDS)
    np.testing.assert_array_equal(array, data)
    array[0, 0] = 7


def test_numpy_waits(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    thread = answer_soon(device, np.array([1, 2], np.float32), br.float32)
    assert x.tolist() == [1, 2]
    thread.join(PATIENCE_SECONDS)


def test_numpy_asarray_waits_and_converts(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    thread = answer_soon(device, np.array([1, 2], np.float32), br.float32)
    array = np.asarray(x, np.float64)
    thread.join(PATIENCE_SECONDS)
    assert array.dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, copy=False)


def test_numpy_operations_never_read_a_tensor(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    assert isinstance(np.float32(2) * x, br.Tensor)
    assert isinstance(np.ones(2) * x, br.Tensor)
    assert isinstance(np.exp(x), br.Tensor)
    assert device.runner.reads == []


def test_a_foreign_method_name_gives_our_equivalent(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    with pytest.raises(AttributeError, match=r"'cumsum'; in burn_remote: x\.cumulative_sum"):
        x.cumsum  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'unheard_of'$"):
        x.unheard_of  # type: ignore[attr-defined]  # noqa: B018


def test_a_misspelled_method_gives_the_similar_name(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    with pytest.raises(AttributeError, match=r"'reshpe'; did you mean 'reshape'\?$"):
        x.reshpe  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean 'cumsum'\? In burn_remote: x\.cumul"):
        x.cumsm  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("typed", "written"), METHODS.items())
def test_the_equivalents_of_methods_exist(typed: str, written: str) -> None:
    assert not hasattr(br.Tensor, typed)
    for owner, name in re.findall(r"\b(x|burn_remote)\.(\w+)", written):
        assert hasattr(br.Tensor if owner == "x" else br, name), f"{owner}.{name}"


def test_constructing_a_tensor_of_data_is_refused_with_advice() -> None:
    for data in ([[1, 2]], [2, 3], [np.ones(2)]):
        with pytest.raises(
            br.ArgumentMismatch, match=r"burn_remote\.tensor\(data\) makes a tensor"
        ):
            br.Tensor(*data)
    with pytest.raises(AttributeError, match="takes a handle"):
        _ = object.__new__(br.Tensor).handle


def test_a_failing_property_raises_its_own_error(
    device: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = br.ones(2, device=device)
    monkeypatch.delattr(type(x.handle.client), "device")
    with pytest.raises(AttributeError, match="device"):
        _ = x.device


@pytest.mark.parametrize("convert", [bool, int, float, complex])
def test_a_single_element_converts_to_a_python_number(
    device: RecordingDevice, convert: type[complex]
) -> None:
    x = br.zeros((1, 1), device=device)
    thread = answer_soon(device, np.array([[3]], np.float32), br.float32)
    assert convert(x) == convert(3)
    thread.join(PATIENCE_SECONDS)


def test_an_integer_tensor_is_usable_as_an_index(device: RecordingDevice) -> None:
    x = br.zeros((), dtype=br.int64, device=device)
    thread = answer_soon(device, np.array(1), br.int64)
    assert ["a", "b"][x] == "b"
    thread.join(PATIENCE_SECONDS)
    with pytest.raises(br.DTypeMismatch):
        ["a", "b"][br.zeros((), device=device)]


def test_item_and_len_refuse_wrong_shapes(device: RecordingDevice) -> None:
    with pytest.raises(br.ShapeMismatch, match="not one"):
        br.zeros((2,), device=device).item()


def test_a_scalar_has_no_length_and_no_elements_to_iterate_over(device: RecordingDevice) -> None:
    with pytest.raises(TypeError, match="no length"):
        len(br.zeros((), device=device))
    with pytest.raises(TypeError, match="cannot be iterated over"):
        iter(br.zeros((), device=device))


def test_the_truth_value_of_several_elements_is_refused_with_advice(
    device: RecordingDevice,
) -> None:
    x = br.zeros((2,), device=device)
    with pytest.raises(br.ShapeMismatch, match=r"& \| ~, or use x\.all\(\) or x\.any\(\)"):
        assert (x > 0) and (x < 1)


def test_the_repr_of_a_pending_read_says_how_to_wait(device: RecordingDevice) -> None:
    pending = br.zeros((1,), device=device).read()
    assert repr(pending) == "<Pending: not done; wait with result() or await>"
    answer(device, np.array([5], np.float32), br.float32)
    assert repr(pending) == "<Pending: done; wait with result() or await>"


def test_read_sends_all_requests_before_the_first_wait(device: RecordingDevice) -> None:
    tensors = [br.zeros((1,), device=device) for _ in range(3)]
    asked: list[int] = []
    register = device.runner.read

    def registered(tensor: int, spec: br.TensorSpec) -> br.Pending[br.TensorData]:
        pending = register(tensor, spec)
        asked.append(tensor)
        if len(asked) == 3:
            for number in range(3):
                answer(device, np.array([number], np.float32), br.float32)
        return pending

    device.runner.read = registered  # type: ignore[method-assign]
    assert [array.tolist() for array in br.read(tensors)] == [[0], [1], [2]]
    assert asked == [one.handle.id for one in tensors]


def test_reading_one_tensor_as_several_is_refused() -> None:
    with (
        br.LocalDevice() as device,
        pytest.raises(br.ArgumentMismatch, match=r"row by row; write x\.numpy\(\)"),
    ):
        br.read(br.zeros((3, 2), device=device))


async def test_reads_of_other_things_than_tensors_are_refused() -> None:
    text = r"element is of type str; for nested containers.*burn_remote\.tree\.leaves"
    with br.LocalDevice() as device:
        weights = {"w": br.zeros((3, 2), device=device)}
        with pytest.raises(br.ArgumentMismatch, match=text):
            br.read(weights)  # type: ignore[arg-type]
        with pytest.raises(br.ArgumentMismatch, match=text):
            await br.aio.read(weights)  # type: ignore[arg-type]
        assert [array.shape for array in br.read(br.tree.leaves(weights))] == [(3, 2)]


async def test_a_read_can_be_awaited(device: RecordingDevice) -> None:
    pending = br.zeros((1,), device=device).read()
    task = asyncio.ensure_future(pending)
    await asyncio.sleep(0)
    answer(device, np.array([5], np.float32), br.float32)
    assert (await task).tolist() == [5]


def test_a_failed_read_raises_its_error(device: RecordingDevice) -> None:
    pending = br.zeros((1,), device=device).read()
    device.runner.reads.pop()[1].fail(br.OperationFailed("out of luck"))
    with pytest.raises(br.OperationFailed, match="out of luck"):
        pending.result(PATIENCE_SECONDS)


def test_a_read_that_takes_too_long_times_out(device: RecordingDevice) -> None:
    pending = br.zeros((1,), device=device).read()
    with pytest.raises(TimeoutError):
        pending.result(0.001)


def test_a_quantized_tensor_cannot_be_read_as_numbers(device: RecordingDevice) -> None:
    scheme = br.QuantScheme("Q8S", "F32", "Native", None, "Symmetric")
    x = br.quantize(br.zeros((4, 32), device=device), scheme)
    with pytest.raises(br.DTypeMismatch, match=r"x\.dequantize\(\)\.numpy\(\)"):
        x.numpy()
    assert device.runner.reads == []


@pytest.mark.parametrize("dtype", [BOOL_U8, BOOL_U32])
def test_bool_stores_are_read_as_bools(device: RecordingDevice, dtype: br.DType) -> None:
    stored = np.array([0, 1], np.uint8 if dtype is BOOL_U8 else np.uint32)
    x = br.zeros((2,), dtype=dtype, device=device)
    pending = x.read()
    answer(device, stored, dtype)
    assert pending.result(PATIENCE_SECONDS).tolist() == [False, True]


def test_bfloat16_is_read_as_ml_dtypes_bfloat16(device: RecordingDevice) -> None:
    pending = br.zeros((1,), dtype=br.bfloat16, device=device).read()
    answer(device, np.array([1.5], ml_dtypes.bfloat16), br.bfloat16)
    assert pending.result(PATIENCE_SECONDS).dtype == ml_dtypes.bfloat16


def test_comparison_with_other_objects_is_unequal(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    for other in (None, "a"):
        assert not x == other  # noqa: SIM201
        assert x != other
    assert {x: 1}[x] == 1


@pytest.mark.parametrize("other", [[0.0, 0.0], (0.0, 0.0), Fraction(1, 2), Decimal(1)], ids=repr)
def test_comparison_with_lists_and_foreign_numbers_is_refused(
    device: RecordingDevice, other: object
) -> None:
    x = br.zeros((2,), device=device)
    with pytest.raises(br.ArgumentMismatch):
        x == other  # noqa: B015
    with pytest.raises(br.ArgumentMismatch):
        x != other  # noqa: B015


class Color(enum.IntEnum):
    RED = 1


class Share(float):
    pass


@pytest.mark.parametrize(
    "line",
    [
        "x == n", "x != n", "x < n", "x + n", "n - x", "x ** n", "n ** x", "x // n", "n / x",
        "br.where(x > 0, x, n)", "br.clip(x, n, 2 * n)", "br.full((2,), n)", "br.tile(x, int(n))",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("number", "plain"), [(Color.RED, 1), (Share(1.5), 1.5)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_enumerations_and_other_subclasses_are_numbers(
    line: str, number: float, plain: float, dtype: str
) -> None:
    with br.LocalDevice() as device:
        x = br.tensor([0, 1], dtype=dtype, device=device)
        br.set_default_device(device)
        found = _outcome(line, {"br": br, "x": x, "n": number})
        expected = _outcome(line, {"br": br, "x": x, "n": plain})
        br.set_default_device(None)
    assert found == expected


class Count(int):
    def __add__(self, other: int) -> Count:
        return Count(int(self) + other)

    def __sub__(self, other: int) -> Count:
        return Count(int(self) - other)


# In sizes that no other test uses, because signatures of equal calls are found in a cache.
@pytest.mark.parametrize(
    "line",
    [
        "br.repeat(x, n)", "br.repeat(x, n, axis=n - 1)", "br.roll(x, n, axis=n - 1)",
        "br.roll(x, (n,), axis=(n - 1,))", "br.roll(x, n)", "br.linalg.diagonal(x, offset=n)",
        "br.linalg.trace(x, offset=n)", "br.unfold(x, n, n + 1, n)",
        "br.tensordot(x, br.matrix_transpose(x), axes=n)",
        "br.functional.pixel_shuffle(image, n + 1)",
        "br.functional.pixel_unshuffle(image, n + 1)",
        "br.functional.conv2d(image, image[:, :, :1, :1], stride=n + 1, padding=n, groups=n)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Count, np.int64])
def test_counts_and_offsets_of_other_classes_give_the_same_as_plain_integers(
    line: str, kind: Callable[[int], Any]
) -> None:
    with br.LocalDevice() as device:
        size = 33 if kind is Count else 35
        x = br.reshape(br.arange(37 * size, dtype="float32", device=device), (37, size))
        image = br.reshape(
            br.arange(48 * size, dtype="float32", device=device), (1, 4, 6, 2 * size)
        )
        names = {"br": br, "x": x, "image": image}
        found = eval(line, {**names, "n": kind(1)})
        expected = eval(line, {**names, "n": 1})
        assert found.dtype is expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def _outcome(line: str, names: dict[str, Any]) -> object:
    try:
        result = eval(line, names)
    except br.UsageError as error:
        return type(error)
    return str(result.dtype), result.tolist()


def test_size_is_the_number_of_elements_and_called_the_shape() -> None:
    with br.LocalDevice() as device:
        x = br.ones((2, 3), device=device)
        assert (x.size, x.size(), x.size(-1)) == (6, (2, 3), 3)
        assert repr(x.size) == "6"
        assert type(pickle.loads(pickle.dumps(x.size))) is int
        with pytest.raises(br.IndexOutOfRange):
            x.size(2)
        assert x.reshape(x.size).shape == (6,)
        assert type(x.reshape((x.size, 1)).shape[0]) is int
        assert br.zeros((x.size, 2), device=device).shape == (6, 2)
        assert br.arange(x.size, device=device)[x.size - 1].item() == 5
        assert (x.sum() / x.size).item() == 1
        assert br.compile(lambda y, n: y * n)(x, x.size).tolist() == [[6.0] * 3] * 2


def test_a_single_element_supports_number_formats(device: RecordingDevice) -> None:
    x = br.zeros((), device=device)
    assert f"{x}" == repr(x)
    thread = answer_soon(device, np.array(0.125, np.float32), br.float32)
    assert f"{x:.2f}" == "0.12"
    thread.join(PATIENCE_SECONDS)
    with pytest.raises(br.ShapeMismatch, match="2 elements, not one"):
        f"{br.zeros(2, device=device):.2f}"


def test_copies_share_the_elements(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    for made in (copy.copy(x), copy.deepcopy([x])[0], x.clone(), x.detach(), x.data):
        assert made is not x
        assert made.handle is x.handle
    first, second = copy.deepcopy([x, x])
    assert first is second
    with pytest.raises(TypeError, match="numpy"):
        pickle.dumps(x)


def test_a_tensor_cannot_be_pickled(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    assert x.to(device) is x
    assert x.to_device(device) is x
    with pytest.raises(br.UsageError, match="stream"):
        x.to_device(device, stream=1)  # type: ignore[arg-type]
