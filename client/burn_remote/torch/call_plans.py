"""Plans: the operations that a call of one aten operation issues, kept for later calls like it.

Two calls are alike if their tensors have the same metadata and their other arguments are equal. The
second of such calls is recorded as ``burn_remote.compile`` records a function. Later ones issue the
recorded operations as one task, without calling the function. That takes a quarter of the time.

If an argument is a view that was not read yet, the same task reads it from its storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

import burn_remote as br
from burn_remote.graphs.recorded_call import RecordedCall, record_call
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.issuing import issue_each, recording
from burn_remote.runner.stack import RunnerStack
from burn_remote.sessions.source_locations import caller
from burn_remote.torch.burn_tensor import BurnTensor, contiguous_metadata, value_of
from burn_remote.torch.device_registry import torch_device
from burn_remote.torch.storages import read
from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["Plan", "Planner", "common_client"]

# The most calls that one operation remembers. A program whose shapes or numbers are always new uses
# no plans.
MAX_CALLS: Final = 1024
# Plans of several operations that one device may have. A server keeps 256 graphs of a session, and
# compiled functions need some of them. Further plans issue their operations one by one.
MAX_GRAPHS: Final = 128

# In a key, separates the metadata of a view from those of the storage from which a plan reads it.
_FROM: Final = object()
# Arguments that are compared by value and type.
_PLAIN: Final = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.memory_format, torch.layout}
)
# The plans for which a server keeps graphs, by device.
_with_graphs: Final[weakref.WeakKeyDictionary[RunnerStack, weakref.WeakSet[Plan]]] = (
    weakref.WeakKeyDictionary()
)
_default_dtype: Final = torch.get_default_dtype


class Plan:
    """The recorded operations of a call; ``outputs`` and ``is_described`` are for the caller."""

    __slots__ = (
        "__weakref__",
        "_has_graph",
        "_order",
        "client",
        "is_described",
        "outputs",
        "place",
        "recorded",
        "signature",
    )

    def __init__(self, client: RunnerStack, recorded: RecordedCall) -> None:
        self.client: Final = client
        self.recorded: Final = recorded
        self.outputs: Any = None
        self.is_described = False
        self.place: Final = torch_device(client.device)
        self._has_graph = False
        steps = recorded.graph.steps
        # A single operation whose result is that of the plan needs no graph.
        is_single = len(steps) == 1 and recorded.result is None and not recorded.registers
        is_bare = is_single and not recorded.constants
        self.signature: Final = steps[0].signature if is_bare else None
        used = range(len(steps[0].inputs)) if recorded.used is None else recorded.used
        # The tensors that the single operation takes, by their places.
        self._order: Final = [used[slot] for slot in steps[0].inputs] if is_bare else ()
        alike = _with_graphs.setdefault(client, weakref.WeakSet())
        if self.signature is None and len(alike) < MAX_GRAPHS:
            alike.add(self)
            self._has_graph = True

    def issue(self, values: Sequence[br.Tensor], numbers: Sequence[Any] = ()) -> Any:
        """Issue the operations on tensors and numbers; return the results of the function."""
        client, recorded = self.client, self.recorded
        if self.signature is not None:
            taken = [values[place].handle for place in self._order]
            (out,) = client.register_op(self.signature, taken)
            return br.Tensor(out)
        handles = [one.handle for one in values]
        if recorded.used is not None:
            handles = [handles[place] for place in recorded.used]
            handles += recorded.constants
        registers = [numbers[place] for place in recorded.registers]
        if not self._has_graph:
            outputs: Sequence[TensorHandle] = issue_each(recorded.graph, client, handles, registers)
        else:
            outputs = client.register_graph(recorded.graph, handles, registers)
            # The graph has the line that was recorded; this call may come from another one.
            client.session.note_position(outputs[0].id, caller(3))
        made = [br.Tensor(out) for out in outputs]
        if recorded.result is None:
            return made[0]
        return recorded.result.build((values, made, numbers))


class Planner:
    """The plans of one operation, by its arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        most_calls: int = MAX_CALLS,
        check: Callable[[Any, dict[str, Any]], None] | None = None,
    ) -> None:
        """Plan calls of a function; ``check`` raises if the function must not take arguments."""
        self._function = function
        self._check = check
        self._most_calls = most_calls
        # ``None`` for a call that was seen once, ``False`` for one that cannot be recorded.
        self._plans: dict[tuple[Any, ...], Plan | bool | None] = {}

    def find(self, args: Any, kwargs: dict[str, Any]) -> tuple[Plan, Any, bool] | None:
        """Return the plan of a call, with its results if it was recorded now, else its tensors.

        The last member says whether it was recorded now. ``None`` if the call has no plan.
        """
        key: list[Any] = [_default_dtype()]
        values: list[br.Tensor] = []
        for x in args:
            # This repeats ``_describe`` for tensors: calling it would take a tenth of the time.
            if type(x) is BurnTensor:
                key.append(x._metadata)
                value = x._value
                if value is None or x._version_seen != x._storage.version:
                    value = _to_read(x, key)
                values.append(value)
            elif not _describe(x, key, values):
                return None
        if kwargs and not _describe_named(kwargs, key, values):
            return None
        client: Any = common_client(values)
        if client is None:
            return None
        key.append(client)
        found = tuple(key)
        plan = self._plans.get(found)
        if type(plan) is Plan:
            return plan, values, False
        if self._check is not None:
            self._check(args, kwargs)
        if not self.is_recordable(found):
            return None
        return self.record(found, client, values, lambda *given: self._run(args, kwargs, given))

    def is_recordable(self, key: tuple[Any, ...]) -> bool:
        """Return whether a call was seen before and may be recorded; remember that it was seen."""
        if key in self._plans:
            return self._plans[key] is None and recording.runner is None
        if len(self._plans) >= self._most_calls:
            self._plans.clear()
        self._plans[key] = None
        return False

    def record(
        self,
        key: tuple[Any, ...],
        client: RunnerStack,
        values: Sequence[br.Tensor],
        function: Callable[..., Any],
        numbers: Sequence[float] = (),
    ) -> tuple[Plan, Any, bool] | None:
        """Call a function of tensors and numbers, and remember its plan; see ``find``."""
        made = _recorded_plan(client, values, numbers, function)
        self._plans[key] = False if made is None else made[0]
        return None if made is None else (*made, True)

    def _run(self, args: Any, kwargs: dict[str, Any], given: Any) -> Any:
        """Call the function with tensors in place of those of the arguments."""
        remaining = iter(given)
        values = [_replaced(x, remaining) for x in args]
        named = {name: _replaced(x, remaining) for name, x in kwargs.items()}
        return self._function(*values, **named)


# Not inside ``_run``: an inner function that calls itself is a reference cycle that keeps tensors.
def _replaced(x: Any, remaining: Iterator[br.Tensor]) -> Any:
    if type(x) is BurnTensor:
        taken = next(remaining)
        is_read = x._value is not None and x._version_seen == x._storage.version
        return taken if is_read else read(taken, x._metadata.geometry)
    if type(x) is list or type(x) is tuple:
        return [_replaced(one, remaining) for one in x]
    return x


def _recorded_plan(
    client: RunnerStack,
    values: Sequence[br.Tensor],
    numbers: Sequence[float],
    function: Callable[..., Any],
) -> tuple[Plan, Any] | None:
    """Call a function of tensors and numbers; return its plan and its results.

    ``None`` if the function fails, or does something that a graph cannot repeat, such as reading
    elements.
    """
    if not client.recording.acquire(blocking=False):
        return None
    try:
        call: Any = ((*values, *numbers), {})
        result, recorded = record_call(function, client, call, values, numbers, (), ())
    except (BurnRemoteError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
        return None  # the caller calls the function again, which raises the error if there is one
    finally:
        client.recording.release()
    if not recorded.graph.steps:
        return None
    return Plan(client, recorded), result


def common_client(values: Sequence[br.Tensor]) -> RunnerStack | None:
    """Return the runner stack that all tensors belong to, ``None`` if there are none or several."""
    client = values[0].handle.client if values else None
    for value in values:
        if value.handle.client is not client:
            return None
    return client if type(client) is RunnerStack else None


def _to_read(x: BurnTensor, key: list[Any]) -> br.Tensor:
    """Return the tensor from which a plan reads a view.

    If the view is a slice of its storage, this is the whole storage, and the key gets the storage's
    metadata. Otherwise, the view is read now.
    """
    whole = x._storage.value
    if whole is not None and x._metadata.is_slice_of(whole.handle.spec.shape):
        key += (_FROM, contiguous_metadata(whole))
        return whole
    return value_of(x)


def _describe(x: Any, key: list[Any], values: list[br.Tensor]) -> bool:
    """Append an argument to a key, and its tensors to ``values``.

    Return ``False`` for an argument of a kind that no plan has.
    """
    kind = type(x)
    if kind is BurnTensor:
        key.append(x._metadata)
        value = x._value
        if value is None or x._version_seen != x._storage.version:
            value = _to_read(x, key)
        values.append(value)
        return True
    key.append(kind)
    if kind in _PLAIN:
        key.append(x)
    elif kind is float or kind is complex:
        # As keys, 0.0 and -0.0 are equal, and NaN is not equal to itself.
        key.append(x if x and x == x and kind is float else repr(x))
    elif kind is list or kind is tuple:
        key.append(len(x))
        return all(_describe(one, key, values) for one in x)
    else:
        return False
    return True


def _describe_named(named: dict[str, Any], key: list[Any], values: list[br.Tensor]) -> bool:
    for name, x in named.items():
        key.append(name)
        if not _describe(x, key, values):
            return False
    return True
