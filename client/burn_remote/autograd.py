"""Gradients of results, in the form of ``torch.autograd``.

``grad`` here takes results and the tensors that they were computed from. ``burn_remote.grad`` takes
a function, as JAX's does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from burn_remote.autodiff.backward_pass import BackwardPass
from burn_remote.autodiff.grad_mode import enable_grad, no_grad
from burn_remote.autodiff.uniform_gradients import Uniform, one_for
from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.functions.tracked_tensors import checked_seed, tracked_handle
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["enable_grad", "grad", "no_grad"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)


@explained
def grad(
    outputs: Tensor | Iterable[Tensor],
    inputs: Tensor | Iterable[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``outputs`` with respect to ``inputs``, one for each input.

    ``inputs`` are any tracked tensors, also results of operations. ``grad_outputs`` has the
    gradient of each output; it may be omitted for outputs of one element. Nothing is added to
    ``Tensor.grad``. ``retain_graph`` and ``create_graph`` are those of ``Tensor.backward``. If no
    output depends on an input, raises ``UsageError``, or returns ``None`` as its gradient if
    ``allow_unused`` is true.
    """
    roots = [outputs] if is_tensor(outputs) else [*outputs]
    wanted = [inputs] if is_tensor(inputs) else [*inputs]
    handles = [tracked_handle(one, "the gradient of") for one in roots]
    sources = [tracked_handle(one, "the gradient with respect to").source for one in wanted]
    given: Sequence[Tensor | None] = [None] * len(roots)
    if grad_outputs is not None:
        given = [grad_outputs] if is_tensor(grad_outputs) else [*grad_outputs]
    if len(given) != len(roots):
        raise ShapeMismatch(f"{len(given)} grad_outputs do not match {len(roots)} outputs")
    seeds: list[Tensor | Uniform] = []
    for place, (root, handle, seed) in enumerate(zip(roots, handles, given, strict=True)):
        if seed is not None:
            seeds.append(checked_seed(root, seed, f"grad_outputs[{place}]"))
        elif handle.spec.size == 1:
            seeds.append(one_for(type(root), handle))
        else:
            raise ShapeMismatch(
                f"outputs[{place}] is {handle.spec}: grad_outputs= must have its gradient, because "
                "it has several elements"
            )
    backward_pass = BackwardPass(handles, wanted=sources)
    retains = create_graph if retain_graph is None else retain_graph
    backward_pass.run(seeds, retains=retains, is_recorded=create_graph)
    found = tuple([backward_pass.gradient_of(source) for source in sources])
    if not allow_unused and None in [None if one is None else 0 for one in found]:
        place = [one is None for one in found].index(True)
        raise UsageError(
            f"no output depends on inputs[{place}], {wanted[place].handle.spec}; with "
            "allow_unused=True, its gradient is None"
        )
    return found
