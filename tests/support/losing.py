"""A ``--custom-operations`` module for a server whose NumPy devices can be lost."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from burn_remote_server.backends.numpy import backend as module
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import custom_operation

__all__ = ["LosableBackend", "lose"]


class LosableBackend(NumpyBackend):
    """The NumPy backend; a device is lost if its number is in ``lost``."""

    lost: ClassVar[set[int]] = set()
    numbers: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, memory_limit: int | None = None) -> None:
        super().__init__(memory_limit)
        self.number = next(self.numbers)

    @property
    def failure(self) -> str | None:
        if self.number not in self.lost:
            return None
        return f"device {self.number} is lost; restart the server"


@custom_operation("lose", inputs={"number": "int"}, shapes=lambda number: number)
def lose(xp: Any, number: Any) -> Any:
    """Lose a device and raise an error as CUDA would."""
    LosableBackend.lost.add(int(number[0]))
    raise RuntimeError("an illegal memory access was encountered")


# The backend that a server opens after it has imported the module.
module.NumpyBackend = LosableBackend  # type: ignore[misc]
