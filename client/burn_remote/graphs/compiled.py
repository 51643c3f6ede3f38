"""``compile``: functions that are recorded in their first call and issued as one task after it."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import inspect
import operator
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar, final, overload

import numpy as np

from burn_remote.arguments.traced_numbers import NumberProgram, TracedNumber
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device import Device
from burn_remote.functions.tensor import Tensor
from burn_remote.graphs.names import name_in
from burn_remote.graphs.recorder import Argument, Recorder
from burn_remote.graphs.structures import (
    Template,
    is_compared_by_identity,
    is_container,
    rebuilt,
    take_apart,
)
from burn_remote.graphs.surroundings import Guard, guards_of
from burn_remote.runner.graphs import Graph, recording
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ArgumentMismatch, DeviceMismatch, UsageError
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["CompiledFunction", "compile"]

P = ParamSpec("P")
R = TypeVar("R")

# Graphs that one function keeps. A function that needs more is called with ever new shapes, and
# gains nothing from being compiled.
MAX_GRAPHS: Final = 64

_ONLY_TENSORS: Final = frozenset({Tensor})

# Combinations of specs, by their identities, that one function remembers.
MAX_IDENTITIES: Final = 256

_ARGUMENT, _OUTPUT, _NUMBER = range(3)

# Values of a result, besides tensors and numbers, that are the same in each call.
_CONSTANTS: Final = (
    types.NoneType | bool | int | float | complex | str | bytes | np.generic | np.dtype | DType
    | enum.Enum | type
)  # fmt: skip


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
    # Each guard, with its function ``read`` and its value ``seen``, which a call compares first.
    guards: tuple[tuple[Callable[[], Any] | None, object, Guard], ...]

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


@final
class CompiledFunction(Generic[P, R]):
    """A function that is recorded once for each structure, shape and dtype of its arguments."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._graphs: dict[Hashable, list[_Recorded]] = {}
        # The same graphs by the identities of specs, which the entries keep alive.
        self._found: dict[Hashable, tuple[list[TensorSpec], list[_Recorded]]] = {}
        self._has_warned = False

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method: its object is static, and its tensors must be arguments."""
        return self if instance is None else types.MethodType(self, instance)

    # One method, because each further call costs 0.1 of 5 µs.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: C901
        """Call the function: issue its graph for these arguments, or record it."""
        if recording.runner is not None:  # part of the function that is being recorded
            return self._function(*args, **kwargs)
        tensors: Sequence[Tensor]
        numbers: list[Any] = []
        statics: list[Any] = []
        structure: Hashable
        if not kwargs and _ONLY_TENSORS.issuperset(map(type, args)):
            tensors, structure = args, len(args)  # type: ignore[assignment]
        else:
            tensors = []
            structure = take_apart((args, kwargs) if kwargs else args, tensors, numbers, statics)
        client = tensors[0].handle.client if tensors else _device_of(statics).runners
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
            for read, seen, guard in recorded.guards:
                # Compared here first, because a call of ``holds`` takes three times as long.
                if (read is None or read() is not seen) and not guard.holds(statics):
                    break
            else:
                registers = recorded.numbers.run(numbers)
                if registers is not None:
                    return recorded.issue(client, tensors, handles, registers)  # type: ignore[no-any-return]
        key = (*identity[:2], *[handle.spec for handle in handles])
        return self._call_anew(client, (args, kwargs), key, tensors, numbers, statics)  # type: ignore[no-any-return]

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

    def _call_anew(
        self,
        client: RunnerClient,
        call: Any,
        key: Hashable,
        tensors: Sequence[Tensor],
        numbers: Sequence[Any],
        statics: Sequence[Any],
    ) -> Any:
        """Record a call for which there is no graph."""
        # Run the function uncompiled if a runner is around only these tensors, or if another thread
        # records on the device.
        if not isinstance(client, RunnerStack) or not client.recording.acquire(blocking=False):
            return self._function(*call[0], **call[1])
        try:
            guards = guards_of(self._function, statics)
            value, recorded = self._record(client, call, tensors, numbers, guards)
        finally:
            client.recording.release()
        for guard in guards:
            if not guard.holds(statics):
                self._warn(
                    f"changes {guard.name}, so each call is recorded again; pass it as an argument "
                    "and return the new value",
                    stacklevel=4,
                )
                break
        self._keep(key, recorded, statics)
        return value

    def __repr__(self) -> str:
        """Return the function's name and how many graphs it has."""
        count = sum(map(len, [*self._graphs.values()]))
        return f"<compiled function {self._name}: {count} graph{'s' * (count != 1)}>"

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def __reduce__(self) -> str:
        """Pickle and copy as a function: by its name."""
        return self._function.__qualname__

    def _record(
        self,
        stack: RunnerStack,
        call: Any,
        tensors: Sequence[Tensor],
        numbers: Sequence[Any],
        guards: tuple[Guard, ...],
    ) -> tuple[Any, _Recorded]:
        program = NumberProgram(numbers)
        arguments = [Argument(tensor.handle, place) for place, tensor in enumerate(tensors)]
        recorder = Recorder(
            stack.outermost,
            arguments,
            program,
            functools.partial(name_in, self._function, call),
        )
        given, lent = _replaced(call, arguments, program)
        before = [(container, _contents(container)) for container in _mutable(given)]
        try:
            recording.runner = recorder
            stack.put_around(recorder, is_transparent=True)
            value = self._function(*given[0], **given[1])
            if recorder.line_of_kept(_handle_ids(value)) is not None:
                gc.collect()  # reference cycles may keep tensors for a while
        finally:
            recording.runner = None
            stack.take_away(recorder)
            program.finish()
        _check_unchanged(before)
        del given, before
        result, recorded = self._finished(value, recorder, tensors, program, guards)
        returned = _references(value)
        del value
        self._check_kept(recorder, result, lent, returned)
        return result, recorded

    def _check_kept(
        self, recorder: Recorder, result: Any, lent: Sequence[Any], returned: Sequence[Any]
    ) -> None:
        """Raise ``UsageError`` if the function stored a tensor elsewhere than in its result."""
        line = recorder.line_of_kept(_handle_ids(result))
        if line is None and any(reference() is not None for reference in (*lent, *returned)):
            gc.collect()
        advice = "return it"
        if line is not None:
            what = f"the tensor made at {line}"
        elif any(reference() is not None for reference in lent):
            what = "an argument"
        elif any(reference() is not None for reference in returned):
            what, advice = "one of its results", "store what the call returns"
        else:
            return
        raise UsageError(
            f"the compiled function stores {what} outside (in an attribute, a list or a variable), "
            f"and later calls would not; {advice}"
        )

    def _finished(
        self,
        value: Any,
        recorder: Recorder,
        tensors: Sequence[Tensor],
        program: NumberProgram,
        guards: tuple[Guard, ...],
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
                if isinstance(leaf, _CONSTANTS):
                    return leaf
                raise UsageError(
                    f"a compiled function returns a {type(leaf).__name__}; it may return tensors, "
                    "numbers, strings, and tuples, lists and dictionaries of them"
                )
            handle: Any = leaf.handle
            if recorder.has_argument(handle):
                return _Leaf(_ARGUMENT, handle.slot)
            recorder.check_result(handle)
            outputs.setdefault(handle.id, handle)
            return _Leaf(_OUTPUT, places.setdefault(handle.id, len(places)))

        template = rebuilt(value, leaf_of)
        graph, used, constants = recorder.graph([*outputs.values()])
        is_single = template == _Leaf(_OUTPUT, 0)
        takes_all = used == (*range(len(tensors)),) and not constants
        recorded = _Recorded(
            graph,
            None if takes_all else used,
            constants,
            program,
            tuple(recorder.number_places),
            None if is_single else Template(template, _place_of),
            tuple([(guard.read, guard.seen, guard) for guard in guards]),
        )
        return _given(value, recorder, tensors), recorded

    def _keep(self, key: Hashable, recorded: _Recorded, statics: Sequence[Any]) -> None:
        graphs = self._graphs
        if key not in graphs:
            # Keys do not keep objects alive; graphs of objects that died can never be used again.
            for static in statics:
                if is_compared_by_identity(static):
                    _forget_with(static, self, key)
        while sum(map(len, [*graphs.values()])) >= MAX_GRAPHS:
            oldest = next(iter([*graphs]), None)
            graphs.pop(oldest, None)
            self._found.clear()
            self._warn(
                f"was recorded for more than {MAX_GRAPHS} different shapes, dtypes or structures "
                "of its arguments, or numbers that decide something (a shape, an index, a branch, "
                "the result of a function such as math.sqrt); the oldest graphs are discarded, and "
                "recorded again when they are needed",
                stacklevel=5,
            )
        graphs.setdefault(key, []).append(recorded)

    def _warn(self, text: str, stacklevel: int) -> None:
        """Warn once about a function that gains nothing from being compiled."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{self._name} {text}", stacklevel=stacklevel)


def _replaced(
    call: Any, arguments: Sequence[Argument], program: NumberProgram
) -> tuple[Any, list[Any]]:
    """Return a call's arguments for recording, and weak references to its tensors."""
    leaves = iter(arguments)
    traced = iter(program.inputs)
    lent: list[Any] = []
    found: list[Tensor] = []
    values: list[Any] = []

    def replaced(leaf: Any) -> Any:
        # The same test as for the structure, so that both agree on what is a leaf.
        take_apart(leaf, found, values, [])
        if found:
            found.clear()
            tensor = Tensor(next(leaves))
            lent.append(weakref.ref(tensor))
            return tensor
        if values:
            values.clear()
            return next(traced)
        return leaf

    return rebuilt(call, replaced), lent


def _given(value: Any, recorder: Recorder, tensors: Sequence[Tensor]) -> Any:
    """Return the result of a recorded call in the form in which the caller gets it.

    Its tensors are other objects than those of the function, which die unless it stores them.
    """
    copies: dict[int, Tensor] = {}

    def replaced(leaf: Any) -> Any:
        if type(leaf) is TracedNumber:
            return leaf.value
        if type(leaf) is not Tensor:
            return leaf
        if recorder.has_argument(leaf.handle):
            return tensors[leaf.handle.slot]  # type: ignore[attr-defined]
        return copies.setdefault(leaf.handle.id, Tensor(leaf.handle))

    return rebuilt(value, replaced)


def _references(result: Any) -> list[Any]:
    """Return weak references to the tensors in a result."""
    leaves: list[Any] = []
    rebuilt(result, leaves.append)
    return [weakref.ref(leaf) for leaf in leaves if type(leaf) is Tensor]


def _device_of(statics: Sequence[Any]) -> Device:
    """Return the device of a call without tensors: an argument, or the default device."""
    return next((one for one in statics if isinstance(one, Device)), None) or default_device()


def _handle_ids(result: Any) -> set[int]:
    """Return the ids of the tensors in a result."""
    leaves: list[Any] = []
    rebuilt(result, leaves.append)
    return {leaf.handle.id for leaf in leaves if type(leaf) is Tensor}


def _mutable(value: Any) -> Iterator[Any]:
    """Iterate over the lists and dictionaries in nested containers."""
    if is_container(value) and type(value) is not slice:
        if not isinstance(value, tuple):
            yield value
        for member in value.values() if isinstance(value, dict) else value:
            yield from _mutable(member)


def _contents(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _check_unchanged(before: list[tuple[Any, list[Any]]]) -> None:
    """Raise ``UsageError`` unless containers have the contents that they had before."""
    for container, contents in before:
        now = _contents(container)
        if len(now) != len(contents) or not all(map(operator.is_, now, contents)):
            raise UsageError(
                f"the compiled function changes a {type(container).__name__} that is an "
                "argument, and later calls would not; return the new one"
            )


def _forget_with(static: Any, compiled: CompiledFunction[Any, Any], key: Hashable) -> None:
    """Discard the graphs of a key when an object dies."""
    reference = weakref.ref(compiled)

    def forget() -> None:
        owner = reference()
        if owner is not None:
            owner._graphs.pop(key, None)
            owner._found.clear()

    with contextlib.suppress(TypeError):  # no weak references: the key keeps the object alive
        weakref.finalize(static, forget).atexit = False


def _common(handles: Sequence[TensorHandle]) -> RunnerClient:
    sessions = {id(handle.client.session) for handle in handles}
    if len(sessions) > 1:
        devices = ", ".join(dict.fromkeys(str(handle.client.device) for handle in handles))
        raise DeviceMismatch(
            f"the arguments of a compiled function are on different devices ({devices}); "
            "move them to one device with x.to(device)"
        )
    return next(handle.client for handle in handles if not isinstance(handle.client, RunnerStack))


@overload
def compile(function: Callable[P, R], /) -> CompiledFunction[P, R]: ...


@overload
def compile() -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


@explained
def compile(function: Callable[..., Any] | None = None, /) -> Any:
    """Return a function that is recorded in its first call and then issued as one task.

    Use it as a decorator, or as ``compile(f)``; it has no options. The first call runs as usual.
    Later calls with arguments of the same shapes, dtypes and structure send one short message,
    whatever the number of operations, and run no Python code of the function::

        @burn_remote.compile
        def step(weights, x, rate):
            return {name: w - gradient(w, x) * rate for name, w in weights.items()}

    Arguments and results are tensors, numbers, and tuples, lists and dictionaries of them; any
    other argument is compared by equality, or by identity if its class defines none. The tensors of
    an object, such as ``self.weight``, must be arguments of their own. Numbers may change from call
    to call; a number that decides something (a branch, a shape, an index, the result of
    ``math.sqrt``, a printed text) makes another graph for each outcome. Test their types with
    ``isinstance``: ``type(n)`` is another class while the function is recorded. Random numbers are
    drawn anew in each call. Without a tensor among its arguments, a function runs on the device
    among them, or on the default device.

    Functions, numbers, strings, ``None`` and small containers of them that the function takes from
    closures, global variables, default arguments or attributes are compared in each call; a change
    makes another graph. A function that changes such a value itself is recorded in each call, and
    warns. *Not* compared is what the function gets by calling something else (``random``,
    ``time``, files), by ``getattr`` or from objects that its code does not name, from containers of
    more than 64 members or arrays above 4 KiB, and methods replaced in a class: these keep the
    effect of the first call.

    Raises ``UsageError`` with the line of the program if the function reads, moves or uploads
    tensors, uses tensors that are not arguments, or stores tensors elsewhere than in its result.
    Other side effects (``print``, counters) happen only when a call is recorded.
    """
    if function is None:
        return compile
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise ArgumentMismatch(f"compile takes a function; write @{kind} above @compile")
    if isinstance(function, type):
        raise ArgumentMismatch(
            f"compile takes a function, not the class {function.__qualname__}; compile a method "
            "that takes the tensors as arguments"
        )
    if not callable(function):
        raise ArgumentMismatch(f"compile takes a function, not {function!r}")
    if isinstance(function, CompiledFunction):
        return function
    called: Any = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(called):
        called = type(called).__dict__.get("__call__", called)
    for kind in ("generator", "coroutine", "asyncgen"):
        if getattr(inspect, f"is{kind}function")(called):
            raise ArgumentMismatch(
                f"compile takes a function that returns its result, not the {kind} function "
                f"{getattr(called, '__qualname__', called)}"
            )
    return CompiledFunction(function)
