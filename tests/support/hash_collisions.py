"""Tuples of integers with equal hashes, which a client can compute.

CPython does not randomize the hashes of integers and tuples. A tuple's hash is computed from one
member after another by invertible steps. So for each second-last member, the last one can be solved
for.
"""

from __future__ import annotations

from itertools import count, islice
from typing import Final

__all__ = ["colliding_tuples"]

# The constants of ``tuplehash`` in CPython's ``Objects/tupleobject.c``.
_FIRST: Final = 11400714785074694791
_SECOND: Final = 14029467366897019727
_START: Final = 2870177450012600261
_WORD: Final = 2**64
# The hash of a smaller integer is the integer itself.
_MODULUS: Final = 2**61 - 1


def colliding_tuples(length: int, prefix: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Return ``length`` different tuples with one hash that begin with ``prefix``."""
    state = _START
    for member in prefix:
        state = _after(state, member)
    target = _rotated(_after_product(_after(state, 1), 1), 31)
    undone = _rotated(target, 33)
    inverse = pow(_SECOND, -1, _WORD)
    solved = ((first, (undone - _after(state, first)) * inverse % _WORD) for first in count(1))
    return [(*prefix, *pair) for pair in islice((p for p in solved if p[1] < _MODULUS), length)]


def _after_product(state: int, member: int) -> int:
    return (state + member * _SECOND) % _WORD


def _after(state: int, member: int) -> int:
    return _rotated(_after_product(state, member), 31) * _FIRST % _WORD


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) % _WORD
