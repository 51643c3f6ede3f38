"""How does a server count, so that a long range need not be sent there?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.tensors.arrays import data_from
from burn_remote.tensors.operators import ONES, Operator
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.runner import RunnerClient
    from burn_remote.tensor import Tensor

__all__ = ["SENT_LENGTH", "counted"]

CUM_SUM: Final = Operator(numeric.CUM_SUM)
SUB_SCALAR: Final = Operator(numeric.SUB_SCALAR)

# Up to this length a range is sent, in one task of at most 8 KiB; a longer one is the cumulative
# sum of ones on the server, three operations. Larger: more bytes than operations are worth.
# Smaller: short ranges, which are the usual ones, cost three operations instead of one.
SENT_LENGTH: Final = 1024


def counted(kind: type[Tensor], client: RunnerClient, count: int) -> Tensor:
    """Return the numbers from 0 to ``count - 1`` as int64."""
    if count <= SENT_LENGTH:
        return kind(client.register_tensor_data(data_from(np.arange(count, dtype=np.int64))))
    ones = kind(ONES.create(client, TensorSpec((count,), I64)))
    return SUB_SCALAR.scalar(CUM_SUM.apply((ones,), (0,)), 1)
