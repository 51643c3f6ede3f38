"""The search for optimizations in a stream of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from burn_remote_server.fusion.fuser import FuserStatus, OperationFuser, StreamOperation
from burn_remote_server.fusion.ordered_execution import OrderedExecution

__all__ = ["MAX_BLOCK_OPERATIONS", "Block", "begins_run", "optimized"]

# Most operations of one optimization. Larger blocks save little more, and after an error in one of
# their operations, all operations before it are executed again.
MAX_BLOCK_OPERATIONS: Final = 64


class Block(NamedTuple):
    """Consecutive operations, from the position ``start`` on, and their optimization."""

    start: int
    execution: OrderedExecution

    @property
    def end(self) -> int:
        """The position after the last operation."""
        return self.start + len(self.execution.operations)


def optimized(
    operations: Sequence[StreamOperation | None], fusers: Sequence[OperationFuser]
) -> list[Block]:
    """Return the blocks of a stream that fusers can replace, in their order.

    ``None`` stands for an operation that no fuser takes. The search is one greedy pass, so its time
    is proportional to the number of operations.
    """
    blocks: list[Block] = []
    start = 0
    while start < len(operations):
        if operations[start] is None:
            start += 1
            continue
        length = _offer(operations[start : start + MAX_BLOCK_OPERATIONS], fusers)
        if not length:
            start += 1
            continue
        ready = [fuser for fuser in fusers if fuser.properties().ready]
        if ready:
            best = max(ready, key=lambda fuser: fuser.properties().score)
            length = len(best)
            accepted = [each for each in operations[start : start + length] if each is not None]
            blocks.append(Block(start, OrderedExecution(accepted, best.finish())))
        start += length
    return blocks


def begins_run(operation: StreamOperation, fusers: Sequence[OperationFuser]) -> bool:
    """Whether a fuser takes an operation as the first of a run."""
    return _offer([operation], fusers) > 0


def _offer(operations: Sequence[StreamOperation | None], fusers: Sequence[OperationFuser]) -> int:
    """Offer operations until all fusers are closed; return the most that one of them accepted."""
    for fuser in fusers:
        fuser.reset()
    for operation in operations:
        if operation is None:
            break
        open_fusers = [fuser for fuser in fusers if fuser.status() is FuserStatus.OPEN]
        if not open_fusers:
            break
        for fuser in open_fusers:
            fuser.fuse(operation)
    return max((len(fuser) for fuser in fusers), default=0)
