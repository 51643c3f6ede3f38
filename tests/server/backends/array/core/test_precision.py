"""Operations on half-precision tensors agree with float64 up to one rounding.

The operations and their tensors are taken from recorded sessions of real Burn programs. The tensors
are rounded to the low precision. The result must equal that of the same operation in float64,
rounded once:

- integers, bools, and the positions of NaN and infinities exactly;
- other numbers to one unit in the last place of the low precision plus ``ACCUMULATED`` times the
  largest. Sums in float32 stay within this error; sums in float16 would not.

Other tests compare float64 with independent definitions. The recordings of ``tests/conformance``
have the float16 results of Burn's own CPU backend.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, F16, F32, F64, FLEX32, I64, DType
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.vocabularies import EXTENSION
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import Run
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from support.kernels import signature, spec_of
from support.recorded import recordings, sessions
from support.replay import replay

# 2⁻¹⁷: a sum of a hundred products in float32. In float16 it would be 2⁻¹¹ for each of them.
ACCUMULATED = 2.0**-17

# The number of signatures for each row, and the largest number of elements of their tensors.
SAMPLES = 5
LARGEST = 50_000


class Sample(NamedTuple):
    """A recorded operation and the arrays that it was applied to, ``None`` for an absent one."""

    signature: Signature
    inputs: tuple[Any, ...]


def is_float32(signature: Signature) -> bool:
    specs = [*(use.spec for use in signature.input_uses), *signature.outputs]
    return any(spec.dtype is F32 for spec in specs) and all(spec.size <= LARGEST for spec in specs)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an input with each of its arrays changed."""
    if value is None:
        return None
    return [change(item) for item in value] if isinstance(value, list) else change(value)


@cache
def samples() -> dict[Row, list[Sample]]:
    """Return recorded operations with float32 tensors, by their row."""
    found: dict[Row, list[Sample]] = {}

    class CollectingSession(ArraySession):
        def bind(self, signature: Signature) -> Run:
            run = super().bind(signature)
            known = found.setdefault(signature.row, [])
            if not is_float32(signature) or len(known) >= SAMPLES:
                return run

            def run_noted(*inputs: Any) -> Any:
                if len(known) < SAMPLES and signature not in [one.signature for one in known]:
                    known.append(Sample(signature, tuple(changed(x, np.array) for x in inputs)))
                return run(*inputs)

            return run_noted

    class CollectingBackend(NumpyBackend):
        def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
            opened = super().open_session(custom)
            opened.__class__ = CollectingSession
            return opened

    backend = CollectingBackend()
    for recording in recordings():
        for session in sessions(recording):
            replay(session, backend, compare_usage=False)
    for sample in not_recorded():
        found.setdefault(sample.signature.row, []).append(sample)
    return {row: kept for row, kept in found.items() if kept}


def not_recorded() -> list[Sample]:
    """Return samples of the operations that no recorded program has used on floats."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5)).astype(np.float32)
    logits = rng.standard_normal((4, 2, 3))
    log_probs = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)
    ctc = (
        log_probs, np.array([[1, 2], [2, 1]], np.int32), np.array([4, 3], np.int32),
        np.array([2, 1], np.int32), np.array([0.5, 2], np.float32),
    )  # fmt: skip
    out = TensorSpec((3, 2), I64)
    return [
        Sample(signature("Numeric.ArgTopK", spec_of(x), axis=1, accumulator_len=2, out=out), (x,)),
        Sample(signature("Module.CtcLossBackward", *map(spec_of, ctc), blank=0), ctc),
        *of_burn_0_22(rng),
    ]


def of_burn_0_22(rng: np.random.Generator) -> list[Sample]:
    """Return samples of the rows that Burn 0.22 added; the recorded programs are of Burn 0.21."""

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    found: list[Sample] = []

    def add(name: str, *tensors: Any, **options: Any) -> None:
        specs = [None if tensor is None else spec_of(tensor) for tensor in tensors]
        found.append(Sample(signature(name, *specs, **options), tensors))

    x, y = normal(4, 6), normal(4, 6)
    for name in ("Relu", "Gelu", "Sigmoid", "LogSigmoid"):
        add(f"Activation.{name}", x)
    add("Activation.ReluBackward", np.maximum(x, 0), y)
    add("Activation.GeluBackward", x, y)
    add("Activation.SigmoidBackward", 1 / (1 + np.exp(-x)), y)
    add("Activation.LogSigmoidBackward", x, y)
    add("Activation.LeakyRelu", x, rhs=0.1)
    add("Activation.PRelu", x, normal(1, 6))
    add("Activation.HardSigmoid", x, alpha=0.2, beta=0.5)
    for name in ("Softmax", "LogSoftmax", "Softmin"):
        add(f"Activation.{name}", x, axis=1)
    for name in ("All", "Any"):
        add(f"Base.{name}", x)
        add(f"Base.{name}Dim", np.maximum(x, 0), axis=1, accumulator_len=1)
    add("Base.NotEqual", x, np.where(y > 0, x, y))
    add("Base.NotEqualElem", np.where(y > 0, x, np.float32(0.1)), rhs=0.1)
    add("Float.Hypot", x, y)
    for name in ("Neg", "Sign"):
        add(f"Numeric.{name}", x)
    for name in ("ClampMin", "ClampMax"):
        add(f"Numeric.{name}", x, rhs=0.1)
    add("Numeric.Pad", x, padding=((1, 0), (2, 3)), mode=("Constant", Scalar.of(0.1)))
    add("Numeric.Pad", x, padding=((1, 0), (2, 3)), mode=("Reflect",))
    add("Numeric.SumDims", normal(4, 30, 5), axes=(0, 1))
    order: dict[str, Any] = {"dim": 1, "descending": True}
    add("Numeric.Sort", x, **order)
    add("Numeric.SortWithIndices", x, **order)
    add("Numeric.ArgSort", x, out=TensorSpec(x.shape, I64), **order)
    largest = (TensorSpec((4, 2), F32), TensorSpec((4, 2), I64))
    add("Numeric.TopKWithIndices", x, dim=1, k=2, out=largest)
    add("Module.LayerNorm", x, normal(6), normal(6), epsilon=1e-3)
    add("Module.LayerNorm", x, normal(6), None, epsilon=1e-3)
    add("Module.BatchNorm", x, *(normal(6) for _ in range(3)), np.abs(normal(6)), epsilon=1e-3)
    add(
        "Module.Unfold4d", normal(2, 3, 6, 5), kernel_size=(3, 2), stride=(2, 1), padding=(1, 1),
        dilation=(1, 2),
    )  # fmt: skip
    add("Module.AdaptiveAvgPool3d", normal(2, 3, 5, 4, 7), output_size=(2, 3, 7))
    add("Module.AdaptiveAvgPool3dBackward", normal(2, 3, 5, 4, 7), normal(2, 3, 2, 3, 7))
    for rank in (1, 2, 3):
        sizes, outputs = (3, 4, 5)[:rank], (5, 6, 7)[:rank]
        layer = f"Module.ConvTranspose{rank}d"
        image, grad = normal(2, 4, *sizes), normal(2, 6, *outputs)
        ones, none = (1,) * rank, (0,) * rank
        add(
            f"{layer}WeightBackward", image, normal(4, 3, *(3,) * rank), grad, stride=ones,
            padding=none, padding_out=none, dilation=ones, groups=2,
        )  # fmt: skip
        add(f"{layer}BiasBackward", image, normal(6), grad)
    return found


# Operations whose results are random (tests/client/test_init.py) or undefined.
UNDEFINED = {"Random", "IntRandom", "Empty"}

SESSION = NumpyBackend().open_session()


def in_dtype(sample: Sample, dtype: DType, precision: DType) -> Sample:
    """Return an operation with ``dtype`` for float32 and its numbers rounded to ``precision``."""
    held, rounding = array_dtype(dtype), array_dtype(precision)

    def retyped(argument: Any) -> Any:
        if type(argument) is TensorUse and argument.spec.dtype is F32:
            return TensorUse(TensorSpec(argument.spec.shape, dtype), argument.status)
        if type(argument) is tuple and argument and type(argument[0]) is TensorUse:
            return tuple(map(retyped, argument))
        if type(argument) is Scalar and is_comparison and type(argument.value) is float:
            # A tensor's 0.1 must equal the number 0.1 in each precision.
            return Scalar.of(float(rounding.type(argument.value)))
        return argument

    signed, inputs = sample
    is_comparison = all(spec.dtype.is_bool for spec in signed.outputs)
    changed_signature = Signature(
        signed.kind,
        signed.row,
        dtype if signed.dtype is F32 else signed.dtype,
        tuple(map(retyped, signed.arguments)),
    )

    def converted(array: Any) -> Any:
        with np.errstate(all="ignore"):
            return array.astype(rounding).astype(held) if array.dtype == np.float32 else array

    return Sample(changed_signature, tuple(changed(item, converted) for item in inputs))


def results(sample: Sample) -> list[Any]:
    """Run an operation as a session does."""
    context = contextvars.copy_context()
    context.run(NumpyBackend().prepare_thread)
    made = context.run(SESSION.bind(sample.signature), *sample.inputs)
    arrays = [item for item in (made if type(made) is tuple else (made,)) if item is not None]
    for array, spec in zip(arrays, sample.signature.outputs, strict=True):
        assert (array.shape, array.dtype) == (spec.shape, array_dtype(spec.dtype))
    return arrays


def salted(sample: Sample) -> Sample:
    """Return an operation on the same numbers with NaN and infinities among them."""

    def salt(array: Any) -> Any:
        if array.dtype != np.float32 or array.size < 4:
            return array
        array = array.copy()
        step = array.size // 4
        array.reshape(-1)[[0, step, 2 * step]] = [np.nan, np.inf, -np.inf]
        return array

    return Sample(sample.signature, tuple(changed(item, salt) for item in sample.inputs))


def agree(sample: Sample, dtype: DType) -> None:
    held = array_dtype(dtype)
    eps = float(ml_dtypes.finfo(held).eps)  # type: ignore[no-untyped-call]
    found = results(in_dtype(sample, dtype, dtype))
    expected = results(in_dtype(sample, F64, dtype))
    for low, exact in zip(found, expected, strict=True):
        if low.dtype != held:
            np.testing.assert_array_equal(low, exact)
            continue
        with np.errstate(all="ignore"):
            rounded = exact.astype(held).astype(np.float64)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(low[~finite].astype(np.float64), rounded[~finite])
        if finite.any():
            room = ACCUMULATED * max(1, np.abs(rounded[finite]).max())
            np.testing.assert_allclose(
                low[finite].astype(np.float64), rounded[finite], rtol=eps, atol=room
            )


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_precision_results_are_float64_results_rounded_once(dtype: DType) -> None:
    for row, kept in samples().items():
        for sample in kept if row.name not in UNDEFINED else ():
            try:
                agree(sample, dtype)
                agree(salted(sample), dtype)
            except AssertionError as error:
                pytest.fail(f"{row} of {sample.signature.describe()}: {error}")


def test_flex32_is_computed_as_float32() -> None:
    for row, kept in samples().items():
        for sample in kept if row.name not in UNDEFINED else ():
            for given in (sample, salted(sample)):
                flexible, expected = (results(in_dtype(given, one, F32)) for one in (FLEX32, F32))
                for found, array in zip(flexible, expected, strict=True):
                    np.testing.assert_array_equal(found, array, err_msg=str(row))


def test_every_operation_on_floats_is_covered() -> None:
    without_floats = {"Bool", "Int", "Init", "Drop", "Custom", "Distributed"}
    tried = {row for row in samples() if row.name not in UNDEFINED}
    # test_extension_rows.py tries extension rows.
    burn = {row for row in TABLE.values() if row.lifetime != EXTENSION}
    missing = {row for row in burn - tried if row.family not in without_floats}
    # test_quantization.py tries these.
    quantized = {TABLE["Float", "Quantize"], TABLE["Float", "Dequantize"]}
    assert {row.name for row in missing - quantized} == UNDEFINED
    assert {TABLE["Int", "IntoFloat"], TABLE["Bool", "IntoFloat"]} <= tried
