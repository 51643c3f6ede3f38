"""Extension rows: discrete Fourier transforms along several axes."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    name_of,
    size_list,
    tensor_in,
    tensor_out,
    usize_list,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.fourier_rules import (
    inverse_real_transform,
    real_transform,
    transform,
)
from burn_remote_protocol.operations.vocabularies import EXTENSION

# Which of a transform and its inverse is divided by the number of samples: the inverse, both (by
# its square root), or the transform.
NORMS: Final = ("Backward", "Ortho", "Forward")

# ``sizes`` has the number of samples along each of ``axes``; input is truncated or padded with
# zeros to it. The last axis of a real transform has half of the frequencies.
TRANSFORM: Final = (
    tensor_in("input"),
    usize_list("axes"),
    size_list("sizes"),
    name_of("norm", *NORMS),
    tensor_out("out"),
)

FFT: Final = Row("Fourier", "Fft", TRANSFORM, transform, estimates.TRANSFORM, EXTENSION)
INVERSE_FFT: Final = Row(
    "Fourier", "InverseFft", TRANSFORM, transform, estimates.TRANSFORM, EXTENSION
)
REAL_FFT: Final = Row(
    "Fourier", "RealFft", TRANSFORM, real_transform, estimates.TRANSFORM, EXTENSION
)
INVERSE_REAL_FFT: Final = Row(
    "Fourier", "InverseRealFft", TRANSFORM, inverse_real_transform, estimates.TRANSFORM, EXTENSION
)

ROWS: Final = (FFT, INVERSE_FFT, REAL_FFT, INVERSE_REAL_FFT)
