"""Groups of devices and their collectives, and the names of Burn's ``DistributedBackend``.

Begin with ``with Group(devices) as group:``. ``burn_remote.DataParallel`` trains with a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.foreign_names import DISTRIBUTED
from burn_remote.distributed.batch_splitting import SplitBatch
from burn_remote.distributed.group import Group
from burn_remote.distributed.reduce_operations import ReduceOperation
from burn_remote.distributed.reduce_operations import ReduceOperation as ReduceOp
from burn_remote.distributed.synchronization import (
    CollectiveTensor,
    DistributedConfig,
    DistributedParams,
    DistributedSyncClient,
    TensorRef,
    all_reduce,
    close_communication_server,
    close_distributed_sync_server,
    comm_device,
    float_from_ref,
    get_backend_client_map,
    get_distributed_sync_client,
    no_sync,
    register_sync_parameters,
    start_communication_server,
    start_distributed_sync_server,
    submit_gradient_sync,
    submit_sync_collective,
    sync_collective,
)

__all__ = [
    "CollectiveTensor",
    "DistributedConfig",
    "DistributedParams",
    "DistributedSyncClient",
    "Group",
    "ReduceOp",
    "ReduceOperation",
    "SplitBatch",
    "TensorRef",
    "all_reduce",
    "close_communication_server",
    "close_distributed_sync_server",
    "comm_device",
    "float_from_ref",
    "get_backend_client_map",
    "get_distributed_sync_client",
    "no_sync",
    "register_sync_parameters",
    "start_communication_server",
    "start_distributed_sync_server",
    "submit_gradient_sync",
    "submit_sync_collective",
    "sync_collective",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__, DISTRIBUTED)
