"""Values that a forward graph saves for its backward graph, passed on as one tensor.

PyTorch's autograd keeps a tensor for each saved value. Making, saving and returning one takes 5 µs,
and a transformer of two layers saves 40. So the forward graph returns one tensor without elements,
a *bundle*, that refers to all values which only the backward graph uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition

import burn_remote as br
from burn_remote.torch.burn_tensor import BurnTensor, unset
from burn_remote.torch.device_registry import BACKEND
from burn_remote.torch.errors import UnsupportedOperation

__all__ = ["bundled", "has_hooks", "made_bundle", "member", "members_of", "partition"]

_FEWEST: Final = 2


def bundled(*values: Any) -> Any:
    """Stand for the making of a bundle in a forward graph, which the lowering replaces."""
    raise _refusal()


def member(bundle: Any, place: int) -> Any:
    """Stand for a value of a bundle in a backward graph, which the lowering replaces."""
    raise _refusal()


def _refusal() -> UnsupportedOperation:
    # Compiled autograd traces backward graphs again, and so calls ``member``.
    return UnsupportedOperation(
        "compiled autograd does not trace the backward graphs of burn devices; call backward() "
        "outside of it"
    )


def made_bundle(values: Sequence[br.Tensor], place: Any) -> BurnTensor:
    """Return a tensor without elements that refers to values."""
    made = unset((0,), None, torch.float32, place)
    made._bundle = values
    return made


def members_of(bundle: Any) -> Sequence[br.Tensor]:
    """Return the values of a bundle."""
    values: Sequence[br.Tensor] = bundle._bundle
    return values


def has_hooks() -> bool:
    """Return whether hooks would replace the saved tensors, as ``save_on_cpu`` does.

    Those of ``torch.utils.checkpoint`` replace none: they run the forward graph again.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ != "torch.utils.checkpoint"


def partition(joint: Any, inputs: Any, **options: Any) -> tuple[Any, Any]:
    """Divide a graph into forward and backward as PyTorch does, and bundle what is saved."""
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    if _bundle(forward, backward, options["num_fwd_outputs"]):
        for module in (forward, backward):
            module.graph.lint()
            module.recompile()
    return forward, backward


def _bundle(forward: Any, backward: Any, results: int) -> bool:
    """Replace the values that only the backward graph uses; return whether there were any."""
    (output,) = forward.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    saved = outputs[results:]
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    shown = {*outputs[:results]}
    chosen = [
        node
        for node in dict.fromkeys(saved)
        if isinstance(node, fx.Node)
        and node.op == "call_function"
        and node not in shown
        and saved.count(node) == 1
        and node.name in placeholders
        and _is_ours(node.meta.get("val"))
        and all(_is_computation(user) for user in placeholders[node.name].users)
    ]
    if len(chosen) < _FEWEST:
        return False
    example = chosen[0].meta["val"].new_empty((0,), dtype=torch.float32)
    with forward.graph.inserting_before(output):
        bundle = forward.graph.call_function(bundled, tuple(chosen))
    bundle.meta["val"] = example
    # Before the other tensors: those that are saved without a check of their version come last.
    rest = [node for node in saved if node not in {*chosen}]
    output.args = ((*outputs[:results], bundle, *rest),)
    # The backward graph has the same order, after the integers that it takes.
    first = next(
        node
        for node in backward.graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), torch.Tensor)
    )
    with backward.graph.inserting_before(first):
        taken = backward.graph.placeholder(bundle.name)
    taken.meta["val"] = example
    last = [*backward.graph.find_nodes(op="placeholder")][-1]
    for place, node in enumerate(chosen):
        old = placeholders[node.name]
        with backward.graph.inserting_after(last):
            last = backward.graph.call_function(member, (taken, place))
        last.meta = dict(old.meta)
        old.replace_all_uses_with(last)
        backward.graph.erase_node(old)
    return True


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == BACKEND


def _is_computation(user: Any) -> bool:
    """Return whether a node computes something new, rather than returning or writing a value."""
    return user.op == "call_function" and user.target is not torch.ops.aten.copy_.default
