"""A session on the NumPy backend with fusion forced, and the signatures that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import Mock, patch

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.messages import Define
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.ordered_execution import OrderedExecution
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.engines import EngineSession
from support.kernels import signature
from support.random_programs import forced_fusion

__all__ = [
    "ADD",
    "ADD_INTEGERS",
    "DIVIDE",
    "INTEGERS",
    "SIGNATURES",
    "SUM",
    "TWICE",
    "VECTOR",
    "fused_session",
    "ran_one_by_one",
]

ADD, TWICE, SUM, DIVIDE, ADD_INTEGERS = range(5)
VECTOR: Final = TensorSpec((1000,), F32)
INTEGERS: Final = TensorSpec((1000,), I64)
SIGNATURES: Final = {
    ADD: signature("Numeric.Add", VECTOR, VECTOR),
    TWICE: signature("Numeric.MulScalar", VECTOR, rhs=2.0),
    SUM: signature("Numeric.SumDim", VECTOR, axis=0, accumulator_len=1),
    DIVIDE: signature("Numeric.Div", INTEGERS, INTEGERS),
    ADD_INTEGERS: signature("Numeric.Add", INTEGERS, INTEGERS),
}


@contextmanager
def fused_session(*, compiles: bool = True, **limits: Any) -> Iterator[EngineSession]:
    """Open a session with the tensors 1 (0 to 999) and 2 (ones), both ``VECTOR``.

    ``limits`` are those of the interpreter.
    """
    with forced_fusion():
        session = EngineSession(backend=with_fusion(NumpyBackend(), compiles=compiles), **limits)
        session.run(*(Define(number, signed) for number, signed in SIGNATURES.items()))
        session.upload(1, *range(1000))
        session.upload(2, *[1.0] * 1000)
        yield session


def ran_one_by_one() -> AbstractContextManager[Mock]:
    """Count the fused runs whose operations are executed one by one."""
    run = OrderedExecution.execute_operations
    return patch.object(OrderedExecution, "execute_operations", autospec=True, side_effect=run)
