"""The families of kernels that make up the IR's family ``Module``."""

from __future__ import annotations

from typing import Any, Final

from burn_remote_server.backends.array.kernels.module.adaptive_pooling import AdaptivePooling
from burn_remote_server.backends.array.kernels.module.attention import Attention
from burn_remote_server.backends.array.kernels.module.average_pooling import AveragePooling
from burn_remote_server.backends.array.kernels.module.convolution_kernels import Convolution
from burn_remote_server.backends.array.kernels.module.ctc import Ctc
from burn_remote_server.backends.array.kernels.module.deformable_convolution import (
    DeformableConvolution,
)
from burn_remote_server.backends.array.kernels.module.embedding import Embedding
from burn_remote_server.backends.array.kernels.module.fourier import Fourier
from burn_remote_server.backends.array.kernels.module.interpolation import Interpolation
from burn_remote_server.backends.array.kernels.module.linear import Linear
from burn_remote_server.backends.array.kernels.module.max_pooling import MaxPooling
from burn_remote_server.backends.array.kernels.module.subject import Subject
from burn_remote_server.backends.array.kernels.module.transposed_convolution import (
    TransposedConvolution,
)

__all__ = ["SUBJECTS", "module_families"]

SUBJECTS: Final[tuple[type[Subject], ...]] = (
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
)


def module_families(xp: Any) -> list[Subject]:
    """Return the kernels of every subject over the array module ``xp``; together they have each
    variant of ``ModuleOperationIr`` once."""
    return [subject(xp) for subject in SUBJECTS]
