"""Functions of neural networks, with the names and arguments of ``torch.nn.functional``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions import activations
from burn_remote.functions.activations import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from burn_remote.functions.elementwise import tanh
from burn_remote.functions.padding import pad
from burn_remote.nn.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    deform_conv2d,
)
from burn_remote.nn.grid_sampling import grid_sample
from burn_remote.nn.label_losses import cross_entropy, ctc_loss, nll_loss
from burn_remote.nn.layers import (
    dropout,
    embedding,
    linear,
    one_hot,
    scaled_dot_product_attention,
)
from burn_remote.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    gaussian_nll_loss,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    poisson_nll_loss,
    smooth_l1_loss,
)
from burn_remote.nn.margin_losses import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    pairwise_distance,
    soft_margin_loss,
    triplet_margin_loss,
)
from burn_remote.nn.normalization import (
    batch_norm,
    cosine_similarity,
    group_norm,
    instance_norm,
    layer_norm,
    normalize,
    rms_norm,
    running_statistics,
)
from burn_remote.nn.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
)
from burn_remote.nn.resampling import interpolate, irfft, rfft
from burn_remote.nn.window_rearrangement import fold, pixel_shuffle, pixel_unshuffle, unfold

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "deform_conv2d",
    "dropout",
    "elu",
    "embedding",
    "fold",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "hard_sigmoid",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "irfft",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rfft",
    "rms_norm",
    "running_statistics",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "unfold",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)


@explained
def softmax(input: Tensor, dim: int = -1) -> Tensor:
    """Return ``exp(input) / sum(exp(input))`` along an axis, without overflow."""
    return activations.softmax(input, dim)


@explained
def softmin(input: Tensor, dim: int = -1) -> Tensor:
    """Return ``softmax(-input)``."""
    return activations.softmin(input, dim)


@explained
def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """Return the logarithm of ``softmax(input)``, without underflow."""
    return activations.log_softmax(input, dim)


@explained
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Split an axis into halves a and b and return ``a * sigmoid(b)``.

    Shapes: ``[…, n, …]`` to ``[…, n / 2, …]``. Raises ``ShapeMismatch`` for an odd ``n``.
    """
    return activations.glu(input, dim)
