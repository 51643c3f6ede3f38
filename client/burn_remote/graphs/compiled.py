"""``compile``: functions that are recorded in their first call and issued as one task after it."""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar, final

from burn_remote.arguments.traced_numbers import NumberProgram, TracedNumber
from burn_remote.functions.default_device import default_device
from burn_remote.functions.tensor import Tensor
from burn_remote.graphs.names import name_in
from burn_remote.graphs.recorder import Argument, Recorder
from burn_remote.graphs.structures import Template, rebuilt, take_apart
from burn_remote.runner.graphs import Graph
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import ArgumentMismatch, DeviceMismatch, UsageError
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["CompiledFunction", "compile"]

P = ParamSpec("P")
R = TypeVar("R")

# Graphs that one function keeps. A function that needs more is called with ever new shapes, and
# gains nothing from being compiled.
MAX_GRAPHS: Final = 64

# Combinations of specs, by their identities, that one function remembers.
MAX_IDENTITIES: Final = 256

_ARGUMENT, _OUTPUT, _NUMBER = range(3)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A place in a function's result: the kind of its value, and the position of that kind."""

    kind: int
    place: int


@final
@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph, what a call passes to it, and how its outputs become the function's result."""

    graph: Graph
    used: tuple[int, ...] | None  # tensor arguments that are inputs; ``None`` for all, in order
    constants: tuple[TensorHandle, ...]
    numbers: NumberProgram
    registers: tuple[int, ...]  # of the number program, for the graph's numbers
    result: Template | None  # ``None`` if the result is the graph's only output

    def issue(
        self,
        client: RunnerClient,
        tensors: Sequence[Tensor],
        handles: list[TensorHandle],
        registers: Sequence[Any],
    ) -> Any:
        """Issue the graph for the arguments and numbers of a call; return the function's result."""
        if self.used is not None:
            handles = [handles[place] for place in self.used]
            handles += self.constants
        values: Sequence[Any] = ()
        if self.registers:
            values = [registers[place] for place in self.registers]
        outputs = client.register_graph(self.graph, handles, values)
        if self.result is None:
            return Tensor(outputs[0])
        return self.result.build((tensors, [Tensor(handle) for handle in outputs], registers))


def _place_of(leaf: Any) -> tuple[int, int] | None:
    return (leaf.kind, leaf.place) if type(leaf) is _Leaf else None


class _Recording(threading.local):
    """Whether this thread is recording a function."""

    active = False


_recording: Final = _Recording()


@final
class CompiledFunction(Generic[P, R]):
    """A function that is recorded once for each structure, shape and dtype of its arguments."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._graphs: dict[Hashable, list[_Recorded]] = {}
        # The same graphs by the identities of specs, which the entries keep alive.
        self._found: dict[Hashable, tuple[list[TensorSpec], list[_Recorded]]] = {}
        self._count = 0
        self._has_warned = False

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method: its object is static, and its tensors must be arguments."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: issue its graph for these arguments, or record it."""
        if _recording.active:  # part of the function that is being recorded
            return self._function(*args, **kwargs)
        tensors: list[Tensor] = []
        numbers: list[Any] = []
        structure = take_apart((args, kwargs) if kwargs else args, tensors, numbers)
        client = tensors[0].handle.client if tensors else default_device().runners
        is_common = True
        handles: list[TensorHandle] = []
        # Specs by identity, because their hashes and comparisons take as long as the rest.
        identity: list[Any] = [structure, client.session.__class__]
        for tensor in tensors:
            handle = tensor.handle
            handles.append(handle)
            identity.append(id(handle.spec))
            if handle.client is not client:
                is_common = False
        found = self._found.get(tuple(identity))
        graphs = found[1] if found is not None else self._find(tuple(identity), handles)
        if not is_common:
            client = _common(handles)
        for recorded in graphs:
            if recorded.constants and recorded.constants[0].client is not client:
                continue
            registers = recorded.numbers.run(numbers)
            if registers is not None:
                return recorded.issue(client, tensors, handles, registers)  # type: ignore[no-any-return]
        if not isinstance(client, RunnerStack):  # a runner around these tensors only
            return self._function(*args, **kwargs)
        value, recorded = self._record(client, (args, kwargs), handles, numbers)
        self._keep((*identity[:2], *[handle.spec for handle in handles]), recorded)
        return value  # type: ignore[no-any-return]

    def _find(
        self, identity: tuple[Any, ...], handles: Sequence[TensorHandle]
    ) -> Sequence[_Recorded]:
        """Return the graphs for arguments that were not seen as the same objects before."""
        specs = [handle.spec for handle in handles]
        graphs = self._graphs.get((*identity[:2], *specs))
        if graphs is None:
            return ()
        if len(self._found) >= MAX_IDENTITIES:
            self._found.clear()
        self._found[identity] = (specs, graphs)
        return graphs

    def _record(
        self, stack: RunnerStack, call: Any, handles: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[Any, _Recorded]:
        program = NumberProgram(numbers)
        arguments = [Argument(handle, place) for place, handle in enumerate(handles)]
        recorder = Recorder(
            stack.outermost, arguments, program, functools.partial(name_in, self._function)
        )
        leaves = iter([Tensor(argument) for argument in arguments])
        traced = iter(program.inputs)
        found: list[Tensor] = []
        values: list[Any] = []

        def replaced(leaf: Any) -> Any:
            # The same test as for the structure, so that both agree on what is a leaf.
            take_apart(leaf, found, values)
            if found:
                found.clear()
                return next(leaves)
            if values:
                values.clear()
                return next(traced)
            return leaf

        args, kwargs = rebuilt(call, replaced)
        stack.put_around(recorder)
        _recording.active = True
        try:
            value = self._function(*args, **kwargs)
        finally:
            _recording.active = False
            stack.take_away(recorder)
        return self._finished(value, recorder, arguments, program)

    def _finished(
        self,
        value: Any,
        recorder: Recorder,
        arguments: Sequence[Argument],
        program: NumberProgram,
    ) -> tuple[Any, _Recorded]:
        """Return the result of the recorded call, and what later calls need."""
        outputs: dict[int, TensorHandle] = {}
        places: dict[int, int] = {}

        def leaf_of(leaf: Any) -> Any:
            if type(leaf) is TracedNumber:
                if leaf.program is not program:
                    raise UsageError("a compiled function returns a number of another call")
                return _Leaf(_NUMBER, leaf.place)
            if type(leaf) is not Tensor:
                return leaf
            handle = leaf.handle
            if type(handle) is Argument:
                return _Leaf(_ARGUMENT, handle.slot)
            recorder.check_result(handle)
            outputs.setdefault(handle.id, handle)
            return _Leaf(_OUTPUT, places.setdefault(handle.id, len(places)))

        def given(leaf: Any) -> Any:
            if type(leaf) is TracedNumber:
                return leaf.value
            if type(leaf) is Tensor and type(leaf.handle) is Argument:
                return Tensor(leaf.handle.original)
            return leaf

        template = rebuilt(value, leaf_of)
        graph, used, constants = recorder.graph([*outputs.values()])
        is_single = template == _Leaf(_OUTPUT, 0)
        takes_all = used == (*range(len(arguments)),) and not constants
        recorded = _Recorded(
            graph,
            None if takes_all else used,
            constants,
            program,
            tuple(recorder.number_places),
            None if is_single else Template(template, _place_of),
        )
        return rebuilt(value, given), recorded

    def _keep(self, key: Hashable, recorded: _Recorded) -> None:
        while self._count >= MAX_GRAPHS and self._graphs:
            self._count -= len(self._graphs.pop(next(iter(self._graphs))))
            self._found.clear()
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._function.__qualname__} was recorded for more than {MAX_GRAPHS} "
                    "different shapes, dtypes, structures or branches of its arguments; the oldest "
                    "graphs are discarded, and recorded again when they are needed",
                    stacklevel=3,
                )
        self._graphs.setdefault(key, []).append(recorded)
        self._count += 1


def _common(handles: Sequence[TensorHandle]) -> RunnerClient:
    sessions = {id(handle.client.session) for handle in handles}
    if len(sessions) > 1:
        devices = ", ".join(dict.fromkeys(str(handle.client.device) for handle in handles))
        raise DeviceMismatch(
            f"the arguments of a compiled function are on different devices ({devices}); "
            "move them to one device with x.to(device)"
        )
    return next(handle.client for handle in handles if not isinstance(handle.client, RunnerStack))


def compile(function: Callable[P, R]) -> CompiledFunction[P, R]:
    """Return a function that is recorded in its first call and then issued as one task.

    Use it as a decorator, or as ``compile(f)``. The first call runs as usual. Later calls with
    arguments of the same shapes, dtypes and structure send one short message, whatever the number
    of operations, and run no Python code of the function.

    Arguments and results are tensors, numbers, and tuples, lists and dictionaries of them; any
    other argument is compared by equality. Numbers may change from call to call. Everything else
    that the function uses (global variables, attributes) keeps the value of the first call.

    The function must not read, move or upload tensors, and must not use tensors that are not
    arguments: this raises ``UsageError`` with the line of the program.
    """
    if not callable(function):
        raise ArgumentMismatch(f"compile takes a function, not {function!r}")
    if isinstance(function, CompiledFunction):
        return function
    return CompiledFunction(function)
