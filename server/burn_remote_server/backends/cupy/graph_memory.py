"""Memory that the launches of a captured graph have in common: of inputs, and of outputs.

``InputMemory`` records the inputs whose elements are already in the graph's memory. Arrays never
change. So an array that was also an input of the previous launch, such as a model's weights, needs
no copy. A training step takes outputs of the previous step as inputs. After such a step was seen,
each launch also copies these outputs to the memory of the inputs that they become in the next
launch: they are *forwarded*.

``OutputMemory`` reuses the memory of outputs that nothing refers to any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Final

__all__ = ["InputMemory", "OutputMemory"]

# How often the choice of forwarded outputs may change. Each change needs a new table of copies, and
# a program that passes its results on differently each time gains nothing from forwarding.
MAX_CHANGES: Final = 8

# The largest output whose memory is kept, and the most bytes of one launch that are kept. Taking
# memory from CuPy's pool and giving it back takes some 3 µs, whatever its size.
KEPT_OUTPUT_BYTES: Final = 4 * 2**20
KEPT_BYTES: Final = 16 * 2**20
# The launches whose memory is kept. When a training step is launched, its inputs still refer to the
# outputs of the launch before.
KEPT_LAUNCHES: Final = 2


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


class OutputMemory:
    """New arrays for the outputs of each launch.

    An array gets the memory of an output of one of the last launches if nothing else refers to that
    memory, and new memory otherwise. All launches are on one stream, so the GPU has finished the
    work of that stream on the earlier output when it writes the new one; what reads an output on
    another stream refers to it until that stream has finished.

    A layout has ``nbytes``. ``empty()`` returns an array in new memory, and ``over(pointer)`` one
    in the memory of an array whose attribute ``data`` is ``pointer``. The memory itself is
    ``pointer.mem``: the pointers of some views refer to it alone.
    """

    def __init__(self, layouts: Sequence[Any]) -> None:
        self._layouts: Final = tuple(layouts)
        # The bytes of memory that is kept although nothing uses it, at most.
        self.nbytes = 0
        # For each output, the pointers to the memory that is kept; ``None`` if none is.
        self._kept: list[list[Any] | None] = []
        for layout in self._layouts:
            total = self.nbytes + KEPT_LAUNCHES * layout.nbytes
            is_kept = layout.nbytes <= KEPT_OUTPUT_BYTES and total <= KEPT_LAUNCHES * KEPT_BYTES
            if is_kept:
                self.nbytes = total
            self._kept.append([] if is_kept and layout.nbytes else None)

    def arrays(self) -> list[Any]:
        """Return arrays for the outputs of a launch."""
        arrays = []
        for layout, kept in zip(self._layouts, self._kept, strict=True):
            if kept is None:
                arrays.append(layout.empty())
                continue
            for pointer in kept:
                if getrefcount(pointer) <= _UNUSED and getrefcount(pointer.mem) <= _UNUSED_MEMORY:
                    arrays.append(layout.over(pointer))
                    break
            else:
                array = layout.empty()
                arrays.append(array)
                kept.append(array.data)
                if len(kept) > KEPT_LAUNCHES:
                    del kept[0]
        return arrays

    def clear(self) -> None:
        """Keep no memory from now on. Another thread may be in ``arrays``."""
        self._kept = [None] * len(self._layouts)


def _measure_references() -> tuple[int, int]:
    """Return the reference counts of a pointer that only one list holds, and of its memory.

    Measured, because the references that a loop and a call add depend on Python's version.
    """

    class Pointer:
        __slots__ = ("mem",)

    made = Pointer()
    made.mem = object()  # type: ignore[attr-defined]
    kept = [made]
    del made
    for pointer in kept:
        return getrefcount(pointer), getrefcount(pointer.mem)  # type: ignore[attr-defined]
    raise AssertionError


_UNUSED, _UNUSED_MEMORY = _measure_references()


def _nothing() -> None:
    """Return ``None``, as a weak reference to a dead array does."""
