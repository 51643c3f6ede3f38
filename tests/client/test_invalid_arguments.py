"""Invalid arguments are refused with the value, the expectation and advice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote
from burn_remote import functional
from support.runners import RecordingDevice

# Typed as Any, because a type checker rejects these calls.
br: Final[Any] = burn_remote
F: Final[Any] = functional
DEVICE: Final[Any] = RecordingDevice()


def f(*shape: int) -> Any:
    return br.ones(shape, device=DEVICE)


def i(*shape: int) -> Any:
    return br.ones(shape, dtype=br.int64, device=DEVICE)


def refused(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


NOT_INTEGERS: dict[str, Callable[[], object]] = {
    "a seed must be an integer, not 'a'": lambda: DEVICE.seed("a"),
    "a seed must be an integer, not 1.5": lambda: DEVICE.seed(1.5),
    "an axis must be an integer, not 'a'": lambda: f(2).sum(axis="a"),
    "an axis must be an integer, not 0.5": lambda: f(2).sum(axis=0.5),
    r"a tuple of integers, not \(2.5,\)": lambda: br.zeros((2.5,), device=DEVICE),
    "a tuple of integers, not True": lambda: br.ones(True, device=DEVICE),
    r"a tuple of integers, not \(2, False\)": lambda: f(2).reshape((2, False)),
    "rows must be an integer, not True": lambda: br.eye(True, device=DEVICE),
    "a tuple of integers, not 'ab'": lambda: br.zeros("ab", device=DEVICE),
    r"a tuple of integers, not \(2, '3'\)": lambda: f(6).reshape(2, "3"),
    "k must be an integer, not 'a'": lambda: f(2).topk("a"),
    "rows must be an integer, not 2.5": lambda: br.eye(2.5, device=DEVICE),
    r"rows must be an integer, not \(3, 3\)": lambda: br.eye((3, 3), device=DEVICE),
    "low must be an integer, not 0.5": lambda: br.random.integers(0.5, 3, 2, device=DEVICE),
    "count must be an integer, not 'a'": lambda: br.random.permutation("a", device=DEVICE),
    "num_classes must be an integer, not 2.0": lambda: F.one_hot(i(2), 2.0),
    "each number in pad must be an integer, not 1.5": lambda: br.pad(f(2), (1.5, 1)),
    r"pad must be one list of integers, .*, not 1": lambda: br.pad(f(2), 1),
    "each size in block=1.5 must be an integer": lambda: br.quant_scheme(block=1.5),
    "each size in block='a' must be an integer": lambda: br.quant_scheme(block="a"),
}


@pytest.mark.parametrize("text", NOT_INTEGERS)
def test_an_argument_that_is_not_an_integer_is_shown(text: str) -> None:
    refused(NOT_INTEGERS[text], br.ArgumentMismatch, text)


NOT_NUMBERS: dict[str, Callable[[], object]] = {
    r"std must be a number, not \(2, 3\)": lambda: br.random.normal(1, std=(2, 3), device=DEVICE),
    r"high must be a number, not \(2, 3\)": lambda: br.random.uniform(
        1, high=(2, 3), device=DEVICE
    ),
    "mean must be a number, not '1'": lambda: br.random.normal(2, mean="1", device=DEVICE),
    "p must be a number, not 'a'": lambda: F.dropout(f(2), "a"),
    r"p, which follows the shape, must be a number": lambda: br.random.bernoulli(
        2, [1], device=DEVICE
    ),
    "start must be a number, not 'a'": lambda: br.linspace("a", 1, 3, device=DEVICE),
    "a bound or step must be a number, not 'a'": lambda: br.arange("a", device=DEVICE),
}


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_an_argument_that_is_not_a_number_is_shown(text: str) -> None:
    refused(NOT_NUMBERS[text], br.ArgumentMismatch, text)


def test_indices_of_take_may_be_a_list_or_an_integer() -> None:
    assert f(2, 3).take([0, 0], axis=0).shape == (2, 3)
    assert f(2, 3).take(1, axis=0).shape == (3,)
    assert f(2, 3).take([], axis=0).shape == (0, 3)
    refused(lambda: f(2).take([0.5]), br.DTypeMismatch, "not an index; convert it to integers")


def test_indices_of_take_may_be_negative_and_are_checked_without_a_read() -> None:
    with br.LocalDevice() as device:
        x = device.tensor([10, 20, 30])
        assert x.take([-1, 0]).tolist() == [30, 10]
        assert x.take(-1).item() == 30
    refused(lambda: f(2).take([2]), IndexError, "index 2 is out of range for an axis of size 2")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_indices_of_a_small_dtype_index_a_large_axis(dtype: type) -> None:
    with br.LocalDevice() as device:
        x = br.arange(1000, device=device)
        places: Any = np.array([1, 2], dtype)
        assert x[places].tolist() == x.take(places).tolist() == [1, 2]
        assert x[np.array([-1, 2], np.int8)].tolist() == [999, 2]


def test_integers_and_bools_are_finite() -> None:
    with br.LocalDevice() as device:
        for x in (device.tensor([1, 2]), device.tensor([True, False])):
            assert x.isnan().tolist() == x.isinf().tolist() == [False, False]
            assert x.isfinite().tolist() == [True, True]
    quantized = br.quantize(f(4))
    refused(quantized.isnan, br.DTypeMismatch, r"dequantize it first with x\.dequantize\(\)")


def test_masked_arrays_and_schemes_as_dtypes_are_refused() -> None:
    masked = np.ma.masked_array([1, 2], [False, True])
    refused(
        lambda: br.tensor(masked, device=DEVICE), br.DTypeMismatch, r"use array\.filled\(number\)"
    )
    refused(lambda: f(2).astype(br.quant_scheme()), br.DTypeMismatch, r"quantize\(x, scheme\)")


OUT_OF_RANGE: dict[str, Callable[[], object]] = {
    "a seed must be from 0 to 18,446,744,073,709,551,615, not -1": lambda: DEVICE.seed(-1),
    "from 1 to 255, not 0": lambda: br.quant_scheme(block=0),
    "from 1 to 255, not 256": lambda: br.quant_scheme(block=(4, 256)),
    r"block must have 1 to 5 sizes, not \(\)": lambda: br.quant_scheme(block=()),
    "num_classes must be from 1 to": lambda: F.one_hot(i(2), 0),
    "low=3 is greater than high=1": lambda: br.random.uniform(2, low=3, device=DEVICE),
    "low=0 and high=inf are no bounds for float32": lambda: br.random.uniform(
        2, high=math.inf, device=DEVICE
    ),
    "low=nan and high=1 are no bounds for float32": lambda: br.random.uniform(
        2, low=math.nan, device=DEVICE
    ),
    "high=100000 are no bounds for float16, .* from -65504 to 65504": lambda: br.random.uniform(
        2, high=1e5, dtype="float16", device=DEVICE
    ),
    "they and their distance must be finite": lambda: br.random.uniform(
        2, low=-1.7e308, high=1.7e308, dtype="float64", device=DEVICE
    ),
    "high=300 are no bounds for uint8": lambda: br.random.uniform(
        2, high=300, dtype="uint8", device=DEVICE
    ),
    "std must not be negative, but is -1": lambda: br.random.normal(2, std=-1, device=DEVICE),
    "299 does not fit in uint8": lambda: br.random.integers(
        0, 300, 2, dtype="uint8", device=DEVICE
    ),
    "value must be one of Q8F, .*, not 3": lambda: br.quant_scheme(3),
    r"value must be one of Q8F, .*, not \['Q8S'\]": lambda: br.quant_scheme(["Q8S"]),
}


@pytest.mark.parametrize("text", OUT_OF_RANGE)
def test_a_value_out_of_range_is_shown_with_the_range(text: str) -> None:
    refused(OUT_OF_RANGE[text], br.UsageError, text)


def test_numpy_integers_are_accepted() -> None:
    assert br.quant_scheme(block=np.int64(4)).level == (4,)
    assert br.quant_scheme(block=[np.int64(4), 2]).level == (4, 2)
    assert f(6).reshape(np.int64(2), 3).shape == (2, 3)


def test_a_local_device_works_after_an_invalid_seed() -> None:
    with br.LocalDevice() as device:
        refused(lambda: device.seed(1.5), br.ArgumentMismatch, "not 1.5")
        assert br.ones(2, device=device).tolist() == [1, 1]


INVALID_OUTPUTS: dict[str, Callable[[], object]] = {
    "outputs must be a TensorSpec.* or a list of them, not 3": lambda: br.custom(
        "a", f(2), outputs=3
    ),
    r"outputs must be a TensorSpec.*, not \(\(2,\), ": lambda: br.custom(
        "a", f(2), outputs=((2,), br.float32)
    ),
    "the name of an operation must be a str, not 3": lambda: br.custom(
        3, f(2), outputs=br.TensorSpec((2,), br.float32)
    ),
}


@pytest.mark.parametrize("text", INVALID_OUTPUTS)
def test_an_invalid_declaration_of_outputs_is_shown(text: str) -> None:
    refused(INVALID_OUTPUTS[text], br.ArgumentMismatch, text)


def test_outputs_accept_every_form_of_a_dtype() -> None:
    for dtype in ("float32", np.float32, br.float32):
        assert br.custom("a", f(2), outputs=br.TensorSpec(3, dtype)).dtype is br.float32
    refused(
        lambda: br.custom("a", f(2), outputs=br.TensorSpec(3, "text")), br.DTypeMismatch, "'text'"
    )
    assert br.custom("a", f(2), outputs=br.TensorSpec(3, "float32")).shape == (3,)


def test_none_is_not_a_dtype() -> None:
    refused(lambda: f(2).astype(None), br.DTypeMismatch, "cannot hold None")


INVALID_LABELS: Final = [
    (
        F.cross_entropy,
        f(2, 3),
        f(2),
        r"float32\[2\] must be integers.* probabilities of shape \[2, 3\]",
    ),
    (F.cross_entropy, f(2, 3), f(2, 1), r"float32\[2, 1\] must be integers"),
    (F.cross_entropy, f(2, 3), f(2) > 0, r"bool\[2\] must be integers"),
    (F.nll_loss, f(3), f(), r"float32\[\] must be integers"),
    (F.nll_loss, f(2, 3), f(2), r"such as target\.astype\(burn_remote\.int64\)"),
]


@pytest.mark.parametrize("loss, x, target, text", INVALID_LABELS)
def test_invalid_labels_are_refused_before_anything_is_sent(
    loss: Callable[..., object], x: Any, target: Any, text: str
) -> None:
    before = len(DEVICE.runner.operations)
    refused(lambda: loss(x, target), br.DTypeMismatch, text)
    assert len(DEVICE.runner.operations) == before


def test_arguments_of_quantized_tensor_are_checked() -> None:
    scheme = br.quant_scheme()
    refused(lambda: br.quantized_tensor([1], 1.0, "Q8S"), br.UsageError, "not 'Q8S'")
    ragged = [[1], [1, 2]]
    refused(lambda: br.quantized_tensor(ragged, 1.0, scheme), br.DTypeMismatch, "rows with diff")
    refused(lambda: br.quantized_tensor([1], "a", scheme), br.DTypeMismatch, "cannot hold")


def test_the_shape_of_a_norm_may_be_an_integer() -> None:
    assert F.layer_norm(f(2, 3), 3).shape == (2, 3)


LONG: Final[Any] = "x" * 500
LONG_VALUES: dict[str, Callable[[], object]] = {
    "grad": lambda: br.grad(LONG),
    "argnums": lambda: br.grad(lambda x: x, argnums=LONG)(f(2)),
    "result": lambda: br.grad(lambda x: LONG)(f(2)),
    "pad": lambda: br.pad(f(2, 2), LONG),
    "step": lambda: br.optim.SGD([f(2).requires_grad_()]).step(LONG),
    "lr": lambda: br.optim.SGD(lr=LONG),
    "scheduler": lambda: br.optim.lr_scheduler.StepLR(LONG, 3),
    "local device": lambda: br.LocalDevice(custom_operations=LONG),
    "group": lambda: br.distributed.Group(LONG),
}


@pytest.mark.parametrize("name", LONG_VALUES)
def test_a_message_shows_where_it_leaves_out_a_part_of_a_value(name: str) -> None:
    with pytest.raises(br.BurnRemoteError, match=r"x\.\.\.x") as caught:
        LONG_VALUES[name]()
    assert len(str(caught.value)) < 500
