"""Numbers of the signatures that a server knows."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dialects.native import MAX_SIGNATURES, encode_task
from burn_remote_protocol.messages import Define
from burn_remote_protocol.operations.row import Signature

__all__ = ["IN_FULL", "SHORT_LENGTH", "Numbered", "SignatureTable"]

# Stands for the number of a signature that is sent in full each time.
IN_FULL: Final = -1

# A signature with a longer definition is sent in full each time: it lists many tensors, rarely
# repeats, and would take the server's memory.
MAX_DEFINITION_BYTES: Final = 2048


# An operation with one output and at most this many tensors and numbers is *short*.
SHORT_LENGTH: Final = 4

# A signature's number, the signature (to keep it alive), the bytes of its outputs, and whether its
# operations are short. A plain tuple, because every operation reads one and tuples are the fastest.
Numbered = tuple[int, Signature, int, bool]


class SignatureTable:
    """A session's signature numbers, which are reused in a ring. Not thread-safe."""

    def __init__(self) -> None:
        # By identity: the program's cache of signatures returns the same object for the same call.
        self.known: Final[dict[int, Numbered]] = {}
        self._ring: Final[list[int | None]] = [None] * MAX_SIGNATURES
        # How many numbers were given to signatures so far.
        self.defined = 0

    def take(
        self, signature: Signature, *, even_if_long: bool = False
    ) -> tuple[Numbered, bytes | None]:
        """Number an unknown signature; return the number and the task that defines it, if any.

        The number takes effect once the task was appended to a batch and ``keep`` was called. After
        an interrupt before that, the next signature gets the same number.
        """
        size = sum(spec.nbytes for spec in signature.outputs)
        position = self.defined % MAX_SIGNATURES
        encoded = encode_task(Define(position, signature))
        if len(encoded) > MAX_DEFINITION_BYTES and not even_if_long:
            return (IN_FULL, signature, size, False), None
        replaced = self._ring[position]
        if replaced is not None:
            self.known.pop(replaced, None)
        length = 1 + len(signature.input_uses) + signature.output_count
        is_short = signature.output_count == 1 and length <= SHORT_LENGTH
        return (position, signature, size, is_short), encoded

    def keep(self, numbered: Numbered) -> None:
        """Record the number that ``take`` assigned to a signature."""
        position, signature, *_ = numbered
        self._ring[position] = signature.identity
        self.known[signature.identity] = numbered
        self.defined += 1
