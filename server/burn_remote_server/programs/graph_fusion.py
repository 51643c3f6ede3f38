"""Fusion of the steps of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from burn_remote_protocol.messages import DefineGraph
from burn_remote_server.backends.interface import Backend, BackendSession, ElementwiseCall
from burn_remote_server.fusion.fuser import StreamOperation
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.fusion.optimization_search import Block, optimized
from burn_remote_server.programs.plans import Plan

__all__ = ["fused_steps"]


def fused_steps(
    task: DefineGraph, plans: Sequence[Plan], backend: Backend, session: BackendSession
) -> list[Block]:
    """Return the blocks: runs of steps, each of which one optimization can replace.

    The tensors of a block are the graph's slots. If a step has numbers, its constant is the tensor
    ``-1 - place``, with the place of the step.
    """
    if not isinstance(backend, FusionBackend):
        return []
    fusers = backend.graph_fusers()
    takes_all = any(fuser.least_bytes == 0 for fuser in fusers)
    return optimized(_operations(task, plans, session, takes_all=takes_all), fusers)


def _operations(
    task: DefineGraph, plans: Sequence[Plan], session: BackendSession, *, takes_all: bool
) -> list[StreamOperation | None]:
    """Return the steps as operations.

    ``takes_all``: also return operations that are too small for the fusers of a stream.
    """
    # By the plan and the arguments that are numbers of the graph. Graphs repeat few plans.
    bound: dict[tuple[Plan, tuple[int, ...]], tuple[ElementwiseCall, ...]] = {}
    last_use: dict[int, int] = {}
    for place, step in enumerate(task.steps):
        last_use |= dict.fromkeys(step[1:], place)
    kept = {*task.outputs, *range(task.input_count)}
    numbered: dict[int, tuple[int, ...]] = {}
    for place, field, _ in task.numbers:
        numbered[place] = (*numbered.get(place, ()), field)
    operations: list[StreamOperation | None] = []
    next_slot = task.input_count
    for place, (step, plan) in enumerate(zip(task.steps, plans, strict=True)):
        outputs = tuple(range(next_slot, next_slot + plan.output_count))
        next_slot += plan.output_count
        operations.append(None)
        if plan.error is not None or not (plan.joins_windows or (takes_all and plan.gives_one)):
            continue
        calls = plan.calls
        own = numbered.get(place, ())
        if own or not plan.joins_windows:
            if (plan, own) not in bound:
                numbers = _numbers(plan, own) if own else None
                bound[plan, own] = session.bind_elementwise(plan.signature, numbers)
            calls = bound[plan, own]
        # Fusible only if the call has one constant, whatever the numbers are.
        if own and [len(call.constants) for call in calls] != [1]:
            continue
        used = {*step[1:], *outputs} - kept
        operations[place] = StreamOperation(
            plan.signature,
            plan.run,
            calls,
            step[1:],
            (-1 - place,) if own else (),
            outputs,
            frozenset(slot for slot in used if last_use.get(slot, place) == place),
            plan.reduction,
        )
    return operations


def _numbers(plan: Plan, fields: Sequence[int]) -> dict[str, float]:
    """Return the values of some arguments, by their names."""
    all_fields, arguments = plan.signature.row.fields, plan.signature.arguments
    return {all_fields[field].name: arguments[field].value for field in fields}
