"""The graphs that a client of Burn 0.22 has registered in a session, and their calls.

The operations of the first calls run one by one, because a fusion client registers many graphs that
it calls a few times. When a graph has been called several times with equal shapes, it is compiled
to a ``GraphPlan``. The memory of graphs counts in the session's quota. A graph that does not fit is
refused, and earlier graphs stay registered.

While a program repeats its operations, a fusion client may register the same graph under several
numbers. Graphs whose operations have the same bytes share one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22 import Bindings, RunGraph, decode_graph
from burn_remote_protocol.errors import (
    BurnRemoteError,
    LimitExceeded,
    OperationFailed,
    ProtocolViolation,
    QuotaExceeded,
    SessionLost,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import OverheadAccount
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.graphs import EarlyOutput, GraphPlan
from burn_remote_server.programs.plans import PLAN_BYTES
from burn_remote_server.programs.relative_graphs import (
    Interface,
    RelativeGraph,
    bound_signature,
    definition,
    graph_interface,
)

__all__ = ["EarlyRead", "RegisteredGraphs"]

# Most shapes for which one graph is compiled. If a program calls it with further shapes, its
# operations run one by one.
MAX_FORMS: Final = 8

# Calls of a graph with equal shapes before it is compiled. Compiling takes about 35 µs for each
# operation, and saves 2 to 3 µs for each in a call.
CALLS_ONE_BY_ONE: Final = 7

# Memory of a value of a call, in the key of a form and in the operations bound to it.
BOUND_BYTES: Final = 256

# Memory of each further number of a graph.
NUMBER_BYTES: Final = 256

# Ids of tensors that exist only during a call begin here. The ids of clients are smaller.
FIRST_OWN_ID: Final = 2**64

Report = Callable[[int, OperationFailed], None]


class EarlyRead(NamedTuple):
    """A read of a tensor that a graph makes; ``give`` is called with its array."""

    tensor: int
    spec: TensorSpec
    give: Callable[[Any], None]


class _Form:
    """A graph compiled for certain shapes.

    ``places`` has the places of the numbers that the graph takes from each call.
    """

    def __init__(self, plan: GraphPlan, interface: Interface, places: tuple[int, ...]) -> None:
        self.plan: Final = plan
        self.interface: Final = interface
        self._places: Final = places
        # Those of the last call, and the numbers that the graph took from them.
        self._scalars: tuple[Scalar, ...] = ()
        self._numbers: tuple[Any, ...] = ()

    def numbers(self, scalars: tuple[Scalar, ...]) -> tuple[Any, ...]:
        """Return the numbers of a call: the same object if ``scalars`` is that of the last call."""
        if scalars is not self._scalars and self._places:
            self._numbers = tuple([scalars[place].value for place in self._places])
            self._scalars = scalars
        return self._numbers


# The values of a call, and the operations to which they are bound.
_Last = tuple[Any, tuple[Operation, ...]]


class _Registered:
    """A registered graph, and its compiled forms by the keys of the calls that can use them."""

    def __init__(self, packed: bytes) -> None:
        self.packed: Final = packed
        self.graph: Final = RelativeGraph(decode_graph(packed))
        self.numbers = 0  # how many numbers the client has registered it under
        self.interfaces: Final[dict[tuple[int, ...], Interface]] = {}
        # The value is the number of calls so far while a form is not compiled yet, and ``None`` if
        # it cannot be compiled.
        self.forms: Final[dict[Any, _Form | int | None]] = {}
        # The bytes that the account counts; 0 for a graph that did not fit and runs only once.
        self.nbytes = 0
        # The operations of the last call that ran one by one, and the bytes counted for them.
        self.last: _Last | None = None
        self.last_bytes = 0
        # The scalars of a call of a compiled form, whose bytes count, and their variants.
        self._scalars: tuple[Scalar, ...] = ()
        self._variants: tuple[Any, ...] = ()

    def key(self, bindings: Bindings) -> Any:
        """Return the key of a call's form: calls with equal keys use the same compiled form."""
        tensors, sizes, scalars, slices = bindings
        of_scalars: Any = scalars
        if scalars is self._scalars:
            of_scalars = self._variants
        elif not self.graph.has_inner_scalars:
            of_scalars = tuple([scalar.variant for scalar in scalars])
        return tuple([tensor for tensor, _ in tensors]), sizes, of_scalars, slices

    def keep_scalars(self, scalars: tuple[Scalar, ...], key: Any) -> None:
        """Keep the scalars of a call, for whose key there is a form."""
        self._scalars, self._variants = scalars, key[2]

    def interface(self, bindings: Bindings) -> Interface:
        """Return the interface of the graph in a call."""
        named = tuple([tensor for tensor, _ in bindings.tensors])
        found = self.interfaces.get(named)
        if found is None:
            if len(self.interfaces) >= MAX_FORMS:
                self.interfaces.clear()
            found = self.interfaces[named] = graph_interface(self.graph, {*named})
        return found


class RegisteredGraphs:
    """The registered graphs of one session. Not thread-safe: only the session's worker calls it.

    ``fail(tensor, error)`` stores a failure as a tensor and reports it.
    """

    def __init__(self, interpreter: Interpreter, fail: Report) -> None:
        self._interpreter: Final = interpreter
        self._fail: Final = fail
        self._account: Final = OverheadAccount(interpreter.reply_quota)
        self._graphs: Final[dict[int, _Registered]] = {}
        self._known: Final[dict[bytes, _Registered]] = {}  # by their operations
        self._refusal: OperationFailed | None = None  # of the last graph that did not fit

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, task: RunGraph, early: EarlyRead | None = None) -> None:
        """Register the graph of a task, if it has one, and run it.

        ``early`` is given a tensor that the graph makes before the rest of the graph runs, if the
        graph is compiled. Raises ``ProtocolViolation`` for malformed operations.
        """
        if task.operations is None:
            registered = self._graphs.get(task.graph)
            if registered is None:
                self._fail_unknown(task)
                return
        else:
            registered = self._register(task.graph, task.operations)
        bindings = task.bindings
        if not self._run_compiled(registered, bindings, early):
            self._run_operations(registered, bindings)

    def estimate(self, task: RunGraph) -> int | None:
        """Estimate the cost of a task in nanoseconds; return ``None`` if it is unknown."""
        if task.operations is None:
            registered = self._graphs.get(task.graph)
        else:
            registered = self._known.get(task.operations)
        if registered is None:
            return None
        form = registered.forms.get(registered.key(task.bindings))
        return form.plan.cost if isinstance(form, _Form) else None

    # -- registration -------------------------------------------------------------------------

    def _register(self, number: int, packed: bytes) -> _Registered:
        replaced = self._graphs.pop(number, None)
        if replaced is not None and replaced.packed != packed:
            self._forget(replaced)
            replaced = None
        registered = replaced or self._known.get(packed) or _Registered(packed)
        graph = registered.graph
        size = NUMBER_BYTES if registered.numbers else graph.nbytes + len(packed)
        try:
            if replaced is None:
                self._account.add(size)
        except QuotaExceeded as error:
            # This call runs nevertheless: only later calls need the registration.
            self._refusal = QuotaExceeded(
                f"graph {number} was not registered, because its {len(graph.operations):,} "
                f"operations do not fit into the session's quota: {error.reason}"
            )
            return registered
        if replaced is None:
            registered.numbers += 1
            registered.nbytes += size
        self._graphs[number] = self._known[packed] = registered
        return registered

    def _forget(self, registered: _Registered) -> None:
        """Remove one number of a graph, and the graph if that was its last number."""
        registered.numbers -= 1
        if registered.numbers:
            self._account.remove(NUMBER_BYTES)
            registered.nbytes -= NUMBER_BYTES
        else:
            self._account.remove(registered.nbytes + registered.last_bytes)
            del self._known[registered.packed]

    def _fail_unknown(self, task: RunGraph) -> None:
        refusal = self._refusal or OperationFailed(f"graph {task.graph} is not registered")
        tensors = self._interpreter.tensors
        for _, tensor in task.bindings.tensors:
            if tensor not in tensors.arrays and tensors.slot(tensor) is None:
                self._fail(tensor, type(refusal)(refusal.reason))

    # -- compiled calls -----------------------------------------------------------------------

    def _run_compiled(
        self, registered: _Registered, bindings: Bindings, early: EarlyRead | None
    ) -> bool:
        key = registered.key(bindings)
        form = registered.forms.get(key, 0)
        if form == 0:
            size = _bound_bytes(bindings)
            if len(registered.forms) < MAX_FORMS and self._fits(registered, size):
                registered.forms[key] = 1
                registered.nbytes += size
            return False
        if type(form) is int:
            if form < CALLS_ONE_BY_ONE:
                registered.forms[key] = form + 1
                return False
            form = registered.forms[key] = self._compiled(registered, bindings)
        if not isinstance(form, _Form):
            return False
        tensors = dict(bindings.tensors)
        if len({*tensors.values()}) != len(bindings.tensors):
            # One tensor of the session under two ids: an operation of the graph may replace or drop
            # it before another one uses it, and the compiled form does not know.
            return False
        registered.keep_scalars(bindings.scalars, key)
        interface = form.interface
        taken = tuple([tensors[tensor] for tensor in interface.inputs])
        made = tuple([tensors[tensor] for tensor in interface.outputs])
        dropped = [tensors[tensor] for tensor in interface.consumed]
        # The numbers were checked when they were decoded, and the key has their variants.
        numbers = form.numbers(bindings.scalars)
        wanted = None if early is None else _early_output(form.plan, made, early)
        self._interpreter.call_graph(form.plan, taken, made, numbers, dropped, wanted)
        self._interpreter.tensors.drop(dropped)
        return True

    def _fits(self, registered: _Registered, size: int) -> bool:
        """Count the memory that a registered graph keeps of a call; return whether it fits."""
        if not registered.nbytes:
            return False
        try:
            self._account.add(size)
        except QuotaExceeded:
            return False
        return True

    def _compiled(self, registered: _Registered, bindings: Bindings) -> _Form | None:
        """Return the compiled form of a call, ``None`` if its graph cannot be compiled."""
        interface = registered.interface(bindings)
        if not interface.is_regular or not interface.outputs:
            return None
        size = PLAN_BYTES * len(registered.graph.operations)
        if not self._fits(registered, size):
            return None
        try:
            task, signatures, scalars = definition(registered.graph, interface, bindings)
            plans = [self._interpreter.plans.plan_of(signature) for signature in signatures]
            plan = self._interpreter.plans.compile_graph(task, dict(enumerate(plans)))
            plan.count_earlier_calls(CALLS_ONE_BY_ONE)
        except (LimitExceeded, ProtocolViolation, SessionLost):
            # The operations run one by one instead, and each one that fails reports its error.
            self._account.remove(size)
            return None
        registered.nbytes += size
        return _Form(plan, interface, scalars)

    # -- calls that run one by one ------------------------------------------------------------

    def _run_operations(self, registered: _Registered, bindings: Bindings) -> None:
        tensors = dict(bindings.tensors)
        own: list[int] = []
        values = bindings[1:]
        last = registered.last
        if last is None or last[0] != values:
            try:
                operations = tuple(
                    Operation(bound_signature(signature, bindings), ids)
                    for signature, ids in registered.graph.operations
                )
            except BurnRemoteError as error:
                self._fail_all(registered, bindings, error)
                return
            last = (values, operations)
            self._keep(registered, last, _bound_bytes(bindings))
        for signature, ids in last[1]:
            bound = []
            for tensor in ids:
                found = tensors.get(tensor)
                if found is None:
                    found = tensors[tensor] = FIRST_OWN_ID + tensor
                    own.append(found)
                bound.append(found)
            self._interpreter.check_stopped()
            self._interpreter.execute(Operation(signature, tuple(bound)))
        self._interpreter.tensors.drop(own)

    def _keep(self, registered: _Registered, last: _Last, size: int) -> None:
        """Keep the operations of a call for the next one, if they fit."""
        self._account.remove(registered.last_bytes)
        registered.last, registered.last_bytes = None, 0
        if self._fits(registered, size):
            registered.last, registered.last_bytes = last, size

    def _fail_all(
        self, registered: _Registered, bindings: Bindings, error: BurnRemoteError
    ) -> None:
        tensors = dict(bindings.tensors)
        for tensor in graph_interface(registered.graph, tensors).outputs:
            self._fail(tensors[tensor], OperationFailed(str(error)))


def _early_output(plan: GraphPlan, made: tuple[int, ...], early: EarlyRead) -> EarlyOutput | None:
    """Return the output of a call that is to be read early; ``None`` if it has no such output."""
    if early.tensor not in made:
        return None
    place = made.index(early.tensor)
    return EarlyOutput(place, early.give) if plan.output_specs[place] == early.spec else None


def _bound_bytes(bindings: Bindings) -> int:
    """Return the memory of the values of a call, which a form or a bound operation keeps."""
    return BOUND_BYTES * sum(map(len, bindings))
