"""Rows of operations that resample images or transform signals."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    optional_usize,
    tensor_in,
    tensor_out,
    usize,
    usize_array,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.pooling_rules import (
    interpolate,
    interpolate_backward,
)
from burn_remote_protocol.operations.shape_rules.signal_rules import irfft, rfft
from burn_remote_protocol.operations.shared_fields import INTERPOLATE_OPTIONS
from burn_remote_protocol.operations.vocabularies import Lifetime, Vocabulary

INTERPOLATE: Final = Row(
    "Module",
    "Interpolate",
    (tensor_in("x"), usize_array("output_size", 2), INTERPOLATE_OPTIONS, tensor_out("out")),
    interpolate,
    estimates.INTERPOLATE,
)
INTERPOLATE_BACKWARD: Final = Row(
    "Module",
    "InterpolateBackward",
    (
        tensor_in("x"),
        tensor_in("grad"),
        usize_array("output_size", 2),
        INTERPOLATE_OPTIONS,
        tensor_out("out"),
    ),
    interpolate_backward,
    estimates.INTERPOLATE_BACKWARD,
)
RFFT: Final = Row(
    "Module",
    "Rfft",
    (
        tensor_in("signal"),
        usize("dim"),
        optional_usize("n"),
        tensor_out("out_re"),
        tensor_out("out_im"),
    ),
    rfft,
    estimates.FOURIER,
    Lifetime(until=Vocabulary.BURN_0_22),
)
IRFFT: Final = Row(
    "Module",
    "IRfft",
    (
        tensor_in("input_re"),
        tensor_in("input_im"),
        usize("dim"),
        optional_usize("n"),
        tensor_out("out_signal"),
    ),
    irfft,
    estimates.FOURIER,
    Lifetime(until=Vocabulary.BURN_0_22),
)

ROWS: Final = (INTERPOLATE, INTERPOLATE_BACKWARD, RFFT, IRFFT)
