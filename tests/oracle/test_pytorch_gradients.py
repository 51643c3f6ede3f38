"""Gradients of public functions are those of PyTorch in float64, in first and second order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
T = torch.nn.functional
pytestmark = [
    pytest.mark.oracle,
    # PyTorch warns that it will change the mean of kl_div.
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides"),
]

Array = np.ndarray[Any, Any]
_random = np.random.default_rng(3)

FIRST_BOUND, SECOND_BOUND = 1e-8, 1e-7


class Case(NamedTuple):
    """The same function of ours and of PyTorch, and the inputs to be differentiated."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[Array, ...]
    compares_second: bool


CASES: Final[list[Case]] = []


def normal(*shape: int) -> Array:
    return _random.normal(size=shape)


def both(name: str, ours: Any, theirs: Any, *inputs: Any, second: bool = True) -> None:
    arrays = tuple([np.asarray(array, np.float64) for array in inputs])
    CASES.append(Case(name, ours, theirs, arrays, second))


def named(name: str, *inputs: Any, edge: str = "", second: bool = True, **options: Any) -> None:
    """Add a case of a function that has one name and the same options in both libraries."""
    ours, theirs = getattr(F, name), getattr(T, name)
    both(
        f"{name}{'@' if edge else ''}{edge}",
        lambda *x: ours(*x, **options),
        lambda *x: theirs(*x, **options),
        *inputs,
        second=second,
    )


def like(x: br.Tensor, array: Any) -> br.Tensor:
    return br.tensor(np.asarray(array), device=x.device)


EDGES: Final = [[0.0, 50.0, -50.0, 1.0, -1.0, 800.0, -800.0, 3.0, -3.0, 6.0]]
for _name in (
    *("relu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "softsign"),
    *("softshrink", "hardshrink", "tanhshrink", "hardtanh", "hardswish", "hardsigmoid"),
    *("leaky_relu", "logsigmoid", "sigmoid", "tanh"),
):
    # PyTorch has no second derivative of hardswish and hardsigmoid.
    _has_second = _name not in ("hardswish", "hardsigmoid")
    named(_name, normal(4, 6) * 2, second=_has_second)
    named(_name, EDGES, edge="edges", second=False)
for _name in ("softmax", "log_softmax", "softmin"):
    named(_name, normal(4, 6), dim=-1)
    named(_name, normal(4, 2, 3), dim=1, edge="middle axis")
    named(_name, EDGES, dim=-1, edge="edges", second=False)
    named(_name, np.zeros((2, 3)), dim=0, edge="ties")
    named(_name, np.zeros((0, 3)), dim=-1, edge="empty", second=False)
    named(_name, normal(3, 1), dim=-1, edge="one class")
named("glu", normal(4, 6), dim=-1)
named("gelu", normal(4, 6), approximate="tanh", edge="tanh")
named("gelu", EDGES, approximate="tanh", edge="tanh edges", second=False)
named("threshold", [[-1.0, 0.5, 0.3, 2.0]], threshold=0.3, value=-7.0)
named("prelu", normal(2, 3, 4), normal(3))
# The second derivative at the kink is that of the other side in PyTorch.
named("prelu", [[0.0, -1.0, 2.0]], [0.3], edge="zero", second=False)
for _name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"):
    for _reduction in ("mean", "sum", "none"):
        named(_name, normal(3, 4), normal(3, 4), reduction=_reduction, edge=_reduction)
    _same = normal(3, 4)
    named(_name, _same, _same.copy(), edge="equal")
_logs = np.log(_random.random((3, 4)))
named("kl_div", _logs, _random.random((3, 4)))
named("kl_div", _logs, np.log(_random.random((3, 4))), log_target=True, edge="log target")
both(
    "kl_div@zero target",
    lambda x: F.kl_div(x, like(x, [[0.0, 0.5, 0.5, 0.0]] * 3)),
    lambda x: T.kl_div(x, torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 3, dtype=torch.float64)),
    _logs,
)
named("binary_cross_entropy", _random.random((3, 4)) * 0.8 + 0.1, _random.random((3, 4)))
both(
    "binary_cross_entropy@0 and 1",
    lambda x: F.binary_cross_entropy(x, like(x, [0.0, 1.0, 1.0, 0.0])),
    lambda x: T.binary_cross_entropy(x, torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)),
    [0.0, 0.0, 1.0, 1.0],
    second=False,
)
named("binary_cross_entropy_with_logits", normal(3, 4), _random.random((3, 4)))
named("binary_cross_entropy_with_logits", [[0.0, 900.0, -900.0]], [[1.0, 0.0, 1.0]], edge="edges")
_labels = _random.integers(0, 5, 4)
for _options in (
    *({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.2}),
    *({"ignore_index": int(_labels[0])},),
):
    both(
        f"cross_entropy {_options}",
        lambda x, o=_options: F.cross_entropy(x, like(x, _labels), **o),
        lambda x, o=_options: T.cross_entropy(x, torch.tensor(_labels), **o),
        normal(4, 5),
    )
_shares = _random.random(5)
both(
    "cross_entropy weighted",
    lambda x: F.cross_entropy(x, like(x, _labels), like(x, _shares)),
    lambda x: T.cross_entropy(x, torch.tensor(_labels), torch.tensor(_shares)),
    normal(4, 5),
)
_image_labels = _random.integers(0, 3, (2, 4))
both(
    "cross_entropy images",
    lambda x: F.cross_entropy(x, like(x, _image_labels)),
    lambda x: T.cross_entropy(x, torch.tensor(_image_labels)),
    normal(2, 3, 4),
)
both(
    "cross_entropy one sample",
    lambda x: F.cross_entropy(x, like(x, 2)),
    lambda x: T.cross_entropy(x, torch.tensor(2)),
    normal(5),
)
named("cross_entropy", normal(4, 5), _random.random((4, 5)), edge="probabilities")
both(
    "cross_entropy@large logits",
    lambda x: F.cross_entropy(x, like(x, [0, 1])),
    lambda x: T.cross_entropy(x, torch.tensor([0, 1])),
    [[1000.0, -1000.0, 0.0], [1000.0, -1000.0, 0.0]],
    second=False,
)
both(
    "nll_loss",
    lambda x: F.nll_loss(x, like(x, _labels)),
    lambda x: T.nll_loss(x, torch.tensor(_labels)),
    normal(4, 5),
)
named("poisson_nll_loss", normal(3, 4), _random.random((3, 4)) * 3)
named("gaussian_nll_loss", normal(3, 4), normal(3, 4), _random.random((3, 4)) + 0.5)
named("gaussian_nll_loss", [1.0, 2.0], [0.0, 0.5], [0.0, 2.0], eps=1e-3, edge="small variance")
named("kl_div", 0.5, 0.25, reduction="batchmean", edge="0-d")
named(
    "cosine_embedding_loss",
    [[0.0, 0.0], [1e-5, 2e-5], [1e-9, 0.0], [1.0, 2.0]],
    [[1.0, 2.0], [1e-3, 2.0], [1.0, 2.0], [2.0, 1.0]],
    [1.0, -1.0, 1.0, 1.0],
    margin=-0.5,
    edge="short vectors",
    second=False,
)
_signs = np.sign(normal(3, 4))
both(
    "soft_margin_loss",
    lambda x: F.soft_margin_loss(x, like(x, _signs)),
    lambda x: T.soft_margin_loss(x, torch.tensor(_signs)),
    normal(3, 4),
)
named("hinge_embedding_loss", normal(3, 4), np.sign(normal(3, 4)))
named("margin_ranking_loss", normal(4), normal(4), np.sign(normal(4)))
named("triplet_margin_loss", normal(3, 4), normal(3, 4), normal(3, 4))
named("cosine_embedding_loss", normal(3, 4), normal(3, 4), np.array([1.0, -1.0, 1.0]))
named("pairwise_distance", normal(4, 5), normal(4, 5))
named("pairwise_distance", normal(4, 5), normal(4, 5), p=3.0, edge="p=3")
_targets = np.array([[1, 2, 3], [2, 2, 0]])
both(
    "ctc_loss",
    lambda x: F.ctc_loss(x.log_softmax(axis=-1), like(x, _targets), [5, 4], [3, 2]),
    lambda x: T.ctc_loss(x.log_softmax(-1), torch.tensor(_targets), (5, 4), (3, 2)),
    normal(5, 2, 4),
    second=False,
)
named("layer_norm", normal(4, 5), normalized_shape=(5,), edge="plain")
both(
    "layer_norm",
    lambda x, w, b: F.layer_norm(x, (3, 5), w, b),
    lambda x, w, b: T.layer_norm(x, (3, 5), w, b),
    *(normal(2, 3, 5), normal(3, 5), normal(3, 5)),
)
named("layer_norm", np.ones((2, 3)), normalized_shape=(3,), edge="constant")
both(
    "batch_norm",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    lambda x, w, b: T.batch_norm(x, None, None, w, b, training=True),
    *(normal(4, 5, 3), normal(5), normal(5)),
)
both(
    "batch_norm@statistics",
    lambda x: F.batch_norm(x, like(x, np.full(5, 0.3)), like(x, np.full(5, 2.0))),
    lambda x: T.batch_norm(
        x, torch.full((5,), 0.3, dtype=torch.float64), torch.full((5,), 2.0, dtype=torch.float64)
    ),
    normal(4, 5, 3),
)
both(
    "group_norm",
    lambda x, w, b: F.group_norm(x, 2, w, b),
    lambda x, w, b: T.group_norm(x, 2, w, b),
    *(normal(3, 4, 5), normal(4), normal(4)),
)
named("instance_norm", normal(3, 4, 5))
both(
    "rms_norm",
    lambda x, w: F.rms_norm(x, (5,), w),
    lambda x, w: T.rms_norm(x, (5,), w),
    *(normal(4, 5), normal(5)),
)
named("normalize", normal(4, 5))
named("normalize", normal(4, 5), p=1.0, edge="p=1")
named("normalize", normal(4, 5), p=3.0, edge="p=3")
named("normalize", np.zeros((2, 3)), edge="zeros", second=False)
named("cosine_similarity", normal(4, 5), normal(4, 5))
named("cosine_similarity", np.zeros((2, 3)), normal(2, 3), edge="zeros", second=False)
for _attention in ({}, {"is_causal": True}, {"scale": 0.3}):
    named(
        "scaled_dot_product_attention",
        *(normal(1, 2, 4, 3), normal(1, 2, 4, 3), normal(1, 2, 4, 3)),
        edge=str(_attention),
        # PyTorch has no second derivative of its fused attention.
        second=False,
        **_attention,
    )
_visible = _random.random((1, 1, 4, 4)) > 0.3
_visible[..., 0] = True
both(
    "scaled_dot_product_attention@mask",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, like(q, _visible)),
    lambda q, k, v: T.scaled_dot_product_attention(q, k, v, torch.tensor(_visible)),
    *(normal(1, 2, 4, 3), normal(1, 2, 4, 3), normal(1, 2, 4, 3)),
    second=False,
)
named(
    "scaled_dot_product_attention",
    *(normal(1, 2, 4, 3), normal(1, 2, 4, 3), normal(1, 2, 4, 3), normal(1, 2, 4, 4)),
    edge="bias",
)
named("linear", normal(2, 3, 4), normal(5, 4), normal(5))
both(
    "embedding",
    lambda w: F.embedding(like(w, [[0, 1], [1, 1]]), w),
    lambda w: T.embedding(torch.tensor([[0, 1], [1, 1]]), w),
    normal(3, 4),
)
named("conv1d", normal(2, 4, 7), normal(6, 2, 3), normal(6), stride=2, padding=1, groups=2)
named("conv2d", normal(1, 2, 5, 6), normal(3, 2, 3, 2), normal(3), dilation=2)
named("conv3d", normal(1, 2, 3, 4, 3), normal(2, 2, 2, 2, 2), normal(2))
named("conv_transpose1d", normal(2, 4, 5), normal(4, 3, 3), normal(3), stride=2, padding=1)
named(
    "conv_transpose2d",
    *(normal(1, 4, 3, 3), normal(4, 2, 3, 2), normal(4)),
    stride=2,
    output_padding=1,
    groups=2,
)
named("conv_transpose3d", normal(1, 2, 2, 3, 2), normal(2, 2, 2, 2, 2))
for _aligned in (False, True):
    for _padding in ("zeros", "border", "reflection"):
        named(
            "grid_sample",
            *(normal(1, 2, 4, 5), _random.uniform(-1.3, 1.3, (1, 3, 3, 2))),
            padding_mode=_padding,
            align_corners=_aligned,
            edge=f"{_padding} {_aligned}",
            # PyTorch has no second derivative of grid_sample.
            second=False,
        )
for _mode, _aligned in (("bilinear", True), ("bilinear", False), ("bicubic", True)):
    named(
        "interpolate",
        normal(1, 2, 4, 3),
        size=(5, 7),
        mode=_mode,
        align_corners=_aligned,
        edge=f"{_mode} {_aligned}",
    )
named("interpolate", normal(1, 2, 4, 3), size=(5, 7), mode="nearest", edge="nearest")
named("max_pool1d", normal(1, 2, 7), kernel_size=3, stride=2)
named("max_pool2d", normal(1, 2, 6, 6), kernel_size=2)
named("max_pool2d", np.ones((1, 1, 4, 4)), kernel_size=2, stride=1, edge="ties")
named("max_pool2d", normal(1, 1, 5, 5), kernel_size=2, ceil_mode=True, edge="ceil")
named("avg_pool1d", normal(1, 2, 7), kernel_size=3, stride=2, padding=1)
named("avg_pool2d", normal(1, 2, 6, 6), kernel_size=2, count_include_pad=False, padding=1)
named("avg_pool2d", normal(1, 1, 5, 5), kernel_size=2, ceil_mode=True, edge="ceil")
named("adaptive_avg_pool1d", normal(1, 2, 7), output_size=3)
named("adaptive_avg_pool2d", normal(1, 2, 7, 5), output_size=(3, 2))
both(
    "unfold and fold",
    lambda x: F.fold(F.unfold(x, 3), (6, 6), 3),
    lambda x: T.fold(T.unfold(x, 3), (6, 6), 3),
    normal(1, 2, 6, 6),
)
named("pixel_shuffle", normal(1, 8, 2, 3), upscale_factor=2)
named("pixel_unshuffle", normal(1, 2, 4, 6), downscale_factor=2)
for _pad_mode in ("constant", "reflect", "replicate", "circular"):
    named("pad", normal(1, 2, 5), pad=(2, 1), mode=_pad_mode, edge=_pad_mode)


# -- Functions of tensors -------------------------------------------------------------------------

for _name in ("exp", "sin", "cos", "sinh", "cosh", "tanh", "erf", "expm1", "square", "abs"):
    both(
        _name,
        lambda x, n=_name: getattr(br, n)(x),
        lambda x, n=_name: getattr(torch, n)(x),
        normal(3, 4),
    )
for _name in ("asinh", "atan", "sign", "floor", "ceil", "trunc", "round", "exp2", "positive"):
    both(
        _name,
        lambda x, n=_name: getattr(br, n)(x),
        lambda x, n=_name: getattr(torch, n)(x),
        normal(3, 4),
    )
for _name in (
    *("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "tan", "asin", "acos", "atanh"),
    "reciprocal",
):
    both(
        _name,
        lambda x, n=_name: getattr(br, n)(x),
        lambda x, n=_name: getattr(torch, n)(x),
        _random.uniform(0.1, 0.9, (3, 4)),
    )
both("acosh", br.acosh, torch.acosh, _random.uniform(1.1, 3, (3, 4)))
for _name in ("sqrt", "log", "rsqrt", "abs", "sign", "expm1", "reciprocal", "log1p", "square"):
    both(
        f"{_name}@zero",
        lambda x, n=_name: getattr(br, n)(x),
        lambda x, n=_name: getattr(torch, n)(x),
        [0.0, 1.0],
        second=False,
    )
both("expm1@tiny", br.expm1, torch.expm1, [1e-9, -1e-12, 700.0], second=False)
both("atan2", br.atan2, torch.atan2, normal(3, 1), normal(1, 4))
both("atan2@zero", br.atan2, torch.atan2, [0.0, 0.0, 1.0], [1.0, -1.0, 0.0], second=False)
both("pow", lambda x, y: x**y, lambda x, y: x**y, _random.random((3, 4)) + 0.1, normal(3, 4))
both(
    "pow@zero base",
    lambda x, y: x**y,
    lambda x, y: x**y,
    [0.0, 0.0, 0.0, 2.0],
    [2.0, 1.0, 0.0, 0.0],
    second=False,
)
for _exponent in (0, 1, 2, 3, -1, 0.5, 2.5, 0.0):
    both(
        f"pow {_exponent}",
        lambda x, e=_exponent: x**e,
        lambda x, e=_exponent: x**e,
        _random.random(4) + 0.1,
    )
for _exponent in (0, 1, 2, 3, 0.5, 1.5):
    both(
        f"pow {_exponent}@zero",
        lambda x, e=_exponent: x**e,
        lambda x, e=_exponent: x**e,
        [0.0, 1.0],
        second=False,
    )
both("2 ** x", lambda x: 2.0**x, lambda x: 2.0**x, normal(4))
both("remainder", lambda x, y: x % y, lambda x, y: x % y, [1.3, -2.9, 5.1], [0.7, 1.1, -2.0])
both("remainder of a number", lambda x: x % 0.7, lambda x: x % 0.7, [1.3, -2.9])
both("divide", lambda x, y: x / y, lambda x, y: x / y, normal(3, 1), normal(4) + 3)
both("1 / x", lambda x: 1 / x, lambda x: 1 / x, _random.random(4) + 0.1)
both("x * x", lambda x: x * x, lambda x: x * x, normal(4))
both("x / x", lambda x: x / x, lambda x: x / x, normal(4))
both(
    "broadcast of ranks",
    lambda x, y: (x + y) * (x - y),
    lambda x, y: (x + y) * (x - y),
    normal(2, 1, 3),
    normal(4, 1),
)
both("rank 0", lambda x, y: x * y, lambda x, y: x * y, normal(), normal(3))
both("maximum", br.maximum, torch.maximum, [1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
both("minimum", br.minimum, torch.minimum, [1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
both("clip@bounds", lambda x: x.clip(0, 1), lambda x: x.clamp(0, 1), [0.0, 1.0, 0.5, 2.0, -1.0])
both(
    "clip by tensors",
    lambda x, y: x.clip(min=y),
    lambda x, y: x.clamp(min=y),
    [0.1, 1.0, 0.5],
    [0.3, 0.2, -1.0],
)
both(
    "where",
    lambda x: br.where(x > 0, x.log(), x),
    lambda x: torch.where(x > 0, x.log(), x),
    [1.0, 2.0, -1.0],
    second=False,
)
both(
    "where of NaN",
    lambda x: br.where(x > 0, x.sqrt(), 0.0),
    lambda x: torch.where(x > 0, x.sqrt(), 0.0),
    [4.0, 0.0, -1.0],
    second=False,
)
both(
    "mask_fill",
    lambda x: x.mask_fill(x < 0, 0.0),
    lambda x: x.masked_fill(x < 0, 0.0),
    normal(3, 4),
)
for _name, _options in (("max", {}), ("min", {})):
    both(
        f"{_name} of all, ties",
        lambda x, n=_name: getattr(x, n)(),
        lambda x, n=_name: getattr(x, f"a{n}")(),
        [[1.0, 3.0, 3.0], [1.0, 2.0, 1.0]],
    )
    both(
        f"{_name} of an axis, ties",
        lambda x, n=_name: getattr(x, n)(axis=1),
        lambda x, n=_name: getattr(x, f"a{n}")(1),
        [[1.0, 3.0, 3.0], [1.0, 2.0, 1.0]],
    )
    both(
        f"{_name} of axes",
        lambda x, n=_name: getattr(x, n)(axis=(0, 2)),
        lambda x, n=_name: getattr(x, f"a{n}")((0, 2)),
        normal(2, 3, 4),
    )
    both(
        f"{_name}_with_indices",
        lambda x, n=_name: getattr(x, f"{n}_with_indices")(1)[0],
        lambda x, n=_name: getattr(x, n)(1)[0],
        normal(3, 4),
    )
both("max_abs", lambda x: x.max_abs(axis=1), lambda x: x.abs().amax(1), normal(3, 4))
for _axis in (None, 0, 1, (0, 2)):
    for _name in ("sum", "mean"):
        both(
            f"{_name} {_axis}",
            lambda x, n=_name, a=_axis: getattr(x, n)(axis=a) ** 2,
            lambda x, n=_name, a=_axis: (getattr(x, n)() if a is None else getattr(x, n)(a)) ** 2,
            normal(2, 3, 4),
        )
    for _name in ("var", "std"):
        for _correction in (0, 1):
            both(
                f"{_name} {_axis} {_correction}",
                lambda x, n=_name, a=_axis, c=_correction: getattr(x, n)(axis=a, correction=c),
                lambda x, n=_name, a=_axis, c=_correction: getattr(x, n)(a, correction=c),
                normal(2, 3, 4),
            )
for _name in ("var", "std"):
    both(
        f"{_name}@constant",
        lambda x, n=_name: getattr(x, n)(axis=1),
        lambda x, n=_name: getattr(x, n)(1, correction=0),
        np.ones((2, 3)),
        second=False,
    )
    both(
        f"{_name}@one element",
        lambda x, n=_name: getattr(x, n)(axis=1),
        lambda x, n=_name: getattr(x, n)(1, correction=0),
        normal(2, 1),
        second=False,
    )
both("prod", lambda x: x.prod(axis=1), lambda x: x.prod(1), normal(3, 4))
both("prod of all", lambda x: x.prod(), lambda x: x.prod(), normal(3, 4))
for _zeros in ([1.0, 0.0, 2.0], [0.0, 0.0, 2.0]):
    both(f"prod {_zeros}", lambda x: x.prod(), lambda x: x.prod(), _zeros)
    both(f"cumulative_prod {_zeros}", lambda x: x.cumulative_prod(), lambda x: x.cumprod(0), _zeros)
both("cumulative_prod", lambda x: x.cumulative_prod(axis=1), lambda x: x.cumprod(1), normal(3, 7))
both("cumulative_sum", lambda x: x.cumulative_sum(axis=0), lambda x: x.cumsum(0), normal(3, 4))
both("cummax", lambda x: x.cummax(axis=1), lambda x: x.cummax(1)[0], normal(3, 6))
both("cummin@ties", lambda x: x.cummin(), lambda x: x.cummin(0)[0], [3.0, 1.0, 2.0, 1.0, 5.0])
both("sort", lambda x: x.sort(), lambda x: x.sort()[0], normal(3, 4))
both(
    "sort descending",
    lambda x: x.sort(axis=0, descending=True),
    lambda x: x.sort(0, descending=True)[0],
    normal(3, 4),
)
both("topk", lambda x: x.topk(2)[0], lambda x: x.topk(2)[0], normal(3, 4))
both("vector_norm", lambda x: br.vector_norm(x, axis=1), lambda x: x.norm(dim=1), normal(3, 4))
for _order in (1, 2, math.inf):
    both(
        f"vector_norm {_order}@zeros",
        lambda x, o=_order: br.vector_norm(x, axis=1, ord=o),
        lambda x, o=_order: torch.linalg.vector_norm(x, o, 1),
        np.zeros((2, 3)),
        second=False,
    )
both("matmul", br.matmul, torch.matmul, normal(2, 1, 3, 4), normal(5, 4, 2))
both("matmul of a vector", br.matmul, torch.matmul, normal(4), normal(4, 2))
both("x @ x", lambda x: x @ x, lambda x: x @ x, normal(3, 3))
both("outer", br.outer, torch.outer, normal(3), normal(4))
both("cross", br.cross, torch.linalg.cross, normal(4, 3), normal(4, 3))
both(
    "tensordot",
    lambda x, y: br.tensordot(x, y, axes=1),
    lambda x, y: torch.tensordot(x, y, 1),
    normal(2, 3),
    normal(3, 4),
)
both("index", lambda x: x[1:, ::2] * x[:1, 1:3], lambda x: x[1:, ::2] * x[:1, 1:3], normal(4, 4))
both("negative step", lambda x: x[::-2], lambda x: x.flip(0)[::2], normal(5, 2))
both("index of a list", lambda x: x[[0, 0, 2]], lambda x: x[[0, 0, 2]], normal(3, 2))
both("index of a mask", lambda x: x[2, None, ...], lambda x: x[2, None, ...], normal(3, 2))
both("take", lambda x: x.take([0, 0, 2], axis=1), lambda x: x[:, [0, 0, 2]], normal(2, 3))
both(
    "gather",
    lambda x: x.gather(1, like(x, [[0, 0], [2, 1]])),
    lambda x: x.gather(1, torch.tensor([[0, 0], [2, 1]])),
    normal(2, 3),
)
both(
    "scatter add",
    lambda x, v: x.scatter(1, like(x, [[0, 0], [2, 1]]), v, update="add"),
    lambda x, v: x.scatter_add(1, torch.tensor([[0, 0], [2, 1]]), v),
    normal(2, 3),
    normal(2, 2),
)
both(
    "scatter",
    lambda x, v: x.scatter(1, like(x, [[0, 1], [2, 1]]), v),
    lambda x, v: x.scatter(1, torch.tensor([[0, 1], [2, 1]]), v),
    normal(2, 3),
    normal(2, 2),
)
both(
    "set",
    lambda x, v: x.set((slice(1, 3), 0), v),
    lambda x, v: torch.cat([x[:1], torch.cat([v[:, None], x[1:3, 1:]], 1)]),
    normal(3, 2),
    normal(2),
)
both(
    "concat of itself",
    lambda x: br.concat([x, x * 2, x]),
    lambda x: torch.cat([x, x * 2, x]),
    normal(2, 3),
)
both(
    "stack",
    lambda x, y: br.stack([x, y, x], axis=1),
    lambda x, y: torch.stack([x, y, x], 1),
    normal(2, 3),
    normal(2, 3),
)
both(
    "split",
    lambda x: x.split(2, axis=1)[1] * x.split(2, axis=1)[0],
    lambda x: x.chunk(2, 1)[1] * x.chunk(2, 1)[0],
    normal(2, 4),
)
both("repeat", lambda x: x.repeat(3, axis=0), lambda x: x.repeat_interleave(3, 0), normal(2, 3))
both("tile", lambda x: x.tile((2, 3)), lambda x: x.tile((2, 3)), normal(2, 2))
both("roll", lambda x: x.roll(2, axis=1), lambda x: x.roll(2, 1), normal(2, 5))
both("tril", br.tril, torch.tril, normal(3, 4))
both("triu", lambda x: br.triu(x, k=1), lambda x: torch.triu(x, 1), normal(3, 4))
both("diff", br.diff, torch.diff, normal(2, 5))
both("broadcast_to", lambda x: x.broadcast_to((3, 2, 4)), lambda x: x.expand(3, 2, 4), normal(2, 1))
both("permute", lambda x: x.permute_dims((2, 0, 1)), lambda x: x.permute(2, 0, 1), normal(2, 3, 4))
both("unfold", lambda x: x.unfold(0, 3, 2), lambda x: x.unfold(0, 3, 2), normal(7, 2))
both(
    "empty", lambda x: (x * x).sum(axis=0), lambda x: (x * x).sum(0), np.zeros((0, 3)), second=False
)
both("empty mean", lambda x: x.mean(axis=1), lambda x: x.mean(1), np.zeros((0, 3)), second=False)
both(
    "through float32",
    lambda x: (x.astype(br.float32) ** 2).astype(br.float64),
    lambda x: (x.float() ** 2).double(),
    [0.5, 0.25],
    second=False,
)
both(
    "through float16",
    lambda x: (x.astype(br.float16) * 3).astype(br.float64),
    lambda x: (x.half() * 3).double(),
    [0.5, 0.25],
    second=False,
)
both(
    "rfft",
    lambda x: br.concat(list(F.rfft(x)), 1),
    lambda x: torch.cat([torch.fft.rfft(x).real, torch.fft.rfft(x).imag], 1),
    normal(2, 7),
)
both(
    "irfft",
    lambda re, im: F.irfft(re, im, 8),
    lambda re, im: torch.fft.irfft(torch.complex(re, im), 8),
    normal(2, 5),
    normal(2, 5),
)


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


def elements(x: Any, shape: tuple[int, ...]) -> Array:
    if x is None:
        return np.zeros(shape)
    return np.asarray(x.numpy() if isinstance(x, br.Tensor) else x.detach().numpy(force=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_pytorch(case: Case, device: br.Device) -> None:
    random = np.random.default_rng(11)
    ours = [br.tensor(one, device=device).requires_grad_() for one in case.inputs]
    theirs = [torch.tensor(one, requires_grad=True) for one in case.inputs]
    out, expected = case.ours(*ours), case.theirs(*theirs)
    np.testing.assert_allclose(out.numpy(), elements(expected, ()), rtol=1e-9, atol=1e-11)
    if not expected.requires_grad:
        assert not out.requires_grad or not out.dtype.is_floating
        return

    weights = random.normal(size=tuple(expected.shape))
    found = br.autograd.grad(
        out, ours, br.tensor(weights, device=device), create_graph=True, allow_unused=True
    )
    wanted = torch.autograd.grad(
        expected, theirs, torch.tensor(weights), create_graph=True, allow_unused=True
    )
    for position, (one, other) in enumerate(zip(found, wanted, strict=True)):
        shape = case.inputs[position].shape
        np.testing.assert_allclose(
            elements(one, shape),
            elements(other, shape),
            rtol=FIRST_BOUND,
            atol=FIRST_BOUND,
            err_msg=f"first gradient, input {position}",
        )
    if case.compares_second:
        _compare_second(case, ours, theirs, found, wanted, random)


def _compare_second(
    case: Case, ours: Any, theirs: Any, found: Any, wanted: Any, random: np.random.Generator
) -> None:
    directions = [random.normal(size=one.shape) for one in case.inputs]
    device = ours[0].device
    pairs = [
        (one, br.tensor(way, device=device))
        for one, way in zip(found, directions, strict=True)
        if one is not None and one.requires_grad
    ]
    sums = [
        (one * torch.tensor(way)).sum()
        for one, way in zip(wanted, directions, strict=True)
        if one is not None and one.requires_grad
    ]
    seconds: Any = [None] * len(ours)
    if pairs:
        seconds = br.autograd.grad(
            [one for one, _ in pairs], ours, [way for _, way in pairs], allow_unused=True
        )
    expected: Any = [None] * len(theirs)
    if sums:
        expected = torch.autograd.grad(sum(sums), theirs, allow_unused=True)
    for position, (one, other) in enumerate(zip(seconds, expected, strict=True)):
        shape = case.inputs[position].shape
        np.testing.assert_allclose(
            elements(one, shape),
            elements(other, shape),
            rtol=SECOND_BOUND,
            atol=SECOND_BOUND,
            err_msg=f"second gradient, input {position}",
        )
