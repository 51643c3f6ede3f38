"""Refusals of the rows that act on the session, and of those whose inputs are not floats."""

from __future__ import annotations

from burn_remote.autodiff.rule_table import never
from burn_remote_protocol.operations.families import bools, ints, session

never("it acts on a handle, not on elements", session.INIT, session.DROP)
never(
    "the gradient of a server's custom operation is unknown; define the gradient of the "
    "function that calls it with burn_remote.custom_vjp",
    session.CUSTOM,
)
never("collectives have no gradients", session.ALL_REDUCE)
never("its input is a tensor of integers", *ints.ROWS)
never("its input is a tensor of bools", *bools.ROWS)
