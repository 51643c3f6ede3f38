"""Record of the inputs whose elements are already in the memory of a captured graph.

Arrays never change. So an input that the previous launch had too, such as a model's weights, needs
no copy. A training step takes outputs of the previous step as inputs. Once that was seen, each
launch also copies such outputs to the memory of the inputs that they become: they are *forwarded*.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["InputMemory"]

# How often the forwarded outputs may change. Each change makes a new table of copies, and a program
# that passes its results on in ever new ways gains nothing from them.
MAX_CHANGES: Final = 8


class InputMemory:
    """The arrays whose elements are in the memory of a graph's inputs.

    ``inputs`` and ``outputs`` are the layouts of the graph's arrays. An output is only forwarded to
    an input of its layout. Without layouts of the outputs, none is forwarded.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._inputs: Final = tuple(inputs)
        self._outputs: Final = tuple(outputs)
        self._held: Final[list[Callable[[], Any]]] = [_nothing] * len(inputs)
        self._made: list[Callable[[], Any]] = []
        self._changes_left = MAX_CHANGES if outputs else 0
        self.forwarded: tuple[tuple[int, int], ...] = ()

    def held(self, inputs: Sequence[Any]) -> set[int]:
        """Return the places of the inputs that need no copy."""
        held = self._held
        return {place for place, array in enumerate(inputs) if held[place]() is array}

    def learn(self, inputs: Sequence[Any], held: set[int]) -> bool:
        """Update ``forwarded``: pairs of an output and an input; return whether it changed.

        ``inputs`` are those of the next launch, and ``held`` what the method returned for them.
        """
        if len(held) == len(inputs) or not self._changes_left:
            return False
        made = {
            id(array): output
            for output, array in enumerate(one() for one in self._made)
            if array is not None
        }
        pairs = [
            (made[id(array)], place) for place, array in enumerate(inputs) if id(array) in made
        ]
        found = tuple(
            (output, place)
            for output, place in pairs
            if self._outputs[output] == self._inputs[place]
        )
        # Unchanged while the missing inputs are neither former outputs nor forwarded in vain.
        if found == self.forwarded:
            return False
        self._changes_left -= 1
        self.forwarded = found if self._changes_left else ()
        return True

    def copied(self, inputs: Sequence[Any], held: set[int]) -> None:
        """Note that the inputs were copied, except those at the places ``held``."""
        for place, array in enumerate(inputs):
            if place not in held:
                self._held[place] = weakref.ref(array)

    def forwarding(self) -> None:
        """Note that the memory of the forwarded outputs is about to change."""
        for _, place in self.forwarded:
            self._held[place] = _nothing

    def launched(self, outputs: Sequence[Any]) -> None:
        """Note the outputs of a launch, the forwarded ones of which were copied."""
        self._made = [weakref.ref(array) for array in outputs]
        for output, place in self.forwarded:
            self._held[place] = self._made[output]


def _nothing() -> None:
    """Return ``None``, as a weak reference to a dead array does."""
