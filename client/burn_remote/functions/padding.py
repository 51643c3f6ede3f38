"""Padding and cropping of axes, with the modes of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.arguments.numbers import Number, is_imaginary, number_for, whole_number
from burn_remote.arguments.traced_numbers import definite
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import MAX_UPLOADED_RANGE, Operator, counted, filled, upload
from burn_remote.dispatch.rows_with_fallbacks import preferring
from burn_remote.functions.arithmetic import remainder, subtract
from burn_remote.functions.casting import distinct
from burn_remote.functions.indexing import get_item, set_item
from burn_remote.functions.selection import clip
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError, shown
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import MAX_ELEMENTS, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["pad"]

PAD: Final = Operator(numeric.PAD)
SELECT: Final = Operator(base.SELECT)

# PyTorch's mode -> the mode in messages, and NumPy's mode.
_WIRE_MODES: Final = {"reflect": "Reflect", "replicate": "Edge"}
_MODES: Final = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@explained
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Number = 0) -> Tensor:
    """Pad a tensor of any dtype, as ``torch.nn.functional.pad`` does.

    ``pad`` holds two integers per axis, starting with the last axis: the number of elements to add
    before and after. Negative numbers crop. ``mode`` is ``"constant"`` (filled with ``value``),
    ``"reflect"``, ``"replicate"`` or ``"circular"``. Raises ``ShapeMismatch``, and ``UsageError``
    for another mode.
    """
    rank = input.ndim
    pad = _whole_numbers(pad)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ShapeMismatch(
            f"pad={list(pad)} must hold a pair of integers for each of at most {rank} axes"
        )
    borders = [(0, 0)] * (rank - len(pad) // 2)
    borders += reversed(list(zip(pad[::2], pad[1::2], strict=True)))
    cut = _cut(input, borders)
    grown = [(max(before, 0), max(after, 0)) for before, after in borders]
    if not any(before or after for before, after in grown):
        return distinct(input, cut)
    if mode == "constant":
        return _framed(cut, grown, value)
    if mode not in _MODES:
        raise UsageError(f"mode must be one of constant, {', '.join(_MODES)}, not {mode!r}")
    if mode == "circular":
        return _continued(cut, grown, mode)
    return _extended(cut, grown, mode)


def _padded(x: Tensor, borders: list[tuple[int, int]], mode: str) -> Tensor:
    _check_sizes(x, borders, mode)
    if x.dtype.is_bool:  # the operation exists for numbers only
        return _continued(x, borders, mode)
    return PAD.apply((x,), (tuple(borders), (_WIRE_MODES[mode],)))


@preferring(numeric.PAD, _padded)
def _extended(x: Tensor, borders: list[tuple[int, int]], mode: str) -> Tensor:
    return _continued(x, borders, mode)


def _whole_numbers(pad: Sequence[int]) -> list[int]:
    if not isinstance(pad, list | tuple) or any(isinstance(one, list | tuple) for one in pad):
        raise ArgumentMismatch(
            "pad must be one list of integers, two for each axis from the last one on, such as "
            f"(left, right, top, bottom), not {shown(pad)}"
        )
    return [whole_number("each number in pad", size, -MAX_ELEMENTS, MAX_ELEMENTS) for size in pad]


def _cut(x: Tensor, borders: list[tuple[int, int]]) -> Tensor:
    if all(before >= 0 and after >= 0 for before, after in borders):
        return x
    bounds = [
        (max(-before, 0), size - max(-after, 0))
        for size, (before, after) in zip(x.shape, borders, strict=True)
    ]
    if any(start > end for start, end in bounds):
        raise ShapeMismatch(f"{x.handle.spec} is too small to crop by {borders}")
    return get_item(x, tuple([slice(start, end) for start, end in bounds]))


def _framed_at_once(x: Tensor, borders: list[tuple[int, int]], value: Number) -> Tensor:
    if x.dtype.is_bool or is_imaginary(value):
        return _set_inside(x, borders, value)
    # This option of the row cannot be a traced number. So a compiled function keeps the number of
    # its first call, and compares it with that of each later call.
    number = Scalar.of(definite(number_for(x.dtype, value)))
    return PAD.apply((x,), (tuple(borders), ("Constant", number)))


@preferring(numeric.PAD, _framed_at_once)
def _framed(x: Tensor, borders: list[tuple[int, int]], value: Number) -> Tensor:
    return _set_inside(x, borders, value)


def _set_inside(x: Tensor, borders: list[tuple[int, int]], value: Number) -> Tensor:
    pairs = list(zip(x.shape, borders, strict=True))
    shape = tuple([before + size + after for size, (before, after) in pairs])
    number = bool(value) if x.dtype.is_bool else value
    frame = x.__class__(filled(x.handle.client, TensorSpec(shape, x.dtype), number))
    inside = tuple([slice(before, before + size) for size, (before, _) in pairs])
    return set_item(frame, inside, x)


def _check_sizes(x: Tensor, borders: list[tuple[int, int]], mode: str) -> None:
    for size, border in zip(x.shape, borders, strict=True):
        if any(border) and (size == 0 or (mode == "reflect" and max(border) >= size)):
            raise ShapeMismatch(f"{x.handle.spec} is too small to pad by {border} with {mode=}")


def _continued(x: Tensor, borders: list[tuple[int, int]], mode: str) -> Tensor:
    _check_sizes(x, borders, mode)
    for axis, (size, border) in enumerate(zip(x.shape, borders, strict=True)):
        if not any(border):
            continue
        x = SELECT.apply((x, _places(x, size, border, mode)), (axis,))
    return x


def _places(x: Tensor, size: int, border: tuple[int, int], mode: str) -> Tensor:
    """Return the source index of each element of a padded axis."""
    if size + sum(border) <= MAX_UPLOADED_RANGE or mode == "reflect":
        places = np.pad(np.arange(size), border, mode=_MODES[mode])  # type: ignore[call-overload]
        return upload(x, places)
    # Computed on the server: the indices may exceed this process's memory, and the server's limits
    # then give a clear error.
    before = subtract(counted(x.__class__, x.handle.client, size + sum(border)), border[0])
    return remainder(before, size) if mode == "circular" else clip(before, 0, size - 1)
