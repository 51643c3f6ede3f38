"""Invalid shapes, dtypes and options are refused in the caller's line; nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from support.runners import RecordingDevice

DEVICE = RecordingDevice()


def f(*shape: int) -> br.Tensor:
    return br.ones(shape, device=DEVICE)


def i(*shape: int) -> br.Tensor:
    return br.ones(shape, dtype=br.int64, device=DEVICE)


SHAPES: dict[str, Callable[[], object]] = {
    r"float32\[2, 3\] cannot be reshaped to \[4, -1\]: .* gives 6 elements": lambda: f(
        2, 3
    ).reshape(4, -1),
    r"cannot be reshaped to \[-1, -1\]: only one size may be -1": lambda: f(2, 3).reshape(-1, -1),
    r"cannot be reshaped to \[0, -1\]: .* could be any": lambda: f(2, 0).reshape(0, -1),
    "shape of the data: rank of a tensor: seen 33, allowed 32": lambda: br.tensor(
        np.ones((1,) * 33), device=DEVICE
    ),
    "rank of a tensor: seen 34": lambda: f(3)[np.zeros((1,) * 34, np.int64)],
    "rank of a tensor: seen 35": lambda: f(3).take(np.zeros((1,) * 35, np.int64), axis=0),
    "rank of a tensor: seen 36": lambda: br.quantized_tensor(
        np.ones((1,) * 36, np.int8), 1.0, br.quant_scheme(), device=DEVICE
    ),
    "elements of a tensor: seen": lambda: br.tensor(np.ones((0, 2**60), np.int8), device=DEVICE),
    r"axis=1 of float32\[2, 0\] is empty": lambda: f(2, 0).max(axis=1),
    r"axis=0 of float32\[0, 2\] is empty": lambda: f(0, 2).min(),
    r"axis=1 of float32\[3, 0\] is empty": lambda: br.max_abs(f(3, 0), axis=(0, 1)),
    r"axis=0 of float32\[0, 3\] is empty": lambda: F.softmax(f(0, 3), 0),
    "elements of a tensor: seen <1,329-bit integer>, allowed": lambda: f(10**400),
    "index <1,329-bit integer> is out of range": lambda: f(2)[10**400],
    "axis <1,329-bit integer> is out of range": lambda: f(2).sum(axis=10**400),
    "6 elements": lambda: f(2, 3).reshape(5),
    "axis 2 is out of range for 2 axes": lambda: f(2, 3).sum(axis=2),
    r"input float32\[2, 3\] must have size 5.*weight is float32\[4, 5\]": lambda: F.linear(
        f(2, 3), f(4, 5)
    ),
    "axis -3": lambda: f(2, 3).flip(axis=-3),
    r"axes \[0, -2\] of a tensor with 2 axes name an axis twice": lambda: f(2, 3).sum(axis=(0, -2)),
    r"does not have size 1 along axis 0": lambda: f(2, 3).squeeze(0),
    r"name each axis": lambda: f(2, 3).permute_dims((0,)),
    "not a matrix, so it has no transpose; write x": lambda: f(2).mT,
    "not a matrix, so it has no transpose; use it as it is": lambda: f().T,
    "T is for matrices, and .* has 3 axes; x.mT swaps": lambda: f(2, 3, 4).T,
    "2 source axes do not match 1 destinations": lambda: f(2, 3).moveaxis((0, 1), 0),
    r"does not expand to shape \[2, 4\]": lambda: f(2, 3).broadcast_to((2, 4)),
    r"\[4, 3\], \[2\] do not broadcast: axis -1 has 3 and 2": lambda: f(4, 3) + f(2),
    "do not broadcast": lambda: br.broadcast_arrays(f(2), f(3)),
    "at least one tensor": lambda: br.concat([]),
    r"tensor 1 is float32\[2, 4\]": lambda: br.concat([f(2, 3), f(2, 4)]),
    "tensors to be stacked must have equal shapes": lambda: br.stack([f(2), f(3)]),
    "cannot be split into 2 equal parts": lambda: f(3).split(2),
    "2 counts do not match size 3": lambda: f(3).repeat([1, 2]),
    "2 shifts do not match 1 axes": lambda: f(3).roll((1, 2), 0),
    "require one axis for each": lambda: f(3).roll((1, 2)),
    "axis 1 is out of range for 1 axis": lambda: f(3).sum(axis=1),
    r"float32\[3\] is not a matrix; at least": lambda: br.tril(f(3)),
    "axis is required for": lambda: f(2, 3).take(i(2)),
    "must have as many axes": lambda: f(2, 3).take_along_axis(i(2)),
    "outer takes two vectors": lambda: br.outer(f(2, 2), f(2)),
    r"axes \[0\] of .* differ": lambda: br.tensordot(f(2, 3), f(4), axes=([0], [0])),
    "must have 3 elements": lambda: br.cross(f(2), f(2)),
    r"dim=0 of float32\[3\] has fewer elements than k=5": lambda: f(3).topk(5),
    "must hold a pair of integers for each of at most 1 axes": lambda: F.pad(f(3), (1, 2, 3)),
    "too small to crop": lambda: F.pad(f(3), (-2, -2)),
    "too small to pad": lambda: F.pad(f(3), (3, 0), mode="reflect"),
    "must have 1 or 2 sizes, one for each spatial axis": lambda: F.conv2d(
        f(1, 1, 5, 5), f(1, 1, 3, 3), stride=(1, 2, 3)
    ),
    "must have 4 axes": lambda: F.deform_conv2d(f(1, 3, 5), f(1, 18, 3, 3), f(4, 3, 3, 3)),
    r"x float32\[1, 3, 5\] has 3 channels \(axis 1\), but weight .* takes 4\b": lambda: F.conv1d(
        f(1, 3, 5), f(2, 4, 3)
    ),
    r"has 3 channels \(axis 1\), but weight .* in 2 groups takes 8": lambda: F.conv1d(
        f(1, 3, 5), f(2, 4, 3), groups=2
    ),
    r"has 3 channels \(axis 1\), but weight .* takes 2\b": lambda: F.conv_transpose1d(
        f(1, 3, 5), f(2, 4, 3)
    ),
    r"2 channels, axis 0 of weight .* cannot be divided into 4": lambda: F.conv_transpose1d(
        f(1, 2, 5), f(2, 4, 3), groups=4
    ),
    "must be images": lambda: F.interpolate(f(2, 3), size=4),
    "must have 2 numbers, one for each spatial axis": lambda: F.interpolate(
        f(1, 2, 3, 4), scale_factor=[2]
    ),
    r"must be a matrix \[out, in\]": lambda: F.linear(f(2), f(2)),
    r"the last axes of .* do not have shape \[4\]": lambda: F.layer_norm(f(2, 3), (4,)),
    "no channels that form 2 equal groups": lambda: F.group_norm(f(2, 3), 2),
    "a variance only with several elements of each channel": lambda: F.running_statistics(
        f(1, 3), f(3), f(3)
    ),
    "no channels; at least": lambda: F.batch_norm(f(2), None, None),
    r"weight float32\[1\] must have shape \[3\]": lambda: F.layer_norm(f(2, 3), (3,), f(1)),
    r"bias float32\[1\] must": lambda: F.group_norm(f(2, 4), 2, f(4), f(1)),
    r"running_var float32\[1\] must": lambda: F.batch_norm(f(2, 3), f(3), f(1)),
    r"weight float32\[2\] must": lambda: F.rms_norm(f(2, 3), (3,), f(2)),
    "must have 1 or 3 elements": lambda: F.prelu(f(2, 3, 4), f(2)),
    r"weight float32\[4\] must have shape \[3\]": lambda: F.cross_entropy(f(2, 3), i(2), f(4)),
    "does not fit an axis of 2 with padding 0": lambda: F.conv2d(f(1, 1, 2, 2), f(1, 1, 3, 3)),
    "a kernel of 5": lambda: F.max_pool2d(f(1, 1, 2, 2), 5),
    "3 channels, .* cannot be divided into 2 groups": lambda: F.conv2d(
        f(1, 4, 5, 5), f(3, 2, 3, 3), groups=2
    ),
    "0 groups": lambda: F.conv1d(f(1, 4, 5), f(4, 4, 3), groups=0),
    "stride -1": lambda: F.conv1d(f(1, 1, 5), f(1, 1, 3), stride=-1),
    "stride -2": lambda: F.conv_transpose1d(f(1, 1, 5), f(1, 1, 3), stride=-2),
    "dilation 0": lambda: F.max_pool1d(f(1, 1, 5), 2, dilation=0),
    "padding 9 removes 18 elements": lambda: F.conv_transpose1d(f(1, 1, 2), f(1, 1, 3), padding=9),
    r"\[1, 1, 4, 4\], \[1, 1, 4, 5\] do not broadcast": lambda: F.scaled_dot_product_attention(
        f(1, 1, 4, 2), f(1, 1, 5, 2), f(1, 1, 5, 2), f(4, 4) > 0
    ),
    r"mask is bool\[1, 1, 1, 4, 5\]": lambda: F.scaled_dot_product_attention(
        f(1, 1, 4, 2), f(1, 1, 5, 2), f(1, 1, 5, 2), f(1, 1, 1, 4, 5) > 0
    ),
    r"\[2, 3\], \[3, 2\] do not broadcast": lambda: f(2, 3).mask_fill(f(3, 2) > 0, 0),
    "blank=5 is not one of the 3 classes": lambda: F.ctc_loss(
        f(4, 2, 3), i(2, 2), [4, 4], [2, 2], blank=5
    ),
    r"output_size must be at least 1 on each axis, not \[-1, -1\]": lambda: F.adaptive_avg_pool2d(
        f(1, 1, 4, 4), -1
    ),
    "Interpolate.*non-negative integer, not -1": lambda: F.interpolate(f(1, 1, 4, 4), size=-1),
    "1 to 3 spatial axes": lambda: G.conv_x_backward(f(2, 3), f(2, 3), f(2, 3)),
}


@pytest.mark.parametrize("text", SHAPES)
def test_invalid_shapes_are_refused(text: str) -> None:
    before = len(DEVICE.runner.reads)
    with pytest.raises(br.ShapeMismatch, match=text):
        SHAPES[text]()
    assert len(DEVICE.runner.reads) == before


DTYPES: dict[str, Callable[[], object]] = {
    "<1,329-bit integer> does not fit in 64 bits": lambda: br.tensor([10**400], device=DEVICE),
    "<1,329-bit integer> does not fit in int64": lambda: br.full((2,), 10**400, device=DEVICE),
    "<1,329-bit integer> does not fit in uint8": lambda: f(2).astype(br.uint8) < 10**400,
    "<1,329-bit integer> is too large for float32": lambda: f(2) * 10**400,
    "<16,610-bit integer> is too large for float32": lambda: f(2) * 10**5000,
}


@pytest.mark.parametrize("text", DTYPES)
def test_huge_integers_are_abbreviated_in_messages(text: str) -> None:
    with pytest.raises(br.DTypeMismatch, match=text):
        DTYPES[text]()


USES: dict[str, Callable[[], object]] = {
    "at most 4,000 inputs and outputs are allowed, not 4,001": lambda: br.custom(
        "a", *[f(2)] * 4000, outputs=br.TensorSpec((2,), br.float32)
    ),
    "stop is too large for a float: <1,329-bit integer>": lambda: br.linspace(
        0, 10**400, 3, device=DEVICE
    ),
    "update must be one of .*, not 'divide'": lambda: f(2).scatter(0, i(1), f(1), update="divide"),  # type: ignore[arg-type]
    "'cpu' names no device of burn_remote; write 'local'": lambda: f(2).to("cpu"),
    "'cuda:0' names .*; write 'ws://host:3000', for a server": lambda: f(2).to("cuda:0"),
    r"burn_remote\.float16; x\.astype": lambda: f(2).to(br.float16),  # type: ignore[arg-type]
    r"a scheme is made by quant_scheme\(…\), not 'Q8S'": lambda: br.quantize(f(2), "Q8S"),  # type: ignore[arg-type]
    "must be a RemoteDevice, a LocalDevice, or a name .*, not 3": lambda: br.zeros(2, device=3),  # type: ignore[arg-type]
    "an address is text such as ws://127.0.0.1:3000, not 3000": lambda: br.RemoteDevice(3000),  # type: ignore[arg-type]
    r"Conv2d\(.*\): padding: .*saw .*-1": lambda: F.conv2d(
        f(1, 1, 5, 5), f(1, 1, 3, 3), padding=-1
    ),
    r"ConvTranspose1d\(.*\): padding_out: .* saw .*-2": lambda: F.conv_transpose1d(
        f(1, 1, 5), f(1, 1, 3), output_padding=-2
    ),
    r"groups: .* saw 1\.0": lambda: F.conv1d(f(1, 1, 5), f(2, 1, 3), groups=1.0),  # type: ignore[arg-type]
    "1.5 is neither an integer": lambda: F.conv1d(f(1, 1, 5), f(1, 1, 3), stride=1.5),  # type: ignore[arg-type]
    "'a' is neither an integer": lambda: F.max_pool1d(f(1, 1, 5), "a"),  # type: ignore[arg-type]
    r"Unfold\(float32\[4\]\): step: .* saw -1": lambda: f(4).unfold(0, 2, -1),
    r"CtcLoss\(.*\): blank: .* saw -1": lambda: F.ctc_loss(
        f(4, 2, 3), i(2, 2), [4, 4], [2, 2], blank=-1
    ),
    "scale_factor must be positive and finite, not nan": lambda: F.interpolate(
        f(1, 1, 4, 4), scale_factor=float("nan")
    ),
    "scale_factor must be positive and finite, not -1": lambda: F.interpolate(
        f(1, 1, 4, 4), scale_factor=-1
    ),
    "softcap must be positive or None, not 0": lambda: F.scaled_dot_product_attention(
        f(1, 1, 4, 2), f(1, 1, 5, 2), f(1, 1, 5, 2), softcap=0
    ),
    "p must be positive, not 0": lambda: F.normalize(f(2, 3), p=0),
    r"x must have an integer dtype, not float32\[2\]": lambda: F.one_hot(f(2), 3),
    "p must be from 0 to 1, not 1.5": lambda: F.dropout(f(2), 1.5),
    "mode must be one of constant, .*, not 'wrap'": lambda: F.pad(f(3), (1, 1), mode="wrap"),
    "mode must be one of .*, not 'area'": lambda: G.interpolate_backward(
        f(1, 1, 2, 2), f(1, 1, 4, 4), 4, mode="area"
    ),
    "mode must be one of .*, not 'cubic'": lambda: F.interpolate(
        f(1, 1, 2, 2), size=4, mode="cubic"
    ),
    "mode must be one of .*, not 'linear3'": lambda: F.grid_sample(
        f(1, 1, 2, 2), f(1, 2, 2, 2), mode="linear3"
    ),
    "padding_mode must be one of .*, not 'wrap'": lambda: F.grid_sample(
        f(1, 1, 2, 2), f(1, 2, 2, 2), padding_mode="wrap"
    ),
}


@pytest.mark.parametrize("text", USES)
def test_invalid_options_are_refused(text: str) -> None:
    with pytest.raises(br.UsageError, match=text):
        USES[text]()


def test_invalid_dtypes_are_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match="mask is float32"):
        br.where(f(2), f(2), f(2))
    with pytest.raises(br.DTypeMismatch, match="not an index"):
        f(2).take(f(2), axis=0)
    with pytest.raises(br.DTypeMismatch, match="float"):
        F.embedding(i(2, 2), i(3, 4))
    with pytest.raises(br.DTypeMismatch, match="cannot hold"):
        f(2).astype("datetime64[s]")


def test_calls_without_effect_send_nothing() -> None:
    x = f(2, 3)
    before = len(DEVICE.runner.operations)
    unchanged = [
        x.reshape(2, 3), x.squeeze(), x.permute_dims((0, 1)), x.broadcast_to((2, 3)), x.clip(),
        x.roll(0, 0), x.tile(1), x.sum(axis=()), x.astype(br.float32), +x, F.pad(x, ()),
        F.dropout(x, 0.5, training=False),
    ]  # fmt: skip
    assert all(y.handle is x.handle for y in unchanged)
    assert len(DEVICE.runner.operations) == before


def test_bounds_may_be_tensors() -> None:
    x = f(2, 3)
    assert x.clip(f(3), f(2, 1)).shape == (2, 3)
    assert br.maximum(1, x).shape == br.minimum(1, x).shape == (2, 3)


def test_numpy_scalars_are_numbers() -> None:
    assert (f(2) * np.float32(2)).dtype is br.float32
    assert (i(2) + np.int32(2)).dtype is br.int64
    assert br.where(f(2) > 0, np.float32(1), np.float32(0)).dtype is br.float32


def test_running_statistics_that_would_have_to_be_updated_are_refused() -> None:
    for mean in (f(3), None):
        with pytest.raises(br.UsageError, match=r"functional\.running_statistics"):
            F.batch_norm(f(2, 3), mean, f(3), training=True)
    with pytest.raises(br.UsageError, match="pass None for both"):
        F.instance_norm(f(2, 3, 4), f(3), f(3))


@pytest.mark.parametrize(("shift", "axis"), [(1.5, None), (1.5, 0), ([1.5], 0), ((1, "a"), (0, 1))])
def test_shifts_that_are_no_integers_are_refused(shift: Any, axis: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="a shift must be an integer, not "):
        f(2, 3).roll(shift, axis)


OTHER_TYPES: dict[str, Callable[[], object]] = {
    "expected a tensor or a number, not NoneType$": lambda: br.maximum(f(2), cast(Any, None)),
    "number, not NoneType$": lambda: br.minimum(cast(Any, None), f(2)),
    "n must be an integer, not 1.5": lambda: br.linalg.matrix_power(f(2, 2), cast(Any, 1.5)),
    "correction must be a number, not 'a'": lambda: f(2).std(correction=cast(Any, "a")),
    r"betas must be a pair of numbers, not \(0.9,\)": lambda: br.optim.Adam(
        [f(2).requires_grad_()], betas=cast(Any, (0.9,))
    ),
    r"eps must be a number, not \(1e-08,\)": lambda: br.optim.Adam(
        [f(2).requires_grad_()], eps=cast(Any, (1e-8,))
    ),
    "custom_vjp takes a function, not int$": lambda: br.custom_vjp(cast(Any, 3), lambda x: x),
    "custom_vjp takes a function, not .*Tensor$": lambda: br.custom_vjp(cast(Any, len), len)(
        cast(Any, f(2))
    ),
}


@pytest.mark.parametrize("text", OTHER_TYPES)
def test_arguments_of_other_types_are_refused(text: str) -> None:
    with pytest.raises(br.ArgumentMismatch, match=text):
        OTHER_TYPES[text]()
