"""Random choice of the tensors and parameters of an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from support.kernels import BFLOAT16, Array

__all__ = [
    "ANY", "BOOLS", "COMPLEX", "EVERY", "FLOATS", "INTEGERS", "MAX_ELEMENTS", "NUMBERS", "Draw",
    "Known", "NothingFits",
]  # fmt: skip

BOOLS: Final = (np.dtype(np.bool_),)
INTEGERS: Final = tuple(np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8))
FLOATS: Final = (np.dtype("f2"), BFLOAT16, np.dtype("f4"), np.dtype("f8"))
NUMBERS: Final = INTEGERS + FLOATS
ANY: Final = NUMBERS + BOOLS
# Only programs for servers with extension rows have complex numbers.
COMPLEX: Final = (np.dtype("c8"), np.dtype("c16"))
EVERY: Final = ANY + COMPLEX

# Enough for NumPy's vectorized loops, which differ from those of short or strided arrays.
MAX_ELEMENTS: Final = 6000

# A result of reductions, products and functions of networks is compared with a tolerance that is
# relative to its inputs; beyond this size the intermediate sums of float16 could overflow.
TAME: Final = 1e3

_SPECIAL: Final = (0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 1e-4, 3.0e38, 0.1, -2.5, 0.5, 1.5)


class NothingFits(Exception):
    """No tensor of the program fits the operation, so another operation is drawn."""


@dataclass(frozen=True)
class Known:
    """A tensor of the program: its elements in the reference, and its device."""

    array: Array
    device: int
    # Whether the elements are known to the last bit.
    exact: bool


@dataclass
class Draw:
    """The tensors of a program under construction, and the choices made from them."""

    random: np.random.Generator
    known: dict[int, Known] = field(default_factory=dict)
    # Whether tensors may have subnormal float32 and bfloat16 numbers, which some devices flush.
    subnormals: bool = True
    # Whether the program may have extension rows, and so complex numbers.
    extended: bool = False

    # -- parameters ---------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """Return true with a probability."""
        return bool(self.random.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, both included."""
        return int(self.random.integers(low, high + 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return a random choice."""
        if not choices:
            raise NothingFits
        return choices[self.integer(0, len(choices) - 1)]

    def shape(self, least_rank: int = 0) -> tuple[int, ...]:
        """Return a shape; one in twenty is empty, one in twenty large."""
        if least_rank <= 2 and self.chance(0.05):
            large: tuple[int, ...] = self.one_of([(70, 70), (2049,), (3, 5, 300), (1, 5000)])
            return large
        rank = self.integer(least_rank, 4)
        least = 0 if self.chance(0.1) else 1
        return tuple(self.integer(least, 5) for _ in range(rank))

    def number(self, dtype: Any) -> Any:
        """Return a Python number that suits a dtype."""
        if dtype.kind == "b":
            return self.chance(0.5)
        if dtype.kind == "c" and self.chance(0.5):
            return complex(self.integer(-8, 8) / 4, self.integer(-8, 8) / 4)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if self.chance(0.1):
                return self.one_of([int(limits.min), int(limits.max), int(limits.max) // 3])
            return self.integer(max(-5, int(limits.min)), 9)
        return self.one_of([*_SPECIAL, *(self.integer(-8, 8) / 4 for _ in range(12))])

    def elements(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array: mostly small numbers, some at the ends of the dtype."""
        if dtype.kind == "b":
            return np.asarray(self.random.random(shape) < 0.5)
        small = self.random.integers(-20, 21, shape)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            wide = self.random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
            chosen = np.where(self.random.random(shape) < 0.1, wide, small.astype(dtype))
            return np.asarray(chosen, dtype)
        if dtype.kind == "c":
            real = np.dtype(f"f{dtype.itemsize // 2}")
            array = np.empty(shape, dtype)
            array.real, array.imag = self.elements(shape, real), self.elements(shape, real)
            return array
        numbers = small / 4
        if self.chance(0.5):
            special = self.random.choice(np.array(_SPECIAL), shape)
            numbers = np.where(self.random.random(shape) < 0.1, special, numbers)
        with np.errstate(all="ignore"):
            return np.asarray(numbers).astype(dtype)

    # -- tensors ------------------------------------------------------------------------------

    def tensor(
        self,
        dtypes: Sequence[Any] = EVERY,
        *,
        least_rank: int = 0,
        exact: bool = True,
        fits: Callable[[Known], bool] = lambda _: True,
    ) -> int:
        """Return a tensor of one of these dtypes. ``exact`` excludes approximate elements."""
        found = [
            name
            for name, known in self.known.items()
            if known.array.dtype in dtypes
            and known.array.ndim >= least_rank
            and (known.exact or not exact)
            and fits(known)
        ]
        return int(self.one_of(found))

    def tame(self, dtypes: Sequence[Any] = FLOATS, *, least_rank: int = 0, rank: int = 0) -> int:
        """Return a tensor of finite numbers below ``TAME``, of ``rank`` axes if that is not 0."""
        return self.tensor(
            dtypes,
            least_rank=least_rank,
            fits=lambda known: _is_tame(known.array) and rank in (0, known.array.ndim),
        )

    def beside(self, name: int, dtypes: Sequence[Any] | None = None, *, exact: bool = True) -> int:
        """Return a tensor on another one's device that broadcasts with it; often the same tensor.

        Its dtype is that of the other tensor, or one of ``dtypes``.
        """
        first = self.known[name]
        wanted = (first.array.dtype,) if dtypes is None else dtypes
        return self.tensor(
            wanted,
            exact=exact,
            fits=lambda known: (
                known.device == first.device and _broadcast(first.array, known.array)
            ),
        )

    def like(self, name: int, dtypes: Sequence[Any] | None = None, *, exact: bool = True) -> int:
        """Return a tensor of the same shape as another, on its device."""
        first = self.known[name]
        wanted = (first.array.dtype,) if dtypes is None else dtypes
        return self.tensor(
            wanted,
            exact=exact,
            fits=lambda known: (
                known.device == first.device and known.array.shape == first.array.shape
            ),
        )

    def axis_of(self, name: int, *, nonempty: bool = False) -> int:
        """Return an axis of a tensor, counted from either end."""
        shape = self.known[name].array.shape
        rank = len(shape)
        return int(
            self.one_of([axis for axis in range(-rank, rank) if shape[axis] or not nonempty])
        )

    def array(self, name: int) -> Array:
        """Return the reference's elements of a tensor; only their shape and dtype are certain."""
        return self.known[name].array


def _is_tame(array: Array) -> bool:
    if array.dtype.kind == "b" or not array.size:
        return bool(array.size)
    wide = array if array.dtype in COMPLEX else array.astype(np.float64)
    return bool(np.absolute(wide).max() < TAME)


def _broadcast(first: Array, second: Array) -> bool:
    try:
        shape = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return False
    return bool(np.prod(shape) <= MAX_ELEMENTS)
