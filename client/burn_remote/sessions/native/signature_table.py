"""The signatures that a server knows, and their numbers."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dialects.native import MAX_SIGNATURES, encode_task
from burn_remote_protocol.messages import Define
from burn_remote_protocol.operations.row import Signature

__all__ = ["IN_FULL", "Numbered", "SignatureTable"]

# In place of the number of a signature that is sent in full each time.
IN_FULL: Final = -1

# A signature whose definition is longer than this is sent in full each time: it is a list of many
# tensors, which hardly repeats, and would hold the server's memory.
MAX_DEFINITION_BYTES: Final = 2048


# A signature's number, the signature, which must live on, and the bytes of its outputs. A plain
# tuple: every operation looks into one, and Python is faster at those.
Numbered = tuple[int, Signature, int]


class SignatureTable:
    """The numbers of a session's signatures, a ring of them. Not thread-safe."""

    def __init__(self) -> None:
        # By identity: the program's cache of signatures returns the same object for the same call.
        self.known: Final[dict[int, Numbered]] = {}
        self._ring: Final[list[int | None]] = [None] * MAX_SIGNATURES
        self._defined = 0

    def take(self, signature: Signature) -> tuple[Numbered, bytes | None]:
        """Number a signature that is not known; return the task that defines it, if one shall.

        The number counts once the task was appended to a batch and ``keep`` was called. If an
        interrupt comes before, the next signature gets the same number.
        """
        size = sum(spec.nbytes for spec in signature.outputs)
        position = self._defined % MAX_SIGNATURES
        encoded = encode_task(Define(position, signature))
        if len(encoded) > MAX_DEFINITION_BYTES:
            return (IN_FULL, signature, size), None
        replaced = self._ring[position]
        if replaced is not None:
            self.known.pop(replaced, None)
        return (position, signature, size), encoded

    def keep(self, numbered: Numbered) -> None:
        """Know a signature by the number that ``take`` gave it."""
        position, signature, _ = numbered
        self._ring[position] = id(signature)
        self.known[id(signature)] = numbered
        self._defined += 1
