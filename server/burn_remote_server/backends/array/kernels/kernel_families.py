"""The kernel families of a backend."""

from __future__ import annotations

from typing import Any, Final

from burn_remote_server.backends.array.core.kernel_forms import KernelFamily
from burn_remote_server.backends.array.kernels.activations import Activations, Softmaxes
from burn_remote_server.backends.array.kernels.arithmetic import (
    FloatPowers,
    NumericArithmetic,
    NumericPowers,
)
from burn_remote_server.backends.array.kernels.casting import (
    BaseCasting,
    BoolCasting,
    FloatCasting,
    IntCasting,
)
from burn_remote_server.backends.array.kernels.complex_kernels import ComplexFunctions
from burn_remote_server.backends.array.kernels.creation import BaseCreation, NumericCreation
from burn_remote_server.backends.array.kernels.elementwise_kernels import ElementwiseExtensions
from burn_remote_server.backends.array.kernels.float_functions import FloatFunctions
from burn_remote_server.backends.array.kernels.fourier_transforms import FourierTransforms
from burn_remote_server.backends.array.kernels.grid_sampling import FloatGridSampling
from burn_remote_server.backends.array.kernels.indexing import BaseIndexing, BaseMasking
from burn_remote_server.backends.array.kernels.linear_algebra import (
    FloatLinearAlgebra,
    IntLinearAlgebra,
)
from burn_remote_server.backends.array.kernels.logic import (
    BaseComparison,
    BoolLogic,
    FloatComparison,
    IntBitwise,
    NumericComparison,
)
from burn_remote_server.backends.array.kernels.matrix_kernels import MatrixKernels
from burn_remote_server.backends.array.kernels.movement import (
    BaseMovement,
    BaseSlicing,
    NumericPadding,
)
from burn_remote_server.backends.array.kernels.networks.adaptive_pooling import AdaptivePooling
from burn_remote_server.backends.array.kernels.networks.attention import Attention
from burn_remote_server.backends.array.kernels.networks.average_pooling import AveragePooling
from burn_remote_server.backends.array.kernels.networks.convolution_kernels import (
    Convolution,
    TransposedConvolution,
)
from burn_remote_server.backends.array.kernels.networks.ctc import Ctc
from burn_remote_server.backends.array.kernels.networks.deformable_convolution import (
    DeformableConvolution,
)
from burn_remote_server.backends.array.kernels.networks.embedding import Embedding
from burn_remote_server.backends.array.kernels.networks.fourier import Fourier
from burn_remote_server.backends.array.kernels.networks.interpolation import Interpolation
from burn_remote_server.backends.array.kernels.networks.linear import Linear
from burn_remote_server.backends.array.kernels.networks.max_pooling import MaxPooling
from burn_remote_server.backends.array.kernels.networks.module_kernels import ModuleKernels
from burn_remote_server.backends.array.kernels.networks.normalization import Normalization
from burn_remote_server.backends.array.kernels.networks.unfolding import Unfolding
from burn_remote_server.backends.array.kernels.random_numbers import (
    FloatRandom,
    IntRandom,
    RandomSource,
)
from burn_remote_server.backends.array.kernels.ranking import NumericRanking
from burn_remote_server.backends.array.kernels.reduction import (
    BaseReduction,
    NumericAccumulation,
    NumericReduction,
)
from burn_remote_server.backends.array.kernels.searching import SearchKernels

__all__ = ["MODULE_FAMILIES", "module_families", "random_families", "shared_families"]


def shared_families(xp: Any) -> list[KernelFamily]:
    """Return the families that all sessions of a backend share."""
    return [
        BaseCasting(xp),
        BaseComparison(xp),
        BaseCreation(xp),
        BaseIndexing(xp),
        BaseMasking(xp),
        BaseMovement(xp),
        BaseReduction(xp),
        BaseSlicing(xp),
        Activations(xp),
        Softmaxes(xp),
        NumericAccumulation(xp),
        NumericArithmetic(xp),
        NumericComparison(xp),
        NumericCreation(xp),
        NumericPadding(xp),
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
        ElementwiseExtensions(xp),
        MatrixKernels(xp),
        SearchKernels(xp),
        ComplexFunctions(xp),
        FourierTransforms(xp),
        *module_families(xp),
    ]


def random_families(xp: Any, source: RandomSource) -> list[KernelFamily]:
    """Return the families that draw from the random numbers of one session."""
    return [FloatRandom(xp, source), IntRandom(xp, source)]


MODULE_FAMILIES: Final[tuple[type[ModuleKernels], ...]] = (
    Embedding,
    Linear,
    Convolution,
    TransposedConvolution,
    DeformableConvolution,
    AveragePooling,
    MaxPooling,
    AdaptivePooling,
    Interpolation,
    Fourier,
    Attention,
    Ctc,
    Normalization,
    Unfolding,
)


def module_families(xp: Any) -> list[ModuleKernels]:
    """Return the kernels of ``ModuleOperationIr``: each of its variants occurs once."""
    return [subject(xp) for subject in MODULE_FAMILIES]
