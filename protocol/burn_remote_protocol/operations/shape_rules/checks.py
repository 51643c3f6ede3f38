"""Checks of shapes and dtypes that rules share, with their error messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn

from burn_remote_protocol.dtypes import BOOL, I64, Category, DType
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.tensors import Shape, TensorSpec, checked_shape

__all__ = [
    "ANY",
    "ARITHMETIC",
    "BOOLS",
    "COMPLEX",
    "FLOATS",
    "INEXACT",
    "INTEGERS",
    "NUMBERS",
    "QUANTIZED",
    "Categories",
    "bool_dtype",
    "broadcast_shapes",
    "check_axis",
    "check_category",
    "check_rank",
    "check_same_dtype",
    "check_shape",
    "declared",
    "declared_output",
    "index_dtype",
    "refuse_shape",
    "result",
]

Categories = frozenset[Category]

FLOATS: Final[Categories] = frozenset({Category.FLOAT})
INTEGERS: Final[Categories] = frozenset({Category.INT, Category.UINT})
BOOLS: Final[Categories] = frozenset({Category.BOOL})
QUANTIZED: Final[Categories] = frozenset({Category.QUANTIZED})
COMPLEX: Final[Categories] = frozenset({Category.COMPLEX})
NUMBERS: Final[Categories] = FLOATS | INTEGERS
# The categories that arithmetic takes. NUMBERS are real, so they are ordered; complex ones are not.
ARITHMETIC: Final[Categories] = NUMBERS | COMPLEX
INEXACT: Final[Categories] = FLOATS | COMPLEX
ANY: Final[Categories] = frozenset(Category)


def refuse_shape(text: str) -> NoReturn:
    """Raise ``ShapeMismatch``. The text says what was seen and what was expected."""
    raise ShapeMismatch(text)


def check_category(argument: str, spec: TensorSpec, categories: Categories) -> None:
    """Raise ``DTypeMismatch`` unless the argument's dtype is of one of the categories."""
    if spec.dtype.category not in categories:
        expected = " or ".join(sorted(categories))
        raise DTypeMismatch(f"{argument} is {spec}, but its dtype must be {expected}")


def check_same_dtype(first: TensorSpec, **others: TensorSpec | None) -> None:
    """Raise ``DTypeMismatch`` for an argument whose dtype differs from the first's."""
    for argument, spec in others.items():
        if spec is not None and spec.dtype is not first.dtype:
            raise DTypeMismatch(
                f"{argument} is {spec}, but must be {first.dtype} like the first argument"
            )


def check_rank(argument: str, spec: TensorSpec, rank: int) -> None:
    """Raise ``ShapeMismatch`` unless the argument has ``rank`` dimensions."""
    if len(spec.shape) != rank:
        advice = f"; {argument}[None] adds one in front" if len(spec.shape) < rank else ""
        dimensions = "1 dimension" if rank == 1 else f"{rank} dimensions"
        refuse_shape(f"{argument} is {spec}, but must have {dimensions}{advice}")


def check_axis(argument: str, axis: int, shape: Shape) -> None:
    """Raise ``ShapeMismatch`` unless the axis is one of the shape's."""
    if not 0 <= axis < len(shape):
        refuse_shape(f"{argument}={axis} is not an axis of shape {list(shape)}")


def check_shape(argument: str, spec: TensorSpec, expected: Iterable[int]) -> None:
    """Raise ``ShapeMismatch`` unless the argument has exactly this shape."""
    if spec.shape != tuple(expected):
        refuse_shape(f"{argument} is {spec}, but must have shape {list(expected)}")


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape to which the shapes broadcast, by NumPy's rules."""
    broadcast: list[int] = []
    for position in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-position] for shape in shapes if len(shape) >= position} - {1}
        if len(sizes) > 1:
            listed = ", ".join(str(list(shape)) for shape in shapes)
            seen = " and ".join(str(s[-position]) for s in shapes if len(s) >= position)
            refuse_shape(f"shapes {listed} do not broadcast: axis -{position} has {seen}")
        broadcast.append(sizes.pop() if sizes else 1)
    return tuple(reversed(broadcast))


def declared_output(call: Call, output: int) -> TensorSpec | None:
    """Return the declared spec of an output; ``None`` if the caller declared no outputs."""
    return call.requested[output] if output < len(call.requested) else None


def declared(call: Call, categories: Categories) -> TensorSpec:
    """Return the only output, which the caller must declare; check its dtype and size."""
    spec = declared_output(call, 0)
    if spec is None:
        refuse_shape("the shape and dtype of the output must be given")
    check_category("the output", spec, categories)
    return result(spec.shape, spec.dtype)


def result(shape: Iterable[int], dtype: DType) -> TensorSpec:
    """Return an output. Raises ``LimitExceeded`` when it is larger than any tensor may be."""
    return TensorSpec(checked_shape(tuple(shape)), dtype)


def index_dtype(call: Call, output: int) -> DType:
    """Return the declared integer dtype of indices; ``I64`` if the caller declared none."""
    spec = declared_output(call, output)
    if spec is None:
        return I64
    check_category("the output for indices", spec, INTEGERS)
    return spec.dtype


def bool_dtype(call: Call, output: int) -> DType:
    """Return the declared bool dtype; ``BOOL`` if the caller declared none."""
    spec = declared_output(call, output)
    if spec is None:
        return BOOL
    check_category("the output", spec, BOOLS)
    return spec.dtype
