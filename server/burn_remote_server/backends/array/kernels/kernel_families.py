"""The families of kernels that make up a backend."""

from __future__ import annotations

from typing import Any

from burn_remote_server.backends.array.core.kernel_forms import KernelFamily
from burn_remote_server.backends.array.kernels.accumulation import NumericAccumulation
from burn_remote_server.backends.array.kernels.arithmetic import NumericArithmetic
from burn_remote_server.backends.array.kernels.bitwise import IntBitwise
from burn_remote_server.backends.array.kernels.casting import (
    BaseCasting,
    BoolCasting,
    FloatCasting,
    IntCasting,
)
from burn_remote_server.backends.array.kernels.comparison import (
    BaseComparison,
    FloatComparison,
    NumericComparison,
)
from burn_remote_server.backends.array.kernels.creation import BaseCreation, NumericCreation
from burn_remote_server.backends.array.kernels.float_functions import FloatFunctions
from burn_remote_server.backends.array.kernels.grid_sampling import FloatGridSampling
from burn_remote_server.backends.array.kernels.indexing import BaseIndexing
from burn_remote_server.backends.array.kernels.linear_algebra import (
    FloatLinearAlgebra,
    IntLinearAlgebra,
)
from burn_remote_server.backends.array.kernels.logic import BoolLogic
from burn_remote_server.backends.array.kernels.masking import BaseMasking
from burn_remote_server.backends.array.kernels.module import module_families
from burn_remote_server.backends.array.kernels.movement import BaseMovement
from burn_remote_server.backends.array.kernels.powers import FloatPowers, NumericPowers
from burn_remote_server.backends.array.kernels.random_numbers import (
    FloatRandom,
    IntRandom,
    RandomSource,
)
from burn_remote_server.backends.array.kernels.ranking import NumericRanking
from burn_remote_server.backends.array.kernels.reduction import NumericReduction
from burn_remote_server.backends.array.kernels.slicing import BaseSlicing

__all__ = ["random_families", "shared_families"]


def shared_families(xp: Any) -> list[KernelFamily]:
    """Return the families that all sessions of a backend share."""
    return [
        BaseCasting(xp),
        BaseComparison(xp),
        BaseCreation(xp),
        BaseIndexing(xp),
        BaseMasking(xp),
        BaseMovement(xp),
        BaseSlicing(xp),
        NumericAccumulation(xp),
        NumericArithmetic(xp),
        NumericComparison(xp),
        NumericCreation(xp),
        NumericPowers(xp),
        NumericRanking(xp),
        NumericReduction(xp),
        FloatCasting(xp),
        FloatComparison(xp),
        FloatFunctions(xp),
        FloatGridSampling(xp),
        FloatLinearAlgebra(xp),
        FloatPowers(xp),
        IntBitwise(xp),
        IntCasting(xp),
        IntLinearAlgebra(xp),
        BoolCasting(xp),
        BoolLogic(xp),
        *module_families(xp),
    ]


def random_families(xp: Any, source: RandomSource) -> list[KernelFamily]:
    """Return the families that draw from the random numbers of one session."""
    return [FloatRandom(xp, source), IntRandom(xp, source)]
