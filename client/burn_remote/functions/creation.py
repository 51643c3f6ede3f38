"""Creation of tensors from data or from a rule.

``device=None`` means ``default_device()``. Without ``dtype``, Python floats become float32 and
Python integers int64; arrays keep their dtype. ``requires_grad=True`` tracks the tensor, as
``Tensor.requires_grad_`` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.arguments.arrays import (
    AnyDType,
    as_array,
    as_dtype,
    data_from,
    dtype_of_number,
    numpy_dtype,
)
from burn_remote.arguments.axes import normal_shape
from burn_remote.arguments.containers import leaves
from burn_remote.arguments.numbers import (
    Number,
    check_number,
    number_for,
    real_number,
    truncated_for,
    whole_for,
    whole_number,
)
from burn_remote.autodiff.nodes import plain
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import (
    MAX_UPLOADED_RANGE,
    ONES,
    ZEROS,
    Operator,
    counted,
    filled,
    reshaped,
)
from burn_remote.functions.arithmetic import add, multiply, trunc_divide
from burn_remote.functions.casting import astype, converted_to, distinct
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.logic import equal
from burn_remote.functions.manipulation import broadcast_to, concat, stack
from burn_remote.functions.shared_uploads import send_shared
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import holds_tensors, is_tensor
from burn_remote.runner.interface import DerivedData, distinction
from burn_remote_protocol.dtypes import F32, F64, I64, U64, DType
from burn_remote_protocol.errors import ShapeMismatch, UsageError, shown
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.tensors import MAX_ELEMENTS, Shape, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice, Device
    from burn_remote.runner.interface import RunnerClient, TensorHandle

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "new_tensor",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]

EMPTY: Final = Operator(base.EMPTY)


@explained
def tensor(
    data: Any,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
    share: bool = False,
) -> Tensor:
    """Make a tensor of a NumPy array, or of anything that ``numpy.asarray`` accepts.

    The elements have been sent when this returns, so the caller may change the array. Floats are
    rounded to ``dtype``, but integers must fit it: 300 and -1 are not values of uint8, and 1.5 is
    not a value of int32. A tensor is cloned (see ``Tensor.clone``), converted (see ``astype``) and
    moved to ``device``.

    With ``share=True``, the server keeps the elements for later sessions with the same token, as
    long as its settings ``max_content_bytes`` and ``content_seconds`` permit. If it already has the
    same elements in the same shape and dtype, none are sent. This costs a hash of the elements and
    a round trip, so use it for data that programs send again and again.

    Raises ``DTypeMismatch`` for elements that ``dtype`` cannot hold.
    """
    if share and not (is_tensor(data) or holds_tensors(data)):
        wanted = None if dtype is None else as_dtype(dtype)
        elements = data_from(as_array(data, wanted), wanted)
        (handle,) = send_shared(_client(device), [elements.spec], lambda: [elements])
        made = Tensor(handle)
    else:
        made = asarray(data, dtype=dtype, device=device)
    if requires_grad:
        return new_tensor(plain(made.handle), requires_grad)
    return made.clone() if made is data else made


@explained
def asarray(
    data: Any,
    /,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Make a tensor of data as ``tensor`` does, but return ``data`` itself if nothing changes.

    With ``copy=True``, the result is another object even then. ``copy=False`` raises ``ValueError``
    where the elements would have to be sent, converted or moved. Lists of tensors are stacked on
    the tensors' device.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if is_tensor(data):
        converted = data if wanted is None else converted_to(data, wanted)
        moved = converted if device is None else converted.to_device(device)
        if moved is not data:
            _refuse_copy(copy, f"{data.handle.spec} would be converted or moved")
            return moved
        return distinct(data) if copy else data
    _refuse_copy(copy, "the elements must be sent to the device")
    if holds_tensors(data):
        return asarray(_stacked(data, wanted), dtype=wanted, device=device)
    return _sent(data, wanted, _client(device))


def _refuse_copy(copy: bool | None, reason: str) -> None:
    if copy is False:
        raise ValueError(f"copy=False is impossible: {reason}")


def _stacked(data: Any, dtype: DType | None) -> Tensor:
    """Stack nested lists of tensors and numbers; numbers are sent to the tensors' device."""
    first = next(one for one in leaves(data) if is_tensor(one))
    parts = [
        one
        if is_tensor(one)
        else _stacked(one, dtype)
        if holds_tensors(one)
        else tensor(one, dtype=first.dtype if dtype is None else dtype, device=first.device)
        for one in data
    ]
    return stack(parts)


@explained
def zeros(
    shape: int | Sequence[int],
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with zeros, or with false for bools."""
    return new_tensor(ZEROS.create(_client(device), _spec(shape, dtype)), requires_grad)


@explained
def ones(
    shape: int | Sequence[int],
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with ones, or with true for bools."""
    return new_tensor(ONES.create(_client(device), _spec(shape, dtype)), requires_grad)


@explained
def empty(
    shape: int | Sequence[int],
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor with unspecified elements."""
    return new_tensor(EMPTY.create(_client(device), _spec(shape, dtype)), requires_grad)


@explained
def full(
    shape: int | Sequence[int],
    fill_value: Number | Tensor,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with one number, which may be a 0-d tensor.

    With a 0-d tensor, the result is on its device. Raises ``DTypeMismatch`` if ``dtype`` cannot
    hold the number, ``ShapeMismatch`` for a tensor with axes, and ``UsageError`` for a tensor that
    is not on ``device``.
    """
    if is_tensor(fill_value):
        place = fill_value.device if device is None else checked_device(device)
        return _spread(fill_value, normal_shape(shape), dtype, place, requires_grad)
    check_number(fill_value)
    spec = _spec(shape, dtype_of_number(fill_value) if dtype is None else dtype)
    return new_tensor(filled(_client(device), spec, fill_value), requires_grad)


@explained
def zeros_like(
    x: Tensor,
    /,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return zeros with the shape, dtype and device of ``x``."""
    return new_tensor(ZEROS.create(*_like(x, dtype, device)), requires_grad)


@explained
def ones_like(
    x: Tensor,
    /,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return ones with the shape, dtype and device of ``x``."""
    return new_tensor(ONES.create(*_like(x, dtype, device)), requires_grad)


@explained
def empty_like(
    x: Tensor,
    /,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return unspecified elements with the shape, dtype and device of ``x``."""
    return new_tensor(EMPTY.create(*_like(x, dtype, device)), requires_grad)


@explained
def full_like(
    x: Tensor,
    /,
    fill_value: Number | Tensor,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor filled with one number, with the shape, dtype and device of ``x``.

    The number may be a 0-d tensor on the device of the result. Raises as ``full`` does.
    """
    if is_tensor(fill_value):
        place = x.device if device is None else checked_device(device)
        return _spread(fill_value, x.shape, dtype or x.dtype, place, requires_grad)
    return new_tensor(filled(*_like(x, dtype, device), fill_value), requires_grad)


@explained
def arange(
    start: Number,
    /,
    stop: Number | None = None,
    step: Number = 1,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
) -> Tensor:
    """Return evenly spaced numbers from ``start`` up to, but excluding, ``stop``.

    ``arange(stop)`` starts at 0. Without ``dtype``, integer arguments give int64 and others
    float32. Raises ``UsageError`` for a step of 0 or an infinite range, and ``DTypeMismatch`` if
    ``dtype`` cannot hold the numbers.
    """
    first, last = (0, start) if stop is None else (start, stop)
    first, last, gap = (_plain(number) for number in (first, last, step))
    if gap == 0:
        raise UsageError("step must not be 0")
    if isinstance(first, int) and isinstance(last, int) and isinstance(gap, int):
        wanted, count = I64, max(0, -((first - last) // gap))
    else:
        try:
            wanted, count = F32, max(0, math.ceil((last - first) / gap))
        except (OverflowError, ValueError):
            raise UsageError(
                f"the range from {shown(first)} to {shown(last)} in steps of {shown(gap)} is not "
                "finite"
            ) from None
    wanted = wanted if dtype is None else as_dtype(dtype)
    if wanted.is_integer and count:
        first, gap = whole_for(wanted, first), whole_for(wanted, gap)
        number_for(wanted, first)
        number_for(wanted, first + gap * (count - 1))
    return _progression(count, first, gap, wanted, _client(device))


@explained
def linspace(
    start: float,
    stop: float,
    /,
    num: int = 50,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    endpoint: bool = True,
) -> Tensor:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``; by default 50, as in NumPy.

    ``endpoint=False`` excludes ``stop``; otherwise the last number is exactly ``stop``. An integer
    ``dtype`` truncates the numbers; if ``start`` and ``stop`` are integers, the numbers are
    computed exactly before truncation. Raises ``DTypeMismatch`` if ``dtype`` cannot hold them.
    """
    wanted = F32 if dtype is None else as_dtype(dtype)
    num = whole_number("num", num, 0, MAX_ELEMENTS)
    ends = [real_number("start", start), real_number("stop", stop)]
    steps = max(num - 1 if endpoint else num, 1)
    step = (ends[1] - ends[0]) / steps
    if wanted.is_integer and num:
        truncated_for(wanted, ends[0])
        truncated_for(wanted, ends[1] if endpoint and num > 1 else ends[0] + step * (num - 1))
        if all(end.is_integer() for end in ends):
            exact = [_plain(start), _plain(stop)]
            return _whole_linspace(int(exact[0]), int(exact[1]), num, steps, wanted, device)
    if num <= MAX_UPLOADED_RANGE:
        numbers = np.linspace(ends[0], ends[1], num, endpoint=endpoint)
        whole = np.trunc(numbers) if wanted.is_integer else numbers
        return _derived(whole, wanted, _client(device))
    if not endpoint:
        return _progression(num, ends[0], step, wanted, _client(device))
    # Rounding may put the last number below ``stop``, where truncation would make it ``stop - 1``.
    inner = _progression(num, ends[0], step, wanted, _client(device))[:-1]
    last = math.trunc(ends[1]) if wanted.is_integer else ends[1]
    return concat([inner, Tensor(filled(inner.handle.client, TensorSpec((1,), wanted), last))])


def _whole_linspace(
    start: int, stop: int, num: int, steps: int, dtype: DType, device: AnyDevice | None
) -> Tensor:
    """Return ``start + (stop - start) * k / steps`` for k from 0, truncated to integers."""
    client = _client(device)
    first, gap = start * steps, stop - start
    if num <= MAX_UPLOADED_RANGE or max(abs(first), abs(stop * steps)) >= 2**63:
        numbers = [first + gap * place for place in range(num)]
        whole = [abs(number) // steps * (1 if number >= 0 else -1) for number in numbers]
        return _derived(np.array(whole, np.object_).astype(numpy_dtype(dtype)), dtype, client)
    # The IR rounds quotients of integers towards zero.
    return astype(
        trunc_divide(add(multiply(counted(Tensor, client, num), gap), first), steps), dtype
    )


@explained
def eye(
    rows: int,
    columns: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
) -> Tensor:
    """Return a matrix ``[rows, columns]`` with ones on the ``k``-th diagonal, zeros elsewhere."""
    client = _client(device)
    rows = whole_number("rows", rows, 0, MAX_ELEMENTS)
    width = rows if columns is None else whole_number("columns", columns, 0, MAX_ELEMENTS)
    # All other diagonals are outside of the matrix.
    offset = max(-rows, min(whole_number("k", k, -(2**128), 2**128), width))
    row = reshaped(add(counted(Tensor, client, rows), offset), (rows, 1))
    column = reshaped(counted(Tensor, client, width), (1, width))
    return astype(equal(row, column), F32 if dtype is None else as_dtype(dtype))


@explained
def meshgrid(*axes: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of all grid points: one tensor for each argument ``[n]``.

    With ``indexing="ij"`` the axes of the results are in the order of the arguments; ``"xy"`` swaps
    the first two.
    """
    if indexing not in ("xy", "ij"):
        raise UsageError(f"indexing must be 'xy' or 'ij', not {indexing!r}")
    order = list(range(len(axes)))
    if indexing == "xy":
        order[:2] = reversed(order[:2])
    shape = tuple([axes[place].size for place in order])
    grids = []
    for place, axis in zip(order, axes, strict=True):
        if axis.ndim != 1:
            raise ShapeMismatch(f"an axis of a grid must have shape [n], not {axis.handle.spec}")
        single = [1] * len(axes)
        single[place] = axis.size
        grids.append(reshaped(axis, tuple(single)).broadcast_to(shape))
    return grids


def _progression(
    count: int, start: float, step: float, dtype: DType, client: RunnerClient
) -> Tensor:
    whole = isinstance(start, int) and isinstance(step, int)
    # Numbers beyond int64 are computed in Python, or in uint64 on the device.
    large = whole and max(abs(start), abs(start + step * count)) >= 2**63
    if count <= MAX_UPLOADED_RANGE:
        if large:
            return _derived([start + step * place for place in range(count)], dtype, client)
        return _derived(np.arange(count) * step + start, dtype, client)
    places = counted(Tensor, client, count)
    if large and dtype is U64:
        places = astype(places, U64)
    # In float64, because float32 does not hold all integers above 2**24.
    scaled = multiply(places if whole else astype(places, F64), step)
    return astype(add(scaled, start), dtype)


def _spread(
    value: Tensor, shape: Shape, dtype: AnyDType | None, device: Device, requires_grad: bool
) -> Tensor:
    if value.ndim:
        raise ShapeMismatch(
            f"fill_value is {value.handle.spec}, but must be a number or a 0-d tensor; "
            "write broadcast_to(x, shape)"
        )
    if value.device != device:
        raise UsageError(
            f"fill_value is on {value.device}, not {device}{distinction(value.device, device)}; "
            "move it with x.to(device)"
        )
    made = distinct(value, broadcast_to(value if dtype is None else astype(value, dtype), shape))
    return made.requires_grad_() if requires_grad else made


def _plain(number: Number) -> float:
    if isinstance(number, np.integer):
        return int(number)
    return number if isinstance(number, float | int) else real_number("a bound or step", number)


def new_tensor(handle: TensorHandle, requires_grad: bool) -> Tensor:
    """Return the tensor of a new handle, tracked if the program asks for it."""
    made = Tensor(handle)
    return made.requires_grad_() if requires_grad else made


def _sent(data: Any, dtype: DType | None, client: RunnerClient) -> Tensor:
    return Tensor(client.register_tensor_data(data_from(as_array(data, dtype), dtype)))


def _derived(data: Any, dtype: DType, client: RunnerClient) -> Tensor:
    """Send elements that follow from a function's arguments. A graph may keep such elements."""
    return Tensor(
        client.register_tensor_data(DerivedData(*data_from(as_array(data, dtype), dtype)))
    )


def _client(device: AnyDevice | None) -> RunnerClient:
    return (default_device() if device is None else checked_device(device)).runners


def _spec(shape: int | Sequence[int], dtype: AnyDType | None) -> TensorSpec:
    return TensorSpec(normal_shape(shape), F32 if dtype is None else as_dtype(dtype))


def _like(
    x: Tensor, dtype: AnyDType | None, device: AnyDevice | None
) -> tuple[RunnerClient, TensorSpec]:
    client = x.handle.client if device is None else checked_device(device).runners
    return client, TensorSpec(x.shape, x.dtype if dtype is None else as_dtype(dtype))
