"""``compile``: functions that are recorded in their first call and issued as one task after it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar, final, overload

from burn_remote.arguments.containers import rebuilt
from burn_remote.autodiff.backward_pass import sources_of
from burn_remote.autodiff.grad_mode import is_recording
from burn_remote.autodiff.nodes import TrackedHandle
from burn_remote.autodiff.saved_containers import tensors_in
from burn_remote.autodiff.tracking import Autodiff
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.diagnostics.tracebacks import shorten
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tracked_tensors import is_tracked_leaf, update_all
from burn_remote.graphs.guards import guards_of
from burn_remote.graphs.recorded_call import RecordedCall, record_call, run_updating, untracked
from burn_remote.graphs.structures import is_compared_by_identity, take_apart
from burn_remote.graphs.tracked_call import NotRecorded, TrackedFunction, record_tracked
from burn_remote.runner.interface import RunnerClient, TensorHandle, distinction
from burn_remote.runner.issuing import recording
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import ArgumentMismatch, ConnectionFailed, DeviceMismatch
from burn_remote_protocol.interrupted_finalizers import call_when_freed
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["CompiledFunction", "compile"]

P = ParamSpec("P")
R = TypeVar("R")

# Graphs that one function keeps. A function that needs more is called with ever new shapes, and
# gains nothing from being compiled.
MAX_GRAPHS: Final = 64

_UNCOMPILED: Final = "was called with tracked tensors and runs uncompiled"
# The first member of the keys of graphs for tracked tensors.
_TRACKED: Final = "tracked"

_ONLY_TENSORS: Final = frozenset({Tensor})

# ``CompiledFunction._last`` before the first call.
_NO_CALL: Final[tuple[list[Any], Sequence[RecordedCall]]] = ([], ())

# Combinations of specs, by their identities, that one function remembers.
MAX_IDENTITIES: Final = 256


@final
class CompiledFunction(Generic[P, R]):
    """A function that is recorded once for each structure, shape and dtype of its arguments."""

    def __init__(self, function: Callable[P, R], updated: tuple[int, ...] = ()) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        # The places of the tensor arguments that are leaves, which a call in ``no_grad`` may
        # update in place. If there are any, a call has a list of their gradients before the other
        # arguments, and its result is a pair: the function's result, and their new elements.
        self._updated = updated
        self._updating: dict[tuple[int, ...], CompiledFunction[P, Any]] = {}
        # ``None`` stands for a call with tracked tensors that cannot be recorded.
        self._graphs: dict[Hashable, list[Any]] = {}
        # The same graphs by the identities of specs, which the entries keep alive.
        self._found: dict[Hashable, tuple[list[TensorSpec], list[RecordedCall]]] = {}
        # What decided the graphs of the last call, and these graphs. Replaced whole, so that
        # threads need no lock.
        self._last = _NO_CALL
        # The warnings that were given, each once.
        self._warnings: set[str] = set()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method. ``self`` is static; its tensors must be arguments of their own."""
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
        # ``is_recording``, because a function may compute something else inside ``no_grad``.
        kind: list[Any] = [structure, client.session.__class__, is_recording()]
        for tensor in tensors:
            handle = tensor.handle
            handles.append(handle)
            kind.append(handle.spec)
            if handle.client is not client:
                is_common = False
        # Most calls repeat the last one, with the same objects as specs: then this compares only
        # identities, and needs no hash. Static values are looked up, because the ``==`` of their
        # class may give anything.
        last, graphs = self._last
        if statics or kind != last:
            graphs = self._find(kind)
        try:
            if not is_common:
                client = _common(handles)
            if type(client) is Autodiff:
                if is_recording():
                    key = (structure, client.session.__class__, *[one.spec for one in handles])
                    call = (args, kwargs)
                    return self._call_recorded(client, call, key, tensors, numbers, statics)  # type: ignore[no-any-return]
                return self._call_tracked(args, kwargs)  # type: ignore[no-any-return]
            for recorded in graphs:
                if recorded.constants and recorded.constants[0].client is not client:
                    continue
                for read, seen, guard in recorded.guards:
                    # Compared here first, because a call of ``holds`` takes three times as long.
                    if (read is None or read() is not seen) and not guard.holds(statics):
                        break
                else:
                    registers = recorded.numbers.run(numbers) if recorded.computes else numbers
                    if registers is not None:
                        return recorded.issue(client, tensors, handles, registers)  # type: ignore[no-any-return]
            key = tuple(kind)
            return self._call_anew(client, (args, kwargs), key, tensors, numbers, statics)  # type: ignore[no-any-return]
        except Exception as error:  # also those of the function itself
            shorten(error)
            raise

    def call_again(
        self, tensors: Sequence[Tensor], numbers: Sequence[int | float], statics: Sequence[Any]
    ) -> R | None:
        """Issue the graph that the last call issued, for other arguments of the same structure.

        ``tensors`` and ``numbers`` are those among the arguments, in their order, and ``statics``
        all others, which are the same in each call. Returns ``None``, and issues nothing, if these
        arguments need another graph: then make an ordinary call, which takes longer, because it
        takes the arguments apart.
        """
        kind, graphs = self._last
        handles = [tensor.handle for tensor in tensors]
        client = handles[0].client if handles else None
        if (
            type(client) is not RunnerStack
            or recording.runner is not None
            or kind[3:] != [handle.spec for handle in handles]
            or kind[1] is not client.session.__class__
            or kind[2] is not is_recording()
            # A generator for ``any`` takes twice as long.
            or [handle.client for handle in handles].count(client) != len(handles)
        ):
            return None
        for recorded in graphs:
            if recorded.constants and recorded.constants[0].client is not client:
                continue
            for read, seen, guard in recorded.guards:
                if (read is None or read() is not seen) and not guard.holds(statics):
                    break
            else:
                registers = recorded.numbers.run(numbers) if recorded.computes else numbers
                if registers is not None:
                    return recorded.issue(client, tensors, handles, registers)  # type: ignore[no-any-return]
        return None

    def _find(self, kind: list[Any]) -> Sequence[RecordedCall]:
        """Return the graphs for calls of a kind: structure, session class, recording and specs."""
        # Specs by identity, because hashing and comparing them takes as long as the rest of a call.
        specs = kind[3:]
        identity = (*kind[:3], *map(id, specs))
        found = self._found.get(identity)
        if found is None:
            graphs = self._graphs.get(tuple(kind))
            if graphs is None:
                return ()
            if len(self._found) >= MAX_IDENTITIES:
                self._found.clear()
            found = self._found[identity] = (specs, graphs)
        self._last = (kind, found[1])
        return found[1]

    def _forget_found(self) -> None:
        self._found.clear()
        self._last = _NO_CALL

    def _call_recorded(
        self,
        client: Autodiff,
        call: Any,
        key: tuple[Any, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[Any],
        statics: Sequence[Any],
    ) -> Any:
        """Call the function with tracked tensors, so that its results are tracked."""
        function, stack = self._function, client.inner
        if (getattr(function, "__module__", None) or "").startswith("burn_remote."):
            return function(*call[0], **call[1])
        key = (_TRACKED, *key, *[type(one.handle) is TrackedHandle for one in tensors])
        graphs: Any = self._graphs.get(key, ())
        for traced in graphs:
            if traced is None or (
                traced.is_of(stack)
                and all(guard.holds(statics) for guard in traced.guards)
                and traced.numbers.run(numbers) is not None
            ):
                break
        else:
            # Another thread may record on the device, or a runner may be around some tensors.
            others = {one.handle.client for one in tensors} - {client, stack}
            if others or not stack.recording.acquire(blocking=False):
                return function(*call[0], **call[1])
            traced = None
            try:
                guards = guards_of(function, statics)
                traced = record_tracked(function, stack, call, tensors, numbers, guards)
            except NotRecorded as error:
                self._warn(f"{_UNCOMPILED}: {error}", stacklevel=4)
            finally:
                stack.recording.release()
            self._keep(key, traced, statics)
        if traced is None:
            return function(*call[0], **call[1])
        return traced.issue(stack, call, tensors, numbers)

    def _call_tracked(self, args: Any, kwargs: Any) -> Any:
        """Call the function with tracked tensors inside ``no_grad``.

        Leaves that the function updates in place get their new elements from the graph.
        """
        tensors = tensors_in((args, kwargs))
        key = tuple([place for place, tensor in enumerate(tensors) if is_tracked_leaf(tensor)])
        leaves = [tensors[place] for place in key]
        if len(set(sources_of([leaf.handle for leaf in leaves]))) < len(leaves):
            return self._function(*args, **kwargs)  # an update of one is an update of the other
        args, kwargs = rebuilt((args, kwargs), untracked)
        if not key:
            return self(*args, **kwargs)
        if key not in self._updating:
            self._updating[key] = CompiledFunction(self._function, key)
        grads: Any = [None if leaf.grad is None else leaf.grad.detach() for leaf in leaves]
        result, made = self._updating[key](grads, *args, **kwargs)
        update_all(leaves, made)
        return result

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
            return run_updating(self._function, self._updated, *call[0], **call[1])
        try:
            guards = guards_of(self._function, statics)
            value, recorded = record_call(
                self._function, client, call, tensors, numbers, guards, self._updated
            )
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
        count = self._graph_count
        return f"<compiled function {self._name}: {count} graph{'s' * (count != 1)}>"

    @property
    def _graph_count(self) -> int:
        own = sum(map(len, [*self._graphs.values()]))
        return own + sum([one._graph_count for one in [*self._updating.values()]])

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def __reduce__(self) -> str:
        """Pickle and copy as a function: by its name."""
        return self._function.__qualname__

    def _keep(
        self, key: Hashable, recorded: RecordedCall | TrackedFunction | None, statics: Sequence[Any]
    ) -> None:
        graphs = self._graphs
        if key not in graphs:
            # Keys do not keep objects alive. Graphs of objects that were freed can never be used
            # again.
            for static in statics:
                if is_compared_by_identity(static):
                    _forget_with(static, self, key)
        while sum(map(len, [*graphs.values()])) >= MAX_GRAPHS:
            oldest = next(iter([*graphs]), None)
            graphs.pop(oldest, None)
            self._forget_found()
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
        if text not in self._warnings:
            self._warnings.add(text)
            warnings.warn(f"{self._name} {text}", stacklevel=stacklevel)


def _device_of(statics: Sequence[Any]) -> Device:
    """Return the device of a call without tensors: an argument, or the default device."""
    given = next((one for one in statics if isinstance(one, Device)), None)
    if given is not None:
        return given
    try:
        return default_device()
    except ConnectionFailed as error:
        raise ConnectionFailed(
            "the arguments of the compiled function contain no tensor (tensors in attributes of "
            f"objects and in iterators do not count), so it needs the default device: {error}"
        ) from None


def _forget_with(static: Any, compiled: CompiledFunction[Any, Any], key: Hashable) -> None:
    """Discard the graphs of a key when an object is freed."""
    reference = weakref.ref(compiled)

    def forget() -> None:
        owner = reference()
        if owner is not None:
            owner._graphs.pop(key, None)
            owner._forget_found()

    with contextlib.suppress(TypeError):  # no weak references: the key keeps the object alive
        call_when_freed(static, forget)


def _common(handles: Sequence[TensorHandle]) -> RunnerClient:
    sessions = {id(handle.client.session) for handle in handles}
    if len(sessions) > 1:
        devices = {id(handle.client.session): handle.client.device for handle in handles}.values()
        names = ", ".join(dict.fromkeys(map(str, devices)))
        raise DeviceMismatch(
            f"the arguments of a compiled function are on different devices: {names}"
            f"{distinction(*devices)}; move them to one device with x.to(device)"
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

    Arguments and results are tensors, numbers, and tuples, lists, dictionaries and instances of
    data classes of them (their fields, without calling ``__post_init__``); any other argument is
    compared by equality, or by identity if its class defines no equality. The tensors of another
    object, such as ``self.weight``, must be arguments of their own. Numbers may change from call to
    call; a number that decides something (a branch, a shape, an index, the result of ``math.sqrt``,
    a printed text) makes another graph for each outcome. Test the type of a number with
    ``isinstance``: ``type(n)`` is another class while the function is recorded. Random numbers are
    drawn anew in each call. A function whose arguments contain no tensor runs on the device that
    they contain, or else on the default device.

    Functions, numbers, strings, ``None`` and small containers of them that the function takes from
    closures, global variables, default arguments or attributes are compared in each call; a change
    makes another graph. A function that changes such a value itself is recorded in each call, and
    warns. Some values are *not* compared, and keep the effect of the first call: results of other
    calls (``random``, ``time``, files, ``getattr``), objects that the function's code does not
    name, containers of more than 64 members, arrays above 4 KiB, and methods replaced in a class.

    Gradients may be computed inside, and are part of the same task. Called with tracked tensors,
    the function is one task, and so is its part of a backward pass; if it cannot be recorded in
    this way, it runs uncompiled and warns with the reason. Inside ``no_grad`` it uses the graph for
    untracked tensors, and may update leaves in place.

    Raises ``UsageError`` with the line of the program if the function reads, moves, uploads or
    publishes tensors, uses tensors that are not arguments, or stores tensors elsewhere than in its
    result. Other side effects (``print``, counters) happen only when a call is recorded.
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
