"""The vocabularies of operations: one per release of Burn's IR, and the native dialect's."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import Unsupported

__all__ = ["EVERYWHERE", "EXTENSION", "SINCE_BURN_0_22", "Lifetime", "Vocabulary", "check_dtype"]


class Vocabulary(IntEnum):
    """A set of operations that a dialect can express, in the order of their releases.

    ``NATIVE`` has every row of the table. Rows that only it has are called *extension rows*.
    """

    BURN_0_21 = 21
    BURN_0_22 = 22
    NATIVE = 1000

    def __str__(self) -> str:
        return _TITLES[self]


_TITLES = {
    Vocabulary.BURN_0_21: "Burn 0.21",
    Vocabulary.BURN_0_22: "Burn 0.22",
    Vocabulary.NATIVE: "the native dialect",
}


class Lifetime(NamedTuple):
    """The vocabularies that have a row: those from ``since`` on and before ``until``.

    The native dialect has all rows, also those that Burn has removed.
    """

    since: Vocabulary = Vocabulary.BURN_0_21
    until: Vocabulary = Vocabulary.NATIVE

    def includes(self, vocabulary: Vocabulary) -> bool:
        """Return whether ``vocabulary`` has the row."""
        return vocabulary is Vocabulary.NATIVE or self.since <= vocabulary < self.until


EVERYWHERE = Lifetime()

# The lifetime of extension rows and of their kinds on the wire.
EXTENSION = Lifetime(since=Vocabulary.NATIVE)
SINCE_BURN_0_22 = Lifetime(since=Vocabulary.BURN_0_22)


def check_dtype(dtype: DType, vocabulary: Vocabulary) -> DType:
    """Return a dtype. Raises ``Unsupported`` if the vocabulary does not have it."""
    if dtype.is_complex and vocabulary is not Vocabulary.NATIVE:
        raise Unsupported(
            f"{vocabulary} has no {dtype}; a burn-remote-server has it for clients that use the "
            "native dialect"
        )
    return dtype
