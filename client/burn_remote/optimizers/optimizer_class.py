"""The base class of optimizers: updates of nested containers, and of parameters in place."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, final

import numpy as np

from burn_remote.arguments.containers import mapped, named_leaves
from burn_remote.arguments.traced_numbers import calculated
from burn_remote.autodiff.grad_mode import enable_grad
from burn_remote.autodiff.nodes import TrackedHandle, plain, tracked
from burn_remote.functions.creation import tensor, zeros_like
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor, read
from burn_remote.graphs.compiled import compile
from burn_remote.optimizers.formulas import STEP, Counters, Formula, Options
from burn_remote.optimizers.optimizer_arguments import (
    FROM_STATE_DICT,
    PARAMS,
    RATE,
    check_gradient,
    check_options,
    check_parameter,
    checked_rate,
    entry_of,
    named_parameters,
    number_of,
    parameter_groups,
    step_count,
)
from burn_remote.optimizers.saved_states import from_file
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.issuing import recording
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch, UsageError, shown

__all__ = ["Optimizer"]


@final
@dataclass(frozen=True, slots=True)
class _Constants:
    """Options that a graph contains, because they rarely change. Compared by equality."""

    options: tuple[tuple[str, Any], ...]


class Optimizer:
    """The base class of optimizers, which have two forms.

    With functions, parameters are nested containers of tensors, and nothing changes in place. The
    call of ``update`` may be part of a compiled function::

        optimizer = br.optim.Adam(lr=1e-3)
        state = optimizer.init(params)
        params, state = optimizer.update(params, grads, state)

    As in PyTorch, ``step`` reads the ``grad`` of tracked parameters and replaces their elements::

        optimizer = br.optim.Adam(params, lr=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    Either way, one step is one task. The learning rate is a number, or a function of the number of
    steps before this one (see ``burn_remote.optim.schedules``). It may change with each step: no
    step needs another graph. Only ``state_dict`` waits.
    """

    _formula: ClassVar[Formula]

    def __init__(self, params: Any, **options: Any) -> None:
        check_options(options)
        if options[RATE] == 0:
            raise UsageError("lr must be above 0, or nothing would change")
        self._defaults: Options = MappingProxyType(options)
        self.param_groups: list[dict[str, Any]] = []
        # Counters and slots of each parameter that had a step.
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._names: dict[Tensor, str] = {}
        # The options of each group when it was added, and the names of those that changed since.
        self._first: list[Options] = []
        self._changing: set[str] = set()
        # Each optimizer has graphs of its own, which end with it.
        self._update = compile(_updated)
        if params is not None:
            for group in parameter_groups(params):
                self.add_param_group(group)
            self._check_tracked()

    def __repr__(self) -> str:
        """Return the class, its options, and the number of parameters.

        An option that differs between groups is shown as a list.
        """
        options = ", ".join(f"{name}={self._shown(name)}" for name in self.defaults)
        count = len(self._names)
        return f"<{type(self).__name__}({options}) of {count} parameter{'s' * (count != 1)}>"

    def __reduce__(self) -> NoReturn:
        # ``copy`` calls this too. A copy would share the parameters and their moments.
        kind = type(self).__name__
        raise ArgumentMismatch(
            f"an optimizer can be neither pickled nor copied, because its tensors live on a "
            f"device; make another {kind}, and pass it the state: "
            "new.load_state_dict(optimizer.state_dict())"
        )

    def _shown(self, name: str) -> str:
        values = [group[name] for group in self.param_groups] or [self.defaults[name]]
        return repr(values[0] if all(value == values[0] for value in values) else values)

    @property
    def defaults(self) -> Options:
        """The options; read-only, because the graphs of compiled functions contain them."""
        return self._defaults

    # -- the form with functions --------------------------------------------------------------

    def init(self, params: Any) -> dict[str, Any]:
        """Return the state before the first step: numbers, and containers like ``params``.

        Raises ``DTypeMismatch`` for a parameter that is not floating-point.
        """
        for name, parameter in named_leaves(params):
            check_parameter(name, parameter)
        options = self.defaults
        state: dict[str, Any] = self._formula.counters(options)
        for slot in self._formula.slots(options):
            state[slot] = mapped(lambda one: self._formula.initial(one, options), params)
        return state

    def update(
        self, params: Any, grads: Any, state: Mapping[str, Any], *, lr: float | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the parameters and the state after one step, without waiting.

        ``grads`` are containers like ``params``, with ``None`` for parameters that stay as they
        are. ``lr`` is the learning rate of this step, in place of the optimizer's. Raises
        ``ArgumentMismatch`` for other containers, and ``ShapeMismatch``, ``DTypeMismatch`` or
        ``DeviceMismatch`` with the name of the parameter for a gradient that does not fit.
        """
        options = self.defaults if lr is None else {**self.defaults, RATE: lr}
        slots = self._formula.slots(options)
        counters = {name: number_of(state, name) for name in self._formula.counters(options)}
        rows: list[list[Any]] = []
        contents = [entry_of(state, slot) for slot in slots]
        try:
            mapped(lambda *leaves: rows.append([*leaves]), params, grads, *contents)
        except ArgumentMismatch:
            _check_containers(params, "grads", grads)
            for slot, content in zip(slots, contents, strict=True):
                _check_containers(params, f"state[{slot!r}]", content)
            raise
        names = [name for name, _ in named_leaves(params)]
        by_device: dict[int, list[list[Any]]] = {}
        for name, row in zip(names, rows, strict=True):
            if row[1] is not None:
                check_gradient(name, row[0], row[1])
                by_device.setdefault(_session_of(row[0]), []).append(row)
        before = counters
        for changing in by_device.values():
            counters = self._step(changing, options, before)
        columns = [
            mapped(_taking([row[place] for row in rows]), params)
            for place in (0, *range(2, 2 + len(slots)))
        ]
        return columns[0], {**counters, **dict(zip(slots, columns[1:], strict=True))}

    # -- PyTorch's form -----------------------------------------------------------------------

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, ``{"params": …}``, with options of their own.

        Raises ``UsageError`` for a parameter that the optimizer has already and for unknown
        options, and ``DTypeMismatch`` for one that is not floating-point.
        """
        options = {**self.defaults, **group}
        unknown = [name for name in options if name not in self.defaults and name != PARAMS]
        if PARAMS not in options:
            raise UsageError("a group of parameters needs the entry 'params'")
        if unknown:
            raise UsageError(
                f"a group of parameters cannot have the entry {unknown[0]!r}; beside 'params', it "
                f"may have {', '.join(self.defaults)}"
            )
        check_options(options)
        found = named_parameters(options[PARAMS])
        for name, parameter in found.items():
            self._add(name, parameter)
        self.param_groups.append({**options, PARAMS: [*found.values()]})
        self._first.append({name: options[name] for name in self.defaults})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients of the parameters, or set them to zeros."""
        for parameter in self._names:
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else zeros_like(parameter.grad)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient; return what ``closure`` returns.

        ``closure``, if it is given, is called first, and computes the gradients anew. Tensors that
        were computed from the parameters before the step, such as ``w.T``, do not change. Raises
        ``UsageError`` if no parameter is tracked, and inside a compiled function.
        """
        if recording.runner is not None:
            raise UsageError(
                "a compiled function cannot change parameters in place with optimizer.step(); "
                "take params and state as arguments, and return what "
                "optimizer.update(params, grads, state) returns"
            )
        result = None
        if closure is not None:
            if not callable(closure):
                raise ArgumentMismatch(
                    f"step takes a function that computes the gradients, not {shown(closure)}; "
                    "call loss.backward() first, and then step() without an argument"
                )
            with enable_grad():
                result = closure()
        if not self._names:
            raise UsageError(
                "the optimizer was made without parameters; pass them, as in Adam(params, "
                "lr=1e-3), or call params, state = optimizer.update(params, grads, state)"
            )
        self._check_tracked()
        made: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
        for group, first in zip(self.param_groups, self._first, strict=True):
            check_options(group)
            options = {name: group[name] for name in self.defaults}
            # Once a scheduler has changed an option, such as the momentum, it is sent as a number
            # with each call. As a constant, each new value would need another graph.
            self._changing |= {name for name in options if options[name] != first[name]}
            for counters, parameters in self._alike(group[PARAMS], options):
                made += self._stepped(parameters, options, counters)
        self._replace(made)
        return result

    def _check_tracked(self) -> None:
        if not any(parameter.requires_grad for parameter in self._names):
            raise UsageError(
                "no parameter of the optimizer is tracked, so none has a gradient; call "
                "w.requires_grad_() on them before making the optimizer"
            )

    # -- checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Wait for the state and return it as dictionaries, lists, numbers and NumPy arrays.

        The names are PyTorch's: ``"state"`` has the state of each parameter that had a step, by its
        position; ``"param_groups"`` has the options of each group. All tensors are read in one
        round trip.
        """
        places = {parameter: place for place, parameter in enumerate(self._names)}
        wanted: list[tuple[int, str, float, Tensor]] = []
        state: dict[int, dict[str, Any]] = {}
        for parameter, known in self.state.items():
            place = places[parameter]
            state[place] = {STEP: known[STEP]}
            for slot, content in known.items():
                if is_tensor(content):
                    scale = self._formula.scale(slot, known)
                    wanted.append((place, slot, scale, content))
        arrays = read([content for *_, content in wanted])
        for (place, slot, scale, _), array in zip(wanted, arrays, strict=True):
            state[place][slot] = array if scale == 1 else array / scale
        groups = [
            {**group, PARAMS: [places[one] for one in group[PARAMS]]} for group in self.param_groups
        ]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned, also of an optimizer of PyTorch.

        Also accepts what ``burn_remote.load`` returns for a file that ``burn_remote.save`` made of
        it, and then reads the numbers.

        Arrays are converted to the dtype of their parameter. Raises ``ArgumentMismatch`` for other
        groups or parameters, and ``ShapeMismatch`` for an array whose shape differs from its
        parameter's. On an error, nothing changes.
        """
        state_dict = from_file(state_dict)
        groups = entry_of(state_dict, "param_groups", FROM_STATE_DICT)
        states = entry_of(state_dict, "state", FROM_STATE_DICT)
        seen = [len(group[PARAMS]) for group in groups]
        own = [len(group[PARAMS]) for group in self.param_groups]
        if seen != own:
            raise ArgumentMismatch(
                f"the state has groups of {seen} parameters, but the optimizer has groups of {own}"
            )
        listed = {str(place) for group in groups for place in group[PARAMS]}
        unknown = [place for place in states if str(place) not in listed]
        if unknown:
            raise ArgumentMismatch(
                f"the state of the parameter {shown(unknown[0])} belongs to no group; the groups "
                f"have the parameters {', '.join(sorted(listed)[:8])}"
            )
        new_groups = []
        loaded: dict[Tensor, dict[str, Any]] = {}
        for group, mine in zip(groups, self.param_groups, strict=True):
            # PyTorch has further options, such as ``foreach``.
            options = {name: group.get(name, mine[name]) for name in self.defaults}
            if isinstance(options.get("betas"), list):
                options["betas"] = tuple(options["betas"])
            check_options(options)
            new_groups.append({**mine, **options})
            for place, parameter in zip(group[PARAMS], mine[PARAMS], strict=True):
                known = states.get(place, states.get(str(place)))
                if known:
                    loaded[parameter] = self._loaded(parameter, known, options)
        # The groups themselves stay: schedulers refer to them.
        for mine, new in zip(self.param_groups, new_groups, strict=True):
            mine |= new
        self.state = loaded

    # -- parts --------------------------------------------------------------------------------

    def _add(self, name: str, parameter: Tensor) -> None:
        check_parameter(name, parameter)
        if parameter in self._names:
            raise UsageError(
                f"the parameter {name or 0} is the same tensor as {self._names[parameter] or 0}; "
                "give each tensor to the optimizer once"
            )
        if not parameter.is_leaf:
            raise UsageError(
                f"the parameter {name} is the result of an operation on tracked tensors, so it has "
                "no gradient of its own; call requires_grad_() after its initialization"
            )
        self._names[parameter] = name

    def _alike(
        self, parameters: Sequence[Tensor], options: Options
    ) -> Iterator[tuple[Counters, list[Tensor]]]:
        """Group the parameters that have a gradient by their device and counters."""
        names = self._formula.counters(options)
        groups: dict[tuple[int, tuple[Any, ...]], list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            state = self.state.get(parameter, names)
            key = (_session_of(parameter), tuple([state[name] for name in names]))
            groups.setdefault(key, []).append(parameter)
        for (_, values), members in groups.items():
            yield dict(zip(names, values, strict=True)), members

    def _stepped(
        self, parameters: Sequence[Tensor], options: Options, counters: Counters
    ) -> list[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Return parameters with their new elements and states, and change nothing."""
        slots = self._formula.slots(options)
        rows: list[list[Any]] = []
        for parameter in parameters:
            grad, state = parameter.grad, self.state.get(parameter, {})
            check_gradient(self._names[parameter], parameter, grad)
            own = Tensor(plain(parameter.handle))
            contents = [
                state[slot] if slot in state else self._formula.initial(own, options)
                for slot in slots
            ]
            rows.append([own, Tensor(plain(grad.handle)), *contents])
        counters = self._step(rows, options, counters)
        return [
            (parameter, row[0], {**counters, **dict(zip(slots, row[2:], strict=True))})
            for parameter, row in zip(parameters, rows, strict=True)
        ]

    def _replace(self, made: Sequence[tuple[Tensor, Tensor, dict[str, Any]]]) -> None:
        """Give parameters their new elements and states, all or none of them."""
        parameters = [parameter for parameter, *_ in made]
        handles = [_leaf_handle(parameter, new) for parameter, new, _ in made]
        states = {
            parameter: {**self.state.get(parameter, {}), **state} for parameter, _, state in made
        }
        # What is replaced is freed after the assignment, because freeing runs Python code.
        before = ([parameter.handle for parameter in parameters], [*self.state.values()])
        assignments = map(setattr, parameters, itertools.repeat("handle"), handles)
        # One call that runs no Python code: an interrupt comes before it or after it.
        deque(itertools.chain(assignments, map(self.state.update, [states])), maxlen=0)
        del before

    def _step(self, rows: list[list[Any]], options: Options, counters: Counters) -> Counters:
        """Replace parameters and slots in ``rows``; return the counters after the step."""
        rate = options[RATE]
        if callable(rate):
            rate = calculated(rate, counters[STEP])
        changing = {name: options[name] for name in self._changing}
        changing[RATE] = calculated(checked_rate, rate)
        same = [
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in options.items()
            if name not in changing
        ]
        made, contents, counters = self._update(
            self._formula,
            [row[0] for row in rows],
            [row[1] for row in rows],
            [tuple(row[2:]) for row in rows],
            _Constants(tuple(same)),
            changing,
            counters,
        )
        for row, parameter, slots in zip(rows, made, contents, strict=True):
            row[0] = parameter
            row[2:] = slots
        return counters

    def _loaded(
        self, parameter: Tensor, known: Mapping[str, Any], options: Options
    ) -> dict[str, Any]:
        state: dict[str, Any] = self._formula.counters(options)
        # SGD of PyTorch counts no steps; its buffer exists after the first.
        state[STEP] = step_count(self._names[parameter], known.get(STEP, 1))
        for slot in self._formula.slots(options):
            content = known.get(slot)
            if content is None:
                raise ArgumentMismatch(
                    f"the state of the parameter {self._names[parameter]} has no {slot!r}; it has "
                    f"{', '.join(map(repr, known))}"
                )
            array = content.numpy() if hasattr(content, "numpy") else np.asarray(content)
            if array.shape != parameter.shape:
                raise ShapeMismatch(
                    f"{slot!r} of the parameter {self._names[parameter]} has shape "
                    f"{list(array.shape)}, but the parameter is {parameter.handle.spec}"
                )
            scale = self._formula.scale(slot, state)
            sent = array if scale == 1 else array * scale
            state[slot] = tensor(sent, dtype=parameter.dtype, device=parameter.device)
        return state


def _check_containers(params: Any, name: str, given: Any) -> None:
    """Raise ``ArgumentMismatch`` with a name if containers are not like the parameters."""
    try:
        mapped(lambda *_: None, params, given)
    except ArgumentMismatch as error:
        advice = (
            "; clip_by_norm returns the gradients and their norm: write grads, norm = "
            "burn_remote.optim.clip_by_norm(…)"
            if name == "grads" and isinstance(given, tuple) and len(given) == 2
            else ""
        )
        raise ArgumentMismatch(f"{name} must be like params, but {error}{advice}") from None


def _updated(
    formula: Formula,
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    slots: Sequence[tuple[Tensor, ...]],
    constants: _Constants,
    changing: Options,
    counters: Counters,
) -> tuple[list[Tensor], list[tuple[Tensor, ...]], Counters]:
    """Return parameters, slots and counters after one step. Compiled: it is one task."""
    options = {**dict(constants.options), **changing}
    numbers, counters = formula.numbers(options, counters)
    made: list[Tensor] = []
    kept: list[tuple[Tensor, ...]] = []
    for parameter, grad, contents in zip(parameters, grads, slots, strict=True):
        direction = -grad if options["maximize"] else grad
        new, after = formula.updated(parameter, direction, contents, numbers)
        made.append(new)
        kept.append(after)
    return made, kept, counters


def _leaf_handle(parameter: Tensor, new: Tensor) -> TensorHandle:
    """Return a handle of a leaf's new elements. The leaf keeps its gradient and hooks."""
    handle = parameter.handle
    if isinstance(handle, TrackedHandle):
        return tracked(handle.client, new.handle, handle.source)
    return new.handle


def _session_of(parameter: Tensor) -> int:
    """Return a number that identifies the session; its parameters are updated together."""
    return id(parameter.handle.client.session)


def _taking(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return a function that ignores its argument and returns the values one by one."""
    following = iter(values)
    return lambda _: next(following)
