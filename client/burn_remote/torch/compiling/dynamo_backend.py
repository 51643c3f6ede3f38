"""The backend ``burn_remote`` of ``torch.compile``.

PyTorch traces a function and guards what it depends on (dynamo), differentiates it and removes
writes (AOTAutograd). What remains are graphs of aten operations, which become one task each.
Importing this module imports dynamo, which takes as long as the import of PyTorch.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final

import torch
from torch._C._dynamo import eval_frame
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.variables.builder import VariableBuilder

from burn_remote.sessions.source_locations import caller_and_depth
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.burn_tensor import BurnTensor
from burn_remote.torch.compiling.graph_nodes import is_on_device
from burn_remote.torch.compiling.lowering import lower
from burn_remote.torch.compiling.saved_values import bundled, has_hooks, partition
from burn_remote.torch.compositions import FUNCTIONAL_COMPOSITIONS
from burn_remote.torch.generators import Generator
from burn_remote.torch.registration import _factory
from burn_remote_protocol.errors import UsageError

__all__ = ["NAME", "burn_remote", "has_burn_tensors", "register"]

# The backend's name, for ``torch.compile`` and for the entry point.
NAME: Final = "burn_remote"

# Dynamo looks in this table first for how to trace an object. Without this entry, it would trace
# into the class's ``__torch_dispatch__``.
VariableBuilder._type_dispatch()[BurnTensor] = VariableBuilder.wrap_tensor
# As PyTorch's own generators: a call that draws from one ends the graph, and runs without
# ``torch.compile``.
VariableBuilder._type_dispatch()[Generator] = VariableBuilder.wrap_user_defined


# In C, because each call of a compiled training step looks at a hundred tensors.
_storage_of: Final = operator.attrgetter("_storage")


def _never_trace(*functions: Any) -> None:
    """Keep dynamo out of the frames of functions, and of all that they call."""
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for function in functions:
        eval_frame.set_code_exec_strategy(function.__code__, skip)


# Between two graphs, operations run one by one, in frames that dynamo would compile too.
_never_trace(
    *[one for one in vars(BurnTensor).values() if isinstance(one, FunctionType)],
    vars(BurnTensor)["__torch_dispatch__"].__func__,
    _factory(None),
)


def register() -> None:
    """Register the backend with PyTorch, for a package whose entry points are not installed."""
    registry.register_backend(burn_remote, name=NAME)


def has_burn_tensors(module: Any) -> bool:
    """Return whether a graph of dynamo has tensors on burn devices."""
    return any(is_on_device(node.meta.get("example_value")) for node in module.graph.nodes)


def burn_remote(
    module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """Compile a graph of dynamo. Graphs without tensors on burn devices are left to PyTorch.

    ``mode``, which chooses how long PyTorch's own backend searches for faster kernels, changes
    nothing. Raises ``UnsupportedOperation`` for an operation that the table lacks, and
    ``UsageError`` for ``options=``.
    """
    if options is not None:
        raise UsageError(
            "options= are those of PyTorch's backend inductor; burn_remote has none, so leave "
            "them out"
        )
    if not has_burn_tensors(module):
        return module.forward
    writes: list[bool] = []
    bundles: list[bool] = []

    def lowered(graph: Any, _: Any) -> Callable[[list[Any]], Any]:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        infos = () if metadata is None else metadata.input_info
        writes.append(any(one.mutates_data for one in infos))
        bundles.append(any(node.target is bundled for node in graph.graph.nodes))
        return lower(graph)

    compiled = aot_autograd(
        fw_compiler=lowered,
        decompositions=_decompositions(),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )(module, inputs)
    if not any(writes) and not any(bundles):
        return compiled
    return _checked(compiled, module.forward, any(writes), any(bundles))


def _checked(
    compiled: Callable[..., Any], uncompiled: Callable[..., Any], writes: bool, bundles: bool
) -> Callable[..., Any]:
    """Return a function that runs uncompiled where the compiled one would be wrong.

    - If inputs are views of one tensor, PyTorch passes that tensor to the graph. It finds other
      inputs that share elements, such as ``x`` and ``x.data``, by the addresses of their storages.
      Tensors on burn devices have none, so a graph that ``writes`` to one such input would not
      change the other.
    - Hooks such as ``save_on_cpu`` replace each tensor that is saved for the backward pass. They
      cannot replace one that ``bundles`` several values.
    """
    warned: set[str] = set()

    def warn(why: str) -> None:
        if why not in warned:
            warned.add(why)
            warnings.warn(
                f"{why}, so its operations run one by one", stacklevel=caller_and_depth(1)[2]
            )

    def call(*args: Any) -> Any:
        if bundles and has_hooks():
            warn("a graph runs inside of hooks for saved tensors")
            return uncompiled(*args)
        if writes and _shares_unnoticed(args):
            warn(
                "a graph writes to one of several inputs that share elements (pass one of them, "
                "and make the views inside the function)"
            )
            return uncompiled(*args)
        return compiled(*args)

    return call


def _shares_unnoticed(args: Sequence[Any]) -> bool:
    """Return whether arguments share elements although none is a view of another."""
    given = [x for x in args if type(x) is BurnTensor]
    storages = {*map(_storage_of, given)}
    if len(storages) == len(given):
        return False
    return len({id(x._base) if x._is_view() else id(x) for x in given}) != len(storages)


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions of the operations that the table lacks.

    Operations without a decomposition in Python, such as ``_foreach_add``, may have one in C++.
    """
    composite = torch._C.DispatchKey.CompositeExplicitAutograd
    known = {
        func: functools.partial(func._op_dk, composite)
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(composite.name)
        if name.startswith("aten::")
        for func in [overload(name.removeprefix("aten::"))]
        if func is not None and not func._schema.is_mutable
    }
    known |= {**decomposition_table, **core_aten_decompositions()}
    known |= {overload(name): made_of for name, made_of in FUNCTIONAL_COMPOSITIONS.items()}
    return {func: made_of for func, made_of in known.items() if func not in TABLE}
