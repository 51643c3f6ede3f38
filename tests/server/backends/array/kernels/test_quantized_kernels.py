"""Quantized tensors, compared with Burn's definition written as loops over elements."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, F16, F32, I64, DType, QuantScheme
from burn_remote_protocol.errors import ShapeMismatch, Unsupported
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.shared_fields import UPDATES
from burn_remote_protocol.operations.wire_values import decode_tensor_data
from burn_remote_protocol.tensors import Slice, TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from support.kernels import signature
from support.recorded import golden

RANGES = {
    "Q8F": (-128, 127), "Q8S": (-127, 127), "Q4F": (-8, 7), "Q4S": (-7, 7), "Q2F": (-2, 1),
    "Q2S": (-1, 1),
}  # fmt: skip
BITS = {"Q8": 8, "Q4": 4, "Q2": 2}

Blocks = tuple[int, ...] | None


def scheme(value: str, block: Blocks = None, *, packed: bool = False) -> QuantScheme:
    store = ("PackedU32", 0) if packed else "Native"
    return QuantScheme(value, "F32", store, block, "Symmetric")


def computed(made: Signature, *held: object) -> np.ndarray:
    result: np.ndarray = NumpyBackend().open_session().bind(made)(*held)
    return result


def half_away(number: float) -> int:
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def bytes_by_hand(values: list[int], scales: list[float], of: QuantScheme) -> bytes:
    """Write values and scales as burn-std does: lowest bits first, in little-endian words."""
    bits = BITS[of.value[:2]]
    if of.store == "Native" or bits == 8:
        body = struct.pack(f"<{len(values)}b", *values)
    else:
        words = [0] * -(-len(values) * bits // 32)
        for place, value in enumerate(values):
            word, lane = divmod(place, 32 // bits)
            words[word] |= (value & ((1 << bits) - 1)) << (lane * bits)
        body = struct.pack(f"<{len(words)}I", *words)
    return body + struct.pack(f"<{len(scales)}f", *scales)


def scale_index(place: tuple[int, ...], shape: tuple[int, ...], block: Blocks) -> int:
    if block is None:
        return 0
    sizes = (1,) * (len(shape) - len(block)) + block
    counts = [size // step for size, step in zip(shape, sizes, strict=True)]
    index = 0
    for position, step, count in zip(place, sizes, counts, strict=True):
        index = index * count + position // step
    return index


@st.composite
def tensors(draw: st.DrawFn) -> tuple[np.ndarray, QuantScheme, np.ndarray]:
    value = draw(st.sampled_from(sorted(RANGES)))
    rank = draw(st.integers(1, 3))
    block = draw(st.none() | st.lists(st.integers(1, 4), min_size=1, max_size=rank).map(tuple))
    counts = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    sizes = (1,) * rank if block is None else (1,) * (rank - len(block)) + block
    shape = tuple(count * size for count, size in zip(counts, sizes, strict=True))
    numbers = st.floats(-1e4, 1e4, width=32)
    elements = draw(st.lists(numbers, min_size=math.prod(shape), max_size=math.prod(shape)))
    scale_count = 1 if block is None else math.prod(counts)
    scales = draw(
        st.lists(st.floats(2**-10, 2**10, width=32), min_size=scale_count, max_size=scale_count)
    )
    x = np.array(elements, np.float32).reshape(shape)
    return x, scheme(value, block, packed=draw(st.booleans())), np.array(scales, np.float32)


@given(tensors())
def test_values_are_the_nearest_multiples_of_their_scales(
    given_tensor: tuple[np.ndarray, QuantScheme, np.ndarray],
) -> None:
    x, of, scales = given_tensor
    least, most = RANGES[of.value]
    values = []
    for place in itertools.product(*map(range, x.shape)):
        inverse = np.float32(1) / scales[scale_index(place, x.shape, of.level)]
        multiple = float(np.float32(x[place]) * inverse)
        values.append(min(max(half_away(multiple), least), most))
    spec = TensorSpec(x.shape, DType.quantized(of))
    inputs = TensorSpec(x.shape, F32), TensorSpec(scales.shape, F32)
    made = signature("Float.Quantize", *inputs, scheme=of)
    held = computed(made, x, scales)
    assert bytes(held) == bytes_by_hand(values, scales.tolist(), of)
    assert held.size == spec.nbytes

    back = computed(signature("Float.Dequantize", spec, out=TensorSpec(x.shape, F32)), held)
    for flat, place in enumerate(itertools.product(*map(range, x.shape))):
        scale = scales[scale_index(place, x.shape, of.level)]
        assert back[place] == np.float32(values[flat]) * scale


def quantized(values: list[int], scale: float, shape: tuple[int, ...]) -> tuple[TensorSpec, object]:
    of = scheme("Q4S", packed=True)
    data = TensorData(bytes_by_hand(values, [scale], of), shape, DType.quantized(of))
    return data.spec, NumpyBackend().to_device(data)


def test_moving_values_keeps_the_integers_and_the_scale() -> None:
    spec, held = quantized([1, -2, 3, -4, 5, -7], 0.3, (2, 3))
    moved = computed(signature("Base.Permute", spec, axes=(1, 0)), held)
    assert spec.dtype.scheme is not None
    assert bytes(moved) == bytes_by_hand([1, -4, -2, 5, 3, -7], [0.3], spec.dtype.scheme)


def test_joined_tensors_of_two_scales_get_a_new_one() -> None:
    spec, small = quantized([7, 1], 0.1, (2,))
    _, large = quantized([7, -7], 1.0, (2,))
    joined = computed(signature("Base.Cat", (spec, spec), dim=0), [small, large])
    assert spec.dtype.scheme is not None
    # The values 0.7, 0.1, 7 and -7, divided by the new scale of 1.
    assert bytes(joined) == bytes_by_hand([1, 0, 7, -7], [1.0], spec.dtype.scheme)


def test_moving_values_between_blocks_computes_new_scales() -> None:
    of = scheme("Q8S", (2,))
    spec = TensorSpec((4,), DType.quantized(of))
    held = np.frombuffer(bytes_by_hand([127, 1, 127, 2], [1.0, 0.5], of), np.uint8)
    made = signature("Base.Slice", spec, ranges=(Slice(2, 4, 1),))
    assert bytes(computed(made, held)) == bytes_by_hand([127, 2], [0.5], of)


@pytest.mark.parametrize(
    ("number", "value"), [(math.nan, 0), (math.inf, 127), (-math.inf, -127), (0.5, 1), (-0.5, -1)]
)
def test_extreme_numbers_are_quantized_as_in_burn(number: float, value: int) -> None:
    of = scheme("Q8S")
    specs = TensorSpec((1,), F32), TensorSpec((1,), F32)
    made = signature("Float.Quantize", *specs, scheme=of)
    held = computed(made, np.array([number], np.float32), np.array([1], np.float32))
    assert np.frombuffer(held, np.int8)[0] == value


@pytest.mark.parametrize("scale", [0.0, math.nan, math.inf, 1e-42])
def test_a_scale_that_is_not_a_normal_number_becomes_the_smallest_one(scale: float) -> None:
    of = scheme("Q8S")
    specs = TensorSpec((1,), F32), TensorSpec((1,), F32)
    made = signature("Float.Quantize", *specs, scheme=of)
    held = computed(made, np.zeros(1, np.float32), np.array([scale], np.float32))
    assert bytes(held[1:]) == struct.pack("<f", 2.0**-126)


def test_dequantized_numbers_have_the_requested_dtype() -> None:
    spec, held = quantized([7, -7], 0.1, (2,))
    back = computed(signature("Float.Dequantize", spec, out=TensorSpec((2,), F16)), held)
    np.testing.assert_array_equal(back, (np.array([7, -7]) * np.float32(0.1)).astype(np.float16))


def test_uploads_with_a_value_per_byte_are_packed() -> None:
    of = scheme("Q4S", packed=True)
    plain = bytes_by_hand([1, -2, 3], [0.5], scheme("Q4S"))
    held = NumpyBackend().to_device(TensorData(plain, (3,), DType.quantized(of)))
    assert bytes(held) == bytes_by_hand([1, -2, 3], [0.5], of)


def test_bytes_in_neither_form_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="does not have 9 bytes"):
        NumpyBackend().to_device(TensorData(bytes(9), (3,), DType.quantized(scheme("Q4S"))))


def test_values_that_burn_cannot_compute_with_are_stored_but_not_computed() -> None:
    dtype = DType.quantized(scheme("E4M3"))
    held = NumpyBackend().to_device(TensorData(bytes(range(6)), (2,), dtype))
    assert NumpyBackend().to_bytes(held, dtype) == bytes(range(6))
    with pytest.raises(Unsupported, match="E4M3"):
        computed(
            signature("Float.Dequantize", TensorSpec((2,), dtype)),
            held,
        )


def test_burns_own_vectors_are_read_back_unchanged() -> None:
    seen = 0
    for line in golden("TensorData"):
        if "QFloat" not in line.name:
            continue
        data = decode_tensor_data(line.tuples)
        held = NumpyBackend().to_device(data)
        if len(data.bytes) == data.spec.nbytes:
            assert NumpyBackend().to_bytes(held, data.dtype) == data.bytes
            seen += 1
    assert seen >= 4


@given(tensors())
def test_symmetric_values_are_within_half_a_scale(
    given_tensor: tuple[np.ndarray, QuantScheme, np.ndarray],
) -> None:
    x, of, _ = given_tensor
    assume(of.value.endswith("S"))  # of the other ranges one side holds its largest number
    spec, numbers = TensorSpec(x.shape, DType.quantized(of)), TensorSpec(x.shape, F32)
    sizes: dict[int, float] = {}
    for place in itertools.product(*map(range, x.shape)):
        index = scale_index(place, x.shape, of.level)
        sizes[index] = max(sizes.get(index, 0.0), abs(float(x[place])))
    most = RANGES[of.value][1]
    scales = np.array([sizes[index] / most for index in sorted(sizes)], np.float32)
    scaled = TensorSpec(scales.shape, F32)
    held = computed(signature("Float.Quantize", numbers, scaled, scheme=of), x, scales)
    back = computed(signature("Float.Dequantize", spec, out=numbers), held)
    for place in itertools.product(*map(range, x.shape)):
        scale = float(scales[scale_index(place, x.shape, of.level)])
        assert abs(float(back[place]) - float(x[place])) <= max(scale, 2.0**-126) / 2 * (1 + 1e-5)


@given(tensors(), st.data())
def test_new_scales_are_the_largest_magnitude_over_the_largest_value(
    given_tensor: tuple[np.ndarray, QuantScheme, np.ndarray], data: st.DataObject
) -> None:
    x, of, scales = given_tensor
    spec, numbers = TensorSpec(x.shape, DType.quantized(of)), TensorSpec(x.shape, F32)
    quantize = signature("Float.Quantize", numbers, TensorSpec(scales.shape, F32), scheme=of)
    held = computed(quantize, x, scales)
    before = computed(signature("Float.Dequantize", spec, out=numbers), held)
    axis = data.draw(st.integers(0, x.ndim - 1))
    pair = TensorSpec((*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]), spec.dtype)
    joined = computed(signature("Base.Cat", (spec, spec), dim=axis), [held, held])
    least, most = RANGES[of.value]
    both = np.concatenate([before, before], axis)
    sizes: dict[int, np.float32] = {}
    for place in itertools.product(*map(range, both.shape)):
        index = scale_index(place, both.shape, of.level)
        sizes[index] = max(sizes.get(index, np.float32(0)), abs(both[place]))
    found = np.frombuffer(joined, np.uint8)[-4 * len(sizes) :].copy().view(np.float32)
    for index, scale in enumerate(found):
        expected = np.float32(2) * sizes[index] / np.float32(most - least)
        assert scale == (expected if expected >= 2.0**-126 else np.float32(2.0**-126))
    assert joined.size == pair.nbytes


def numbers_of(spec: TensorSpec, held: object) -> np.ndarray:
    return computed(signature("Float.Dequantize", spec, out=spec._replace(dtype=F32)), held)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", ["SelectAssign", "Scatter", "ScatterNd"])
def test_updates_by_index_compute_with_dequantized_numbers(name: str, update: str) -> None:
    spec, held = quantized([1, -2, 3, -4], 0.5, (4,))
    _, values = quantized([7, -1, 2, 5], 0.25, (4,))
    places = np.array([2, 0, 2, 1])
    how: dict[str, Any] = {"dim": 0, "update": update}
    if name == "ScatterNd":
        places, how = places[:, None], {"reduction": update}
    indices, plain = TensorSpec(places.shape, I64), spec._replace(dtype=F32)
    result = computed(signature(f"Base.{name}", spec, indices, spec, **how), held, places, values)
    expected = computed(
        signature(f"Base.{name}", plain, indices, plain, **how),
        numbers_of(spec, held),
        places,
        numbers_of(spec, values),
    )
    half_a_scale = float(np.abs(expected).max()) / 14
    np.testing.assert_allclose(numbers_of(spec, result), expected, rtol=0, atol=half_a_scale)


def test_a_mask_is_filled_with_the_given_number() -> None:
    spec, held = quantized([1, -2, 3, -4], 0.5, (4,))
    made = signature("Base.MaskFill", spec, TensorSpec((4,), BOOL), value=14.0)
    filled = computed(made, held, np.array([True, False, False, True]))
    np.testing.assert_array_equal(numbers_of(spec, filled), [14, -2, 2, 14])  # the scale is 2


@pytest.mark.parametrize(("name", "number"), [("Base.Zeros", 0), ("Base.Ones", 1)])
def test_an_operation_without_inputs_may_have_a_quantized_result(name: str, number: int) -> None:
    spec = TensorSpec((2, 4), DType.quantized(scheme("Q4S", (4,), packed=True)))
    held = computed(signature(name, out=spec))
    back = computed(signature("Float.Dequantize", spec, out=TensorSpec((2, 4), F32)), held)
    np.testing.assert_allclose(back, np.full((2, 4), number), rtol=1e-6)


@given(st.data())
def test_bytes_of_any_scheme_are_read_back_unchanged(data: st.DataObject) -> None:
    block = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    stores: list[str | tuple[str, int]] = [
        "Native", ("PackedU32", 0), ("PackedU32", 1), ("PackedNative", 0)
    ]  # fmt: skip
    of = QuantScheme(
        data.draw(st.sampled_from(QuantScheme.VALUES)),
        data.draw(st.sampled_from(QuantScheme.PARAMS)),
        data.draw(st.sampled_from(stores)),
        data.draw(st.none() | block),
        "Symmetric",
    )
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    spec = TensorSpec(shape, DType.quantized(of))
    content = data.draw(st.binary(min_size=spec.nbytes, max_size=spec.nbytes))
    backend = NumpyBackend()
    held = backend.to_device(TensorData(content, shape, spec.dtype))
    assert bytes(backend.to_bytes(held, spec.dtype)) == content
    upload = backend.empty(spec)
    backend.write(upload, 0, content)
    assert bytes(backend.to_bytes(backend.finished(upload, spec.dtype), spec.dtype)) == content
