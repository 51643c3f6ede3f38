"""Rows of operations on the session and its tensors, not on their elements."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    devices,
    name_of,
    scalars,
    string,
    tensor_in,
    tensor_out,
    tensors_in,
    tensors_out,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import ANY, NUMBERS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    as_declared,
    created,
    freed,
    same,
)
from burn_remote_protocol.operations.vocabularies import Vocabulary

INIT: Final = Row("Init", "Init", (tensor_out("out"),), created(ANY), estimates.NOTHING)
DROP: Final = Row("Drop", "Drop", (tensor_in("tensor"),), freed, estimates.NOTHING)
CUSTOM: Final = Row(
    "Custom",
    "Custom",
    (
        string("id"),
        tensors_in("inputs"),
        tensors_out("outputs"),
        scalars("scalars").added(Vocabulary.BURN_0_22, absent=()),
    ),
    as_declared,
    estimates.UNKNOWN,
)
ALL_REDUCE: Final = Row(
    "Distributed",
    "AllReduce",
    (
        tensor_in("tensor"),
        tensor_out("out"),
        name_of("op", "Sum", "Mean").added(Vocabulary.BURN_0_22),
        devices("device_ids").added(Vocabulary.BURN_0_22, absent=()),
    ),
    same(NUMBERS),
    estimates.elementwise(1),
)

# Operations that no backend can carry out, and why.
IMPOSSIBLE: Final = {
    ALL_REDUCE: "Burn 0.21 does not send which tensors take part and how they are reduced; for "
    "clients of Burn 0.22, servers carry it out, but not inside a graph",
}

ROWS: Final = (INIT, DROP, CUSTOM, ALL_REDUCE)
