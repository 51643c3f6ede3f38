"""The families of kernels that make up the IR's family ``Module``."""

from __future__ import annotations

from typing import Any, Final

from burn_remote_server.backends.array.module.adaptive_pooling import AdaptivePooling
from burn_remote_server.backends.array.module.attention import Attention
from burn_remote_server.backends.array.module.average_pooling import AveragePooling
from burn_remote_server.backends.array.module.convolution import Convolution
from burn_remote_server.backends.array.module.ctc import Ctc
from burn_remote_server.backends.array.module.deformable_convolution import DeformableConvolution
from burn_remote_server.backends.array.module.embedding import Embedding
from burn_remote_server.backends.array.module.fourier import Fourier
from burn_remote_server.backends.array.module.interpolation import Interpolation
from burn_remote_server.backends.array.module.linear import Linear
from burn_remote_server.backends.array.module.max_pooling import MaxPooling
from burn_remote_server.backends.array.module.subject import Subject
from burn_remote_server.backends.array.module.transposed_convolution import TransposedConvolution

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
