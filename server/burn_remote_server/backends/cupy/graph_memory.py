"""Record of the inputs whose elements are already in the memory of a captured graph.

Arrays never change. So an array that was also an input of the previous launch, such as a model's
weights, needs no copy. A training step takes outputs of the previous step as inputs. After such a
step was seen, each launch also copies these outputs to the memory of the inputs that they become in
the next launch: they are *forwarded*.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["InputMemory"]

# How often the choice of forwarded outputs may change. Each change needs a new table of copies, and
# a program that passes its results on differently each time gains nothing from forwarding.
MAX_CHANGES: Final = 8


class InputMemory:
    """The arrays whose elements are in the memory of a graph's inputs.

    ``inputs`` and ``outputs`` are the layouts of the graph's arrays. An output is only forwarded to
    an input with the same layout. If ``outputs`` is empty, no output is forwarded.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._inputs: Final = tuple(inputs)
        self._outputs: Final = tuple(outputs)
        self._held: Final[list[Callable[[], Any]]] = [_nothing] * len(inputs)
        self._made: list[Callable[[], Any]] = []
        self._changes_left = MAX_CHANGES if outputs else 0
        self.forwarded: tuple[tuple[int, int], ...] = ()

    def held(self, inputs: Sequence[Any]) -> set[int]:
        """Return the places of those inputs that need no copy."""
        held = self._held
        return {place for place, array in enumerate(inputs) if held[place]() is array}

    def learn(self, inputs: Sequence[Any], held: set[int]) -> bool:
        """Update ``forwarded``: pairs of an output and an input; return whether it changed.

        ``inputs`` are those of the next launch, and ``held`` is the result of ``held(inputs)``.
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
        # ``found`` equals ``forwarded`` if no input that must be copied is an output of the last
        # launch, and if every forwarded output is an input again.
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
        """Note that a launch is about to overwrite the inputs that outputs are forwarded to."""
        for _, place in self.forwarded:
            self._held[place] = _nothing

    def launched(self, outputs: Sequence[Any]) -> None:
        """Note the outputs of a launch; the forwarded outputs have been copied to inputs."""
        self._made = [weakref.ref(array) for array in outputs]
        for output, place in self.forwarded:
            self._held[place] = self._made[output]


def _nothing() -> None:
    """Return ``None``, as a weak reference to a dead array does."""
