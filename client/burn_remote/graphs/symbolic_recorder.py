"""The runner that records a function without executing it."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, final

from burn_remote.arguments.traced_numbers import NumberProgram
from burn_remote.autodiff.nodes import TrackedHandle
from burn_remote.graphs.recorder import Argument, Recorder
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.issuing import recording
from burn_remote.runner.operation_graph import GraphPart, part_of
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["SymbolicRecorder"]


@final
class _Symbol(TensorHandle):
    """A tensor that exists only in a recording: a shape and a dtype. Its id is negative."""

    __slots__ = ("__weakref__",)


def _described(handle: TensorHandle) -> str:
    return f"a {handle.spec}"


class _Ended:
    """The client of symbols whose recording was abandoned."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            "a compiled function stored this tensor while it was recorded, so it has no elements"
        )


_ENDED: Final[Any] = _Ended()


@final
class SymbolicRecorder(Recorder):
    """Records the operations of a function on symbols, and sends nothing but derived constants.

    Its recording may be continued: ``mark`` is a place in it, and ``rewind`` discards what was
    recorded after it. A tensor has a *source*: the number of a result, or a negative number for an
    argument, a constant or a placeholder.
    """

    def __init__(
        self,
        stack: RunnerStack,
        arguments: Sequence[Argument],
        numbers: NumberProgram,
        name_of: Callable[[TensorHandle], str],
    ) -> None:
        super().__init__(stack.outermost, arguments, numbers, name_of)
        self._stack = weakref.ref(stack)
        self._symbols: list[weakref.ref[_Symbol]] = []
        self._next_id = -1

    @contextlib.contextmanager
    def recording(self, stack: RunnerStack) -> Iterator[None]:
        """Record this thread's operations. The caller holds the lock ``stack.recording``."""
        self.inner = stack.outermost
        self._thread = threading.get_ident()
        self._numbers.resume()
        self._symbols.clear()
        try:
            recording.runner = self
            stack.put_around(self, is_transparent=True)
            yield
        finally:
            recording.runner = None
            stack.take_away(self)
            self._numbers.finish()

    def _issued(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        return tuple([self._symbol(spec) for spec in signature.outputs])

    def placeholder(self, spec: TensorSpec) -> TensorHandle:
        """Return a symbol for a tensor that only later calls have."""
        handle = self._symbol(spec)
        self._constant_ids[handle.id] = len(self.constants)
        self.constants.append(handle)
        return handle

    def source_of(self, handle: TensorHandle) -> int:
        """Return the source of a tensor. Raises ``UsageError`` for one that was not recorded."""
        return self._source(handle)

    def line_of_kept(self, returned: Collection[int] = ()) -> str | None:
        """Return the line that made a symbol which is alive although the function has ended."""
        alive = [reference() for reference in self._symbols]
        self._alive = {one.id for one in alive if one is not None and one.id in self._made}
        del alive
        return super().line_of_kept(returned)

    def is_of(self, stack: RunnerStack) -> bool:
        """Return whether this recorder records on a device."""
        return self._stack() is stack

    def copied(self, handle: TensorHandle) -> TensorHandle:
        """Return a second object for a symbol, so that the caller need not keep the first alive."""
        if type(handle) is not _Symbol:
            return handle
        return _Symbol(handle.client, handle.id, handle.spec)

    def attach(self, stack: RunnerStack | None) -> None:
        """Make a device the client of the arguments; ``None`` removes it.

        Without a device, this recorder keeps neither the device nor the tensors of the first call
        alive.
        """
        if stack is None:
            self.inner = _ENDED
            self._name_of = _described
        for argument in self._arguments:
            argument.original = _ENDED
            argument.client = stack or _ENDED

    def abandon(self) -> None:
        """Make the symbols that are still alive refuse every use."""
        for reference in self._symbols:
            symbol = reference()
            if symbol is not None:
                symbol.client = _ENDED
                # Tracked handles of the symbol have clients of their own.
                for holder in gc.get_referrers(symbol):
                    if type(holder) is TrackedHandle:
                        holder.client = _ENDED

    @property
    def mark(self) -> tuple[int, int]:
        """The numbers of operations and of results that were recorded so far."""
        return len(self._recorded), len(self._made)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Discard the operations after a mark."""
        steps, results = mark
        del self._recorded[steps:]
        for identifier in [*self._made][results:]:
            del self._made[identifier]

    def part(self, start: tuple[int, int], outputs: Sequence[int]) -> GraphPart:
        """Return what was recorded since a mark as a graph, whose slots are sources."""
        steps, results = start
        return part_of(self._recorded[steps:], range(results, len(self._made)), outputs)

    def _symbol(self, spec: TensorSpec) -> _Symbol:
        stack: Any = self._stack()
        symbol = _Symbol(stack, self._next_id, spec)
        self._next_id -= 1
        self._symbols.append(weakref.ref(symbol))
        return symbol
