"""The arguments of optimizers: parameters, gradients, options and states, and their checks."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, Final

import numpy as np

from burn_remote.arguments.containers import named_leaves
from burn_remote.diagnostics.invalid_calls import no_tensor
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.optimizers.formulas import Options
from burn_remote.runner.interface import distinction
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DeviceMismatch,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    shown,
    type_name,
)

__all__ = [
    "FROM_INIT",
    "FROM_STATE_DICT",
    "PARAMS",
    "RATE",
    "check_gradient",
    "check_options",
    "check_parameter",
    "checked_rate",
    "entry_of",
    "named_parameters",
    "number_of",
    "parameter_groups",
    "step_count",
]

# Entries of a group of parameters: the list of them, and the learning rate.
PARAMS: Final = "params"
RATE: Final = "lr"

# What errors of ``update`` and of ``load_state_dict`` advise.
FROM_INIT: Final = (
    "optimizer.init(params) makes a state, and optimizer.update(params, grads, state) returns the "
    "next one"
)
FROM_STATE_DICT: Final = "pass what optimizer.state_dict() returned"

# Options that are numbers, with the least value and an upper bound, which is excluded.
_BOUNDS: Final = {
    RATE: (0, math.inf),
    "alpha": (0, 1),
    "betas": (0, 1),
    "dampening": (-math.inf, math.inf),
    "eps": (0, math.inf),
    "initial_accumulator_value": (0, math.inf),
    "lr_decay": (0, math.inf),
    "momentum": (0, math.inf),
    "weight_decay": (0, math.inf),
}


def parameter_groups(params: Any) -> Sequence[Mapping[str, Any]]:
    """Return groups of parameters, as PyTorch takes them, or one group of all."""
    if isinstance(params, list | tuple) and params:
        are_groups = [isinstance(one, dict) and PARAMS in one for one in params]
        if all(are_groups):
            return params
        if any(are_groups):
            raise ArgumentMismatch(
                "some parameters are groups with 'params' and some are not; pass only groups, or "
                "only parameters"
            )
    return [{PARAMS: params}]


def named_parameters(params: Any) -> dict[str, Tensor]:
    """Return the parameters by name. Raises ``UsageError`` if there are none."""
    if isinstance(params, Iterator | ItemsView | ValuesView):
        params = [*params]
        # Pairs of a name and a tensor, as ``tree.named_leaves`` and ``dict.items`` give them.
        if all(type(one) is tuple and [*map(type, one)] == [str, Tensor] for one in params):
            params = dict(params)
    found = dict(named_leaves(params))
    if not found:
        raise UsageError(
            "there are no parameters; pass containers of tensors (an iterator that was used before "
            "has none left)"
        )
    return found


def check_parameter(name: str, parameter: Any) -> None:
    """Raise an error unless a parameter is a tensor of floating-point numbers."""
    where = f"the parameter {name}" if name else "the parameter"
    if not is_tensor(parameter):
        raise ArgumentMismatch(no_tensor(where, parameter))
    if not parameter.dtype.is_floating:
        raise DTypeMismatch(
            f"{where} is {parameter.handle.spec}, and only floating-point tensors have gradients; "
            "leave it out, or convert it with x.astype(burn_remote.float32)"
        )


def check_gradient(name: str, parameter: Any, grad: Any) -> None:
    """Check a parameter and its gradient, which must be alike and on one device."""
    if is_tensor(parameter) and is_tensor(grad):
        one, other = parameter.handle, grad.handle
        is_alike = one.spec is other.spec or one.spec == other.spec
        is_here = one.client.session is other.client.session
        if is_alike and is_here and one.spec.dtype.is_floating:
            return
    spec = getattr(getattr(grad, "handle", None), "spec", None)
    if not is_tensor(parameter) or not parameter.dtype.is_floating:
        check_parameter(name, parameter)
    wanted = parameter.handle.spec
    what = f"the gradient of the parameter {name}" if name else "the gradient"
    if spec is None:
        raise ArgumentMismatch(f"{what} is of type {type_name(grad)}, not a tensor")
    if spec.shape != wanted.shape:
        raise ShapeMismatch(f"{what} is {spec}, but the parameter is {wanted}")
    if spec.dtype != wanted.dtype:
        raise DTypeMismatch(
            f"{what} is {spec}, but the parameter is {wanted}; convert it with grad.astype(dtype)"
        )
    raise DeviceMismatch(
        f"{what} is on {grad.device}, but the parameter is on {parameter.device}"
        f"{distinction(grad.device, parameter.device)}; move it with grad.to(device)"
    )


def check_options(options: Options) -> None:
    """Check the options of a group; what a schedule sets, such as ``lr``, may be 0."""
    for name, (least, most) in _BOUNDS.items():
        given = options.get(name, least)
        if name == RATE and callable(given):
            continue
        values: Sequence[Any] = (given,)
        if name == "betas" and name in options:
            if not isinstance(given, tuple | list) or len(given) != 2:
                raise ArgumentMismatch(f"betas must be a pair of numbers, not {shown(given)}")
            values = given
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                raise ArgumentMismatch(f"{name} must be a number, not {shown(value)}")
            if not (least <= value < most):
                raise UsageError(f"{name} must be at least {least} and below {most}, not {value}")
    if options.get("nesterov") and not (options["momentum"] and not options["dampening"]):
        raise UsageError("nesterov=True needs a momentum above 0 and dampening=0")


def step_count(name: str, given: Any) -> int:
    """Return a count of steps. Raises ``ArgumentMismatch`` unless it is a whole number ≥ 0."""
    found = np.asarray(given)
    count = found.item() if found.size == 1 and found.dtype.kind in "iuf" else -1
    # Beyond 2**53, float64 has no odd numbers. A comparison with NaN is false.
    if not (0 <= count < 2**53 and count == int(count)):
        raise ArgumentMismatch(
            f"the state of the parameter {name} has {shown(given)} steps; a count of steps is a "
            "whole number of at least 0"
        )
    return int(count)


def checked_rate(rate: Any) -> Any:
    """Return the learning rate of a step. Raises ``UsageError`` if it is no finite number ≥ 0."""
    if not (math.isfinite(rate) and rate >= 0):
        raise UsageError(f"lr must be finite and not negative, not {rate}")
    return rate


def entry_of(state: Mapping[str, Any], name: str, way: str = FROM_INIT) -> Any:
    """Return an entry of a state. Raises ``ArgumentMismatch``, which advises ``way``."""
    if not isinstance(state, Mapping) or name not in state:
        seen = f"it is of type {type_name(state)}"
        if isinstance(state, Mapping):
            seen = f"it has {', '.join(map(repr, state))}" if state else "it is empty"
        raise ArgumentMismatch(f"the state has no entry {name!r} ({seen}); {way}")
    return state[name]


def number_of(state: Mapping[str, Any], name: str) -> Any:
    """Return a number of a state.

    Raises ``ArgumentMismatch`` for a tensor, which files have in place of numbers.
    """
    number = entry_of(state, name)
    if is_tensor(number):
        raise ArgumentMismatch(
            f"the entry {name!r} of the state is a tensor, and must be a number; load the state "
            "with like=, such as burn_remote.load_safetensors(path, like={'params': params, "
            f"'state': optimizer.init(params)}}), or write state[{name!r}] = state[{name!r}].item()"
        )
    return number
