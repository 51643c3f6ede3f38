"""Rules of Fourier transforms, the CTC loss, and quantization."""

from __future__ import annotations

from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    FLOATS,
    INTEGERS,
    QUANTIZED,
    check_axis,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    declared_output,
    refuse_shape,
    result,
)
from burn_remote_protocol.quantized_storage import check_blocks, scales_shape
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["ctc_loss", "ctc_loss_backward", "dequantize", "irfft", "quantize", "rfft"]

Outputs = tuple[TensorSpec, ...]


def rfft(call: Call) -> Outputs:
    """Transform one axis of ``n`` real samples to ``n // 2 + 1`` frequencies, in two parts."""
    (signal,) = call.inputs
    check_category("signal", signal, FLOATS)
    dim, samples = call.parameters["dim"], call.parameters["n"]
    check_axis("dim", dim, signal.shape)
    samples = signal.shape[dim] if samples is None else samples
    if samples < 1:
        refuse_shape(f"signal is {signal}, but at least 1 sample is needed along {dim=}")
    shape = (*signal.shape[:dim], samples // 2 + 1, *signal.shape[dim + 1 :])
    spectrum = result(shape, signal.dtype)
    return spectrum, spectrum


def irfft(call: Call) -> Outputs:
    """Transform one axis of frequencies back to ``n`` samples, by default an even number."""
    real, imaginary = call.inputs
    check_category("input_re", real, FLOATS)
    check_same_dtype(real, input_im=imaginary)
    check_shape("input_im", imaginary, real.shape)
    dim, samples = call.parameters["dim"], call.parameters["n"]
    check_axis("dim", dim, real.shape)
    samples = 2 * (real.shape[dim] - 1) if samples is None else samples
    if samples < 1 or real.shape[dim] < 1:
        refuse_shape(f"input_re is {real}, too few frequencies along {dim=} for a sample")
    return (result((*real.shape[:dim], samples, *real.shape[dim + 1 :]), real.dtype),)


def _check_ctc(call: Call) -> None:
    log_probs, targets, input_lengths, target_lengths = call.inputs[:4]
    check_category("log_probs", log_probs, FLOATS)
    check_rank("log_probs", log_probs, 3)
    _, batch, classes = log_probs.shape
    check_category("targets", targets, INTEGERS)
    check_rank("targets", targets, 2)
    check_shape("targets", targets, (batch, targets.shape[1]))
    for argument, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        check_category(argument, lengths, INTEGERS)
        check_shape(argument, lengths, (batch,))
    if call.parameters["blank"] >= classes:
        refuse_shape(f"blank={call.parameters['blank']} is not one of the {classes} classes")


def ctc_loss(call: Call) -> Outputs:
    """Return one loss per sequence, from log-probabilities ``[time, batch, classes]``."""
    _check_ctc(call)
    log_probs = call.inputs[0]
    return (TensorSpec((log_probs.shape[1],), log_probs.dtype),)


def ctc_loss_backward(call: Call) -> Outputs:
    """Infer the gradient of the loss with respect to the log-probabilities."""
    _check_ctc(call)
    log_probs, grad = call.inputs[0], call.inputs[4]
    check_same_dtype(log_probs, grad_loss=grad)
    check_shape("grad_loss", grad, (log_probs.shape[1],))
    return (log_probs,)


def quantize(call: Call) -> Outputs:
    """Keep the shape; the dtype is the scheme's. There is one scale per tensor or per block."""
    tensor, scales = call.inputs
    check_category("tensor", tensor, FLOATS)
    if not isinstance(scales, TensorSpec):
        raise Unsupported("quantization with scales of two levels cannot be computed yet")
    check_category("scales", scales, FLOATS)
    scheme = call.parameters["scheme"]
    check_blocks(tensor.shape, scheme)
    expected = TensorSpec(scales_shape(tensor.shape, scheme), scales.dtype)
    if scales.size != expected.size:
        refuse_shape(f"scales is {scales}, but {tensor} has {expected.size} scales")
    return (TensorSpec(tensor.shape, DType.quantized(scheme)),)


def dequantize(call: Call) -> Outputs:
    """Keep the shape; use the declared floating-point dtype, by default ``F32``."""
    (spec,) = call.inputs
    check_category("input", spec, QUANTIZED)
    target = declared_output(call, 0) or TensorSpec(spec.shape, F32)
    check_category("the output", target, FLOATS)
    return (TensorSpec(spec.shape, target.dtype),)
