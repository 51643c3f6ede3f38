"""Random PyTorch programs with gradients, compared between a burn device and the CPU.

A program starts with a few leaves. Each step is a row of ``STEPS``: a view, a function, an
operation in place, a hook, a change of a tensor's history, or a backward pass. A step picks its
operands and options by numbers, so it fits any tensors, and the same numbers pick the same on both
devices.

Shapes, dtypes and histories are compared after each step. Elements, gradients and what hooks saw
are compared at the end, because a read could hide an error of the tensors that were not read. Where
the CPU refuses a step, the burn device must refuse it too.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["STEPS", "Difference", "Program", "Step", "compare", "generated", "shrunk"]

# The limits of a tensor that later steps may use: elements, and the size of the largest.
MOST_ELEMENTS: Final = 96
LARGEST: Final = 50.0
MOST_TENSORS: Final = 40

SHAPES: Final = ((), (1,), (3,), (2, 3), (3, 2), (1, 3), (4, 4), (2, 3, 4), (2, 1, 3))
DTYPES: Final = {"float64": 1e-7, "float32": 2e-3, "complex128": 1e-7}

# A write to repeated elements, which the CPU carries out for some operations, with a warning.
REFUSED_HERE: Final = "single memory location"

# What the CPU refuses at once: burn devices carry out writes to elements that overlap their source,
# and find indices that are out of range when elements are read. See docs/torch.md.
COMPUTED_HERE: Final = (
    "fallback doesn't currently support mutable TensorLists with conjugate inputs",
    "index is out of bounds for dimension with size 0",
    "are out of bounds for storage of size 0",
    "some elements of the input tensor and the written-to tensor refer to a single memory location",
    "overlap",
)


class Difference(AssertionError):
    """The burn device gave another result than the CPU."""


class Step(NamedTuple):
    """A row of ``STEPS`` and the numbers by which it picks operands and options."""

    name: str
    numbers: tuple[int, int, int, int]

    def __str__(self) -> str:
        return f"{self.name}{self.numbers}"


class Program(NamedTuple):
    """Shapes of leaves and whether they require gradients, and steps."""

    seed: int
    dtype: str
    leaves: tuple[tuple[tuple[int, ...], bool], ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        leaves = ", ".join(f"{list(shape)}{'*' * grad}" for shape, grad in self.leaves)
        lines = [f"seed {self.seed}, {self.dtype}, leaves {leaves}"]
        return "\n".join(lines + [f"  {step}" for step in self.steps])


class Machine:
    """The tensors of a program on one device, and what its hooks recorded."""

    def __init__(self, program: Program, device: Any) -> None:
        generator = torch.Generator().manual_seed(program.seed)
        dtype = getattr(torch, program.dtype)
        self.device = device
        self.records: list[Any] = []
        self.tensors: list[Any] = [
            torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_(grad)
            for shape, grad in program.leaves
        ]

    def pick(self, number: int) -> Any:
        """Return a tensor, more often one of the newest."""
        count = len(self.tensors)
        return (
            self.tensors[number % count]
            if number % 3
            else self.tensors[-1 - number // 3 % min(count, 4)]
        )

    def fitting(self, x: Any, number: int) -> Any:
        """Return a tensor that broadcasts to ``x``."""
        y = self.pick(number)
        try:
            fits = torch.broadcast_shapes(x.shape, y.shape) == x.shape
        except RuntimeError:
            fits = False
        return y if fits else y.mean()


# Name -> a function of a machine and four numbers. It returns a new tensor, several, or ``None``.
STEPS: Final[dict[str, Callable[[Machine, int, int, int, int], Any]]] = {}
# Name -> how often a step is drawn.
WEIGHTS: Final[dict[str, float]] = {}


def rows(weight: float, table: dict[str, Callable[[Machine, int, int, int, int], Any]]) -> None:
    """Enter rows whose common weight is divided among them."""
    STEPS.update(table)
    WEIGHTS.update(dict.fromkeys(table, weight / len(table)))


def axis(x: Any, number: int) -> int:
    return number % max(int(x.dim()), 1) - (number % 2) * int(x.dim())


def matrix(x: Any) -> Any:
    """Return a square matrix of three rows, far from singular."""
    flat = x.reshape(-1)
    return torch.cat([flat] * (9 // max(flat.numel(), 1) + 1))[:9].reshape(
        3, 3
    ).tanh() + 3 * torch.eye(3, dtype=x.dtype, device=x.device)


def line(x: Any) -> Any:
    if not x.numel():
        raise ValueError("no elements")
    return x.reshape(-1)


def real(x: Any) -> Any:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def places(m: Machine, x: Any, dim: int, count: int, number: int) -> Any:
    size = max(int(x.shape[dim]), 1) if x.dim() else 1
    return torch.tensor([(number * (k + 2) + k) % size for k in range(count)], device=m.device)


def chosen(x: Any, number: int) -> Any:
    """Return a mask that depends on the number only."""
    count = x.numel()
    bits = [(number * 7919 + k * k * 31 + k) % 3 == 0 for k in range(count)]
    return torch.tensor(bits, dtype=torch.bool).reshape(x.shape).to(x.device)


# --- views --------------------------------------------------------------------------------------


def sliced(x: Any, a: int, b: int) -> Any:
    dim = axis(x, a) % x.dim() if x.dim() else 0
    if not x.dim():
        return x[None]
    index: list[Any] = [slice(None)] * x.dim()
    index[dim] = slice(b % (x.shape[dim] + 1), None, 1 + (a + b) % 2)
    return x[tuple(index)]


def strided(x: Any) -> Any:
    return x.as_strided((x.numel() // 2 or 1,), (1,), x.storage_offset())


VIEWS: Final[dict[str, Callable[[Any, int, int], Any]]] = {
    "slice": sliced,
    "select": lambda x, a, b: x.select(axis(x, a), b % x.shape[axis(x, a)]),
    "transpose": lambda x, a, b: x.transpose(axis(x, a), axis(x, b)),
    "view": lambda x, a, b: x.view(-1),
    "reshape": lambda x, a, b: x.reshape(-1, 2 if x.numel() % 2 == 0 else 1),
    "unsqueeze": lambda x, a, b: x.unsqueeze(axis(x, a)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "diagonal": lambda x, a, b: x.diagonal(b % 3 - 1),
    "split": lambda x, a, b: x.split(1 + b % 3, axis(x, a))[-1],
    "unbind": lambda x, a, b: x.unbind(axis(x, a))[0],
    "chunk": lambda x, a, b: x.chunk(2, axis(x, a))[0],
    "narrow": lambda x, a, b: x.narrow(axis(x, a), 0, min(2, x.shape[axis(x, a)])),
    "unfold": lambda x, a, b: x.unfold(axis(x, a), 2, 2),
    "expand": lambda x, a, b: x.expand(2, *x.shape),
    "movedim": lambda x, a, b: x.movedim(axis(x, a), axis(x, b)),
    "flatten": lambda x, a, b: x.flatten(),
    "view_as": lambda x, a, b: x.view_as(x),
    "real": lambda x, a, b: x.real,
    "imag": lambda x, a, b: x.imag if x.is_complex() else x.mT,
    "conj": lambda x, a, b: x.conj(),
    "adjoint": lambda x, a, b: x.mH,
    "as_strided": lambda x, a, b: strided(x),
    "detach": lambda x, a, b: x.detach(),
    "data": lambda x, a, b: x.data,
}
rows(
    8,
    {
        f"{name} (view)": lambda m, a, b, c, d, f=view: f(m.pick(a), b, c)  # type: ignore[misc]
        for name, view in VIEWS.items()
    },
)


# --- functions ----------------------------------------------------------------------------------

UNARY: Final[dict[str, Callable[[Any, int, int], Any]]] = {
    **{
        name: lambda x, a, b, name=name: getattr(torch, name)(x)  # type: ignore[misc]
        for name in (
            "sin",
            "cos",
            "tanh",
            "sigmoid",
            "abs",
            "square",
            "neg",
            "erf",
            "atan",
            "asinh",
            "sinc",
            "expm1",
            "relu",
        )
    },
    **{
        name: lambda x, a, b, name=name: getattr(functional, name)(x)  # type: ignore[misc]
        for name in (
            "gelu",
            "silu",
            "elu",
            "softplus",
            "leaky_relu",
            "hardswish",
            "mish",
            "selu",
            "celu",
            "logsigmoid",
            "softsign",
            "relu6",
            "hardsigmoid",
            "tanhshrink",
            "softshrink",
        )
    },
    "sqrt": lambda x, a, b: (x * x + 1).sqrt(),
    "log": lambda x, a, b: (x * x + 2).log(),
    "exp": lambda x, a, b: x.tanh().exp(),
    "reciprocal": lambda x, a, b: 1 / (x * x + 1),
    "pow": lambda x, a, b: x.pow([2, 3, 0, 1][a % 4]),
    "pow of an exponent": lambda x, a, b: 2 ** x.tanh(),
    "cumsum": lambda x, a, b: x.cumsum(axis(x, a)),
    "cumprod": lambda x, a, b: x.cumprod(axis(x, a)),
    "logcumsumexp": lambda x, a, b: x.logcumsumexp(axis(x, a)),
    "cummax": lambda x, a, b: x.cummax(axis(x, a)).values,
    "softmax": lambda x, a, b: x.softmax(axis(x, a)),
    "log_softmax": lambda x, a, b: x.log_softmax(axis(x, a)),
    "flip": lambda x, a, b: x.flip(axis(x, a)),
    "roll": lambda x, a, b: x.roll(b % 5, axis(x, a)),
    "tril": lambda x, a, b: x.tril(b % 3 - 1),
    "triu": lambda x, a, b: x.triu(b % 3 - 1),
    "sort": lambda x, a, b: x.sort(axis(x, a), descending=b % 2 == 1).values,
    "topk": lambda x, a, b: x.topk(1, axis(x, a)).values,
    "max": lambda x, a, b: x.max(axis(x, a)).values,
    "median": lambda x, a, b: x.median(axis(x, a)).values,
    "kthvalue": lambda x, a, b: x.kthvalue(1, axis(x, a), keepdim=b % 2 == 1).values,
    "amax": lambda x, a, b: x.amax(axis(x, a), keepdim=b % 2 == 1),
    "amin of all": lambda x, a, b: x.amin(),
    "max of all": lambda x, a, b: x.max(),
    "mean": lambda x, a, b: x.mean(axis(x, a), keepdim=b % 2 == 1),
    "sum": lambda x, a, b: x.sum(axis(x, a), keepdim=b % 2 == 1),
    "sum of all": lambda x, a, b: x.sum(),
    "nansum": lambda x, a, b: x.nansum(axis(x, a)),
    "prod": lambda x, a, b: x.prod(axis(x, a)),
    "var": lambda x, a, b: x.var(axis(x, a), correction=b % 2),
    "std": lambda x, a, b: (x + torch.arange(x.numel(), device=x.device).reshape(x.shape)).std(),
    "norm": lambda x, a, b: x.norm([2, 1, 3, float("inf")][b % 4]),
    "vector_norm": lambda x, a, b: torch.linalg.vector_norm(x, [2, 1, 3][b % 3], axis(x, a)),
    "logsumexp": lambda x, a, b: x.logsumexp(axis(x, a)),
    "clamp": lambda x, a, b: x.clamp(-0.5, 0.7),
    "hardtanh": lambda x, a, b: functional.hardtanh(x, -0.6, 0.8),
    "threshold": lambda x, a, b: functional.threshold(x, 0.1, -2),
    "layer_norm": lambda x, a, b: functional.layer_norm(x, x.shape[-1:]) * 0.5,
    "rms_norm": lambda x, a, b: functional.rms_norm(x, x.shape[-1:]),
    "normalize": lambda x, a, b: functional.normalize(x + 2, dim=axis(x, a)),
    "glu": lambda x, a, b: functional.glu(torch.cat([x, x * 2], -1)),
    "repeat": lambda x, a, b: x.repeat(2, *[1] * x.dim()),
    "tile": lambda x, a, b: x.tile(2),
    "repeat_interleave": lambda x, a, b: x.repeat_interleave(2, axis(x, a)),
    "pad": lambda x, a, b: functional.pad(x, (1, b % 2), value=0.5),
    "reflect": lambda x, a, b: functional.pad(line(x)[None, None], (1, 1), mode="reflect"),
    "clone": lambda x, a, b: x.clone(),
    "contiguous": lambda x, a, b: x.contiguous(),
    "diag_embed": lambda x, a, b: x.diag_embed(),
    "diff": lambda x, a, b: x.diff(dim=axis(x, a)),
    "trace": lambda x, a, b: matrix(x).trace(),
    "inverse": lambda x, a, b: matrix(x).inverse(),
    "det": lambda x, a, b: matrix(x).det(),
    "logdet": lambda x, a, b: torch.linalg.slogdet(matrix(x))[1],
    "cholesky": lambda x, a, b: torch.linalg.cholesky(matrix(x) @ matrix(x).mH),
    "matrix_power": lambda x, a, b: torch.linalg.matrix_power(matrix(x) / 4, 3),
    "qr": lambda x, a, b: torch.linalg.qr(matrix(x))[1].abs(),
    "svdvals": lambda x, a, b: torch.linalg.svdvals(
        matrix(x) * torch.tensor([1.0, 2, 4], device=x.device)
    ),
    "as_real": lambda x, a, b: torch.view_as_real(x) if x.is_complex() else x * 2,
    "as_complex": lambda x, a, b: torch.complex(x, x * 0.5) if not x.is_complex() else x.abs(),
    "fft": lambda x, a, b: torch.fft.fft(x, dim=axis(x, a)),
    "rfft": lambda x, a, b: torch.fft.rfft(real(x)),
    "nan_to_num": lambda x, a, b: x.nan_to_num(),
    "pool": lambda x, a, b: functional.max_pool1d(line(x)[None, None], 2, 1),
    "average pool": lambda x, a, b: functional.avg_pool1d(line(x)[None, None], 2, 1),
    "interpolate": lambda x, a, b: functional.interpolate(
        line(x)[None, None], scale_factor=2, mode=["linear", "nearest"][b % 2]
    ),
    "unfold patches": lambda x, a, b: functional.unfold(x.reshape(1, 1, 1, -1), (1, 2)),
    "float": lambda x, a, b: x.float(),
    "to double": lambda x, a, b: (
        x.to(torch.float64) if not x.is_complex() else x.to(torch.complex64)
    ),
    "batch_norm": lambda x, a, b: functional.batch_norm(
        x.reshape(-1, x.shape[-1]), None, None, training=True, eps=0.1
    ),
}
rows(
    8,
    {
        name: lambda m, a, b, c, d, f=function: f(m.pick(a), b, c)  # type: ignore[misc]
        for name, function in UNARY.items()
    },
)

BINARY: Final[dict[str, Callable[[Any, Any, int, int], Any]]] = {
    "add": lambda x, y, a, b: x + y,
    "add with a factor": lambda x, y, a, b: torch.add(x, y, alpha=0.5),
    "sub": lambda x, y, a, b: y - x,
    "mul": lambda x, y, a, b: x * y,
    "div": lambda x, y, a, b: x / (y * y + 1),
    "maximum": lambda x, y, a, b: torch.maximum(x, y),
    "fmin": lambda x, y, a, b: torch.fmin(x, y),
    "atan2": lambda x, y, a, b: torch.atan2(x, y * y + 1),
    "hypot": lambda x, y, a, b: torch.hypot(x, y * y + 1),
    "logaddexp": lambda x, y, a, b: torch.logaddexp(x, y),
    "lerp": lambda x, y, a, b: torch.lerp(x, y.expand(x.shape), 0.3),
    "lerp by a tensor": lambda x, y, a, b: torch.lerp(x, x.sin(), y),
    "addcmul": lambda x, y, a, b: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y, a, b: torch.addcdiv(x, x, y * y + 1),
    "where": lambda x, y, a, b: torch.where(chosen(x, a), x, y),
    "power of a power": lambda x, y, a, b: (x * x + 0.5) ** y.tanh(),
    "masked_fill": lambda x, y, a, b: x.masked_fill(chosen(x, a), y.mean()),
    "masked_scatter": lambda x, y, a, b: x.masked_scatter(chosen(x, a), y.expand(x.shape)),
    "cat": lambda x, y, a, b: torch.cat([x, y.expand(x.shape)], axis(x, a)),
    "stack": lambda x, y, a, b: torch.stack([x, y.expand(x.shape), x], axis(x, a)),
    "matmul": lambda x, y, a, b: x @ y.expand(x.shape).mT if x.dim() > 1 else x @ y.expand(x.shape),
    "outer": lambda x, y, a, b: torch.outer(x.reshape(-1)[:4], y.reshape(-1)[:4]),
    "einsum": lambda x, y, a, b: torch.einsum("...i,...i->...", x, y.expand(x.shape)),
    "cdist": lambda x, y, a, b: torch.cdist(matrix(x), matrix(y) * 2),
    "solve": lambda x, y, a, b: torch.linalg.solve(matrix(x), matrix(y)),
    "solve_triangular": lambda x, y, a, b: torch.linalg.solve_triangular(
        matrix(x), matrix(y), upper=b % 2 == 1
    ),
    "linear": lambda x, y, a, b: functional.linear(matrix(x), matrix(y), matrix(x)[0]),
    "bmm": lambda x, y, a, b: torch.bmm(matrix(x)[None], matrix(y)[None]),
    "addmm": lambda x, y, a, b: torch.addmm(matrix(x)[0], matrix(x), matrix(y), beta=0.5, alpha=2),
    # With a mask, the CPU has no operation of its own, which would save other tensors.
    "attention": lambda x, y, a, b: functional.scaled_dot_product_attention(
        matrix(x)[None], matrix(y)[None], matrix(x)[None], attn_mask=matrix(y)
    ),
    "conv1d": lambda x, y, a, b: functional.conv1d(
        matrix(x)[None], matrix(y)[:, :, None], padding=b % 2
    ),
    "conv2d": lambda x, y, a, b: functional.conv2d(
        matrix(x)[None, None], matrix(y)[None, None, :2, :2], stride=1 + b % 2, padding=1
    ),
    "conv_transpose": lambda x, y, a, b: functional.conv_transpose1d(
        matrix(x)[None], matrix(y)[:, :, None], stride=1 + b % 2
    ),
    "prelu": lambda x, y, a, b: functional.prelu(x, y.mean()),
    "mse_loss": lambda x, y, a, b: functional.mse_loss(
        x, y.expand(x.shape), reduction=["mean", "sum", "none"][b % 3]
    ),
    "smooth_l1_loss": lambda x, y, a, b: functional.smooth_l1_loss(x, y.expand(x.shape)),
    "huber_loss": lambda x, y, a, b: functional.huber_loss(
        real(x), real(y.expand(x.shape)), delta=0.5
    ),
    "kl_div": lambda x, y, a, b: functional.kl_div(
        matrix(x).log_softmax(1), matrix(y).softmax(1), reduction="batchmean"
    ),
    "cross_entropy": lambda x, y, a, b: functional.cross_entropy(
        matrix(x), torch.tensor([0, 2, b % 3], device=x.device), label_smoothing=0.1 * (a % 2)
    ),
    "binary_cross_entropy": lambda x, y, a, b: functional.binary_cross_entropy_with_logits(
        x, y.expand(x.shape).sigmoid()
    ),
    "cosine_similarity": lambda x, y, a, b: functional.cosine_similarity(matrix(x), matrix(y)),
}
rows(
    7,
    {
        name: lambda m, a, b, c, d, f=function: f(x := m.pick(a), m.fitting(x, b), c, d)  # type: ignore[misc]
        for name, function in BINARY.items()
    },
)

INDEXED: Final[dict[str, Callable[[Machine, Any, int, int], Any]]] = {
    "index_select": lambda m, x, a, b: x.index_select(axis(x, a), places(m, x, axis(x, a), 3, b)),
    "gather": lambda m, x, a, b: x.reshape(-1).gather(0, places(m, x.reshape(-1), 0, 4, b)),
    "take_along_dim": lambda m, x, a, b: x.take_along_dim(
        x.detach().abs().argsort(axis(x, a)), axis(x, a)
    ),
    "take": lambda m, x, a, b: x.take(places(m, x.reshape(-1), 0, 3, b)),
    "index by a tensor": lambda m, x, a, b: x[places(m, x, 0, 3, b)],
    "index by two tensors": lambda m, x, a, b: x[
        places(m, x, 0, 2, b), ..., places(m, x, -1, 2, a)
    ],
    "index by a mask": lambda m, x, a, b: x[chosen(x, b)],
    "masked_select": lambda m, x, a, b: x.masked_select(chosen(x, b)),
    "index by None and an ellipsis": lambda m, x, a, b: x[None, ..., -1],
    "embedding": lambda m, x, a, b: functional.embedding(places(m, matrix(x), 0, 4, b), matrix(x)),
    "index_add": lambda m, x, a, b: x.index_add(
        axis(x, a), places(m, x, axis(x, a), x.shape[axis(x, a)], b), x, alpha=0.5
    ),
    "index_copy": lambda m, x, a, b: x.index_copy(0, places(m, x, 0, 1, b), x[:1] * 2),
    "index_fill": lambda m, x, a, b: x.index_fill(0, places(m, x, 0, 1, b), 0.5),
    "index_put": lambda m, x, a, b: x.index_put(
        (places(m, x, 0, 3, b),), x[:1].expand(3, *x.shape[1:]), accumulate=True
    ),
    "scatter": lambda m, x, a, b: x.scatter(
        0, places(m, x, 0, 1, b).reshape([-1] + [1] * (x.dim() - 1)), x
    ),
    "scatter_add": lambda m, x, a, b: x.reshape(-1).scatter_add(
        0, places(m, x.reshape(-1), 0, min(3, x.numel()), b), x.reshape(-1)[:3] * 2
    ),
    "scatter_reduce": lambda m, x, a, b: x.reshape(-1).scatter_reduce(
        0,
        places(m, x.reshape(-1), 0, min(3, x.numel()), b),
        x.reshape(-1)[:3],
        ["sum", "mean", "amax"][a % 3],
    ),
    "slice_scatter": lambda m, x, a, b: x.slice_scatter(x[:1] * 2, 0, 0, 1),
    "select_scatter": lambda m, x, a, b: x.select_scatter(x.select(0, 0).sin(), 0, -1),
    "diagonal_scatter": lambda m, x, a, b: matrix(x).diagonal_scatter(matrix(x)[0]),
}
rows(
    3,
    {
        name: lambda m, a, b, c, d, f=function: f(m, m.pick(a), b, c)  # type: ignore[misc]
        for name, function in INDEXED.items()
    },
)


# --- operations in place ------------------------------------------------------------------------


def assigned(x: Any, index: Any, value: Any) -> None:
    x[index] = value


IN_PLACE: Final[dict[str, Callable[[Machine, Any, Any, int], Any]]] = {
    "add_": lambda m, x, y, a: x.add_(y),
    "mul_": lambda m, x, y, a: x.mul_(0.5),
    "mul_ by a tensor": lambda m, x, y, a: x.mul_(y),
    "sub_": lambda m, x, y, a: x.sub_(y, alpha=0.3),
    "div_": lambda m, x, y, a: x.div_(y * y + 1),
    "copy_": lambda m, x, y, a: x.copy_(y),
    "sin_": lambda m, x, y, a: x.sin_(),
    "tanh_": lambda m, x, y, a: x.tanh_(),
    "relu_": lambda m, x, y, a: x.relu_(),
    "sigmoid_": lambda m, x, y, a: x.sigmoid_(),
    "exp_": lambda m, x, y, a: x.tanh_().exp_(),
    "leaky_relu_": lambda m, x, y, a: functional.leaky_relu(x, 0.1, inplace=True),
    "elu_": lambda m, x, y, a: functional.elu(x, inplace=True),
    "silu in place": lambda m, x, y, a: functional.silu(x, inplace=True),
    "hardtanh_": lambda m, x, y, a: functional.hardtanh(x, -0.5, 0.5, inplace=True),
    "dropout in place": lambda m, x, y, a: functional.dropout(x, 0.0, inplace=True),
    "clamp_": lambda m, x, y, a: x.clamp_(-0.8, 0.8),
    "zero_": lambda m, x, y, a: x.zero_(),
    "fill_": lambda m, x, y, a: x.fill_(0.3),
    "fill_ by a tensor": lambda m, x, y, a: x.fill_(y.mean()),
    "lerp_": lambda m, x, y, a: x.lerp_(y.expand(x.shape), 0.4),
    "addcmul_": lambda m, x, y, a: x.addcmul_(y, y, value=0.1),
    "pow_": lambda m, x, y, a: x.pow_(2),
    "square_": lambda m, x, y, a: x.square_(),
    "abs_": lambda m, x, y, a: x.abs_(),
    "neg_": lambda m, x, y, a: x.neg_(),
    "cumsum_": lambda m, x, y, a: x.cumsum_(axis(x, a)),
    "tril_": lambda m, x, y, a: x.tril_(),
    "masked_fill_": lambda m, x, y, a: x.masked_fill_(chosen(x, a), 0.2),
    "masked_fill_ by a tensor": lambda m, x, y, a: x.masked_fill_(chosen(x, a), y.mean()),
    "masked_scatter_": lambda m, x, y, a: x.masked_scatter_(
        chosen(x, a), y.expand(x.shape).clone()
    ),
    "index_add_": lambda m, x, y, a: x.index_add_(0, places(m, x, 0, 1, a), y.expand(x.shape)[:1]),
    "index_fill_": lambda m, x, y, a: x.index_fill_(0, places(m, x, 0, 1, a), 0.4),
    "index_put_": lambda m, x, y, a: x.index_put_(
        (places(m, x, 0, 1, a),), y.mean(), accumulate=a % 2 == 1
    ),
    "scatter_": lambda m, x, y, a: x.reshape(-1).scatter_(
        0, places(m, x.reshape(-1), 0, 1, a), y.reshape(-1)[:1]
    ),
    "set an element": lambda m, x, y, a: assigned(x, (..., 0), 0.5),
    "set a row": lambda m, x, y, a: assigned(x, 0, y.mean()),
    "set a slice": lambda m, x, y, a: assigned(x, slice(1, None, 2), y.mean()),
    "set by a mask": lambda m, x, y, a: assigned(x, chosen(x, a), 0.1),
    "set by places": lambda m, x, y, a: assigned(x, places(m, x, 0, 2, a), y.mean()),
    "set all": lambda m, x, y, a: assigned(x, slice(None), y),
    "add_ to a row": lambda m, x, y, a: x[0].add_(y.mean()),
    "mul_ of a transpose": lambda m, x, y, a: x.mT.mul_(0.5),
    "add_ to a diagonal": lambda m, x, y, a: x.diagonal().add_(0.1),
    "add_ to the real parts": lambda m, x, y, a: x.real.add_(0.1),
    "fill the diagonal": lambda m, x, y, a: x.fill_diagonal_(0.3),
    "add into an output": lambda m, x, y, a: torch.add(x, y, out=x.detach()),
    "foreach_add_": lambda m, x, y, a: torch._foreach_add_([x, x], [y.expand(x.shape).clone()] * 2),
    "add_ to chunks": lambda m, x, y, a: [one.add_(0.1) for one in x.chunk(2)],
}


def written(change: Callable[[Machine, Any, Any, int], Any]) -> Callable[..., None]:
    def step(m: Machine, a: int, b: int, c: int, d: int) -> None:
        x = m.pick(a)
        with torch.no_grad() if d % 4 == 0 else contextlib.nullcontext():
            change(m, x, m.fitting(x, b), c)

    return step


rows(7, {name: written(change) for name, change in IN_PLACE.items()})


# --- histories, hooks and backward passes -------------------------------------------------------


class Bent(torch.autograd.Function):  # type: ignore[misc]  # PyTorch has no types here
    """A function with a gradient of its own, which is differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.conj() * 2 * ctx.factor, None


class Marked(torch.autograd.Function):  # type: ignore[misc]  # PyTorch has no types here
    """A function that writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(0.7)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 0.7


def loss_of(x: Any) -> Any:
    x = real(x)
    weights = torch.arange(x.numel(), dtype=torch.float64).add(0.3).cos().reshape(x.shape)
    return (x * weights.to(x.dtype).to(x.device)).sum()


def leaves_of(m: Machine) -> list[Any]:
    return [x for x in m.tensors if x.is_leaf and x.requires_grad]


def record(m: Machine, *grads: Any) -> None:
    """Record gradients; those of a backward pass in batches have no elements of their own."""
    if not any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in grads if x is not None):
        m.records.append([None if x is None else x.detach().clone() for x in grads])


def hooked(m: Machine, a: int, b: int, c: int, d: int) -> None:
    x = m.pick(a)

    def hook(grad: Any) -> Any:
        record(m, grad)
        return grad * 0.5 if b % 2 else None

    x.register_hook(hook)


def hooked_node(m: Machine, a: int, b: int, c: int, d: int) -> None:
    node = m.pick(a).grad_fn
    if node is not None:
        node.register_hook(lambda to_x, to_y: record(m, *to_y))


def hooked_accumulation(m: Machine, a: int, b: int, c: int, d: int) -> None:
    leaves = leaves_of(m)
    if leaves:
        leaves[a % len(leaves)].register_post_accumulate_grad_hook(
            lambda x: x.grad.mul_(0.5) if b % 2 else record(m, x.grad)
        )


def passed_back(m: Machine, a: int, b: int, c: int, d: int) -> None:
    loss_of(m.pick(a)).backward(retain_graph=b % 3 != 0)


def passed_back_by_several(m: Machine, a: int, b: int, c: int, d: int) -> None:
    losses = [m.pick(a), m.pick(b)]
    torch.autograd.backward(
        losses, [torch.ones_like(x) * 0.5 for x in losses], retain_graph=c % 2 == 0
    )


def passed_back_with_a_graph(m: Machine, a: int, b: int, c: int, d: int) -> None:
    loss_of(m.pick(a)).backward(create_graph=True)


def differentiated(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    leaves = leaves_of(m)
    inputs = leaves[b % len(leaves) :][:2] if leaves else [m.pick(c)]
    return torch.autograd.grad(
        loss_of(m.pick(a)), inputs, create_graph=c % 3 != 0, retain_graph=True, allow_unused=True
    )


def differentiated_by_intermediates(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    return torch.autograd.grad(
        loss_of(m.pick(a)),
        m.pick(b),
        create_graph=c % 2 == 0,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=d % 2 == 0,
    )


def differentiated_in_batches(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    y, x = m.pick(a), m.pick(b)
    if y.retains_grad or x.retains_grad:
        return None  # the gradient that is kept has no elements
    vectors = torch.stack([torch.ones_like(y), torch.full_like(y, 0.5)])
    return torch.autograd.grad(
        y, x, vectors, is_grads_batched=True, retain_graph=True, allow_unused=True
    )


def descended(m: Machine, a: int, b: int, c: int, d: int) -> None:
    with torch.no_grad():
        for x in leaves_of(m):
            if x.grad is not None:
                x -= 0.1 * x.grad.clamp(-1, 1) if not x.is_complex() else 0.1 * x.grad


def optimized(m: Machine, a: int, b: int, c: int, d: int) -> None:
    leaves = [x for x in leaves_of(m) if x.grad is not None and x.grad.grad_fn is None]
    if leaves:
        # With a small eps, gradients that are rounding errors would be divided by their size.
        options = ({}, {"momentum": 0.9}, {"eps": 0.1})[a % 3]
        optimizer = (torch.optim.SGD, torch.optim.SGD, torch.optim.Adam)[a % 3](
            leaves, lr=0.05, **options
        )
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=b % 2 == 0)


def cleared(m: Machine, a: int, b: int, c: int, d: int) -> None:
    for x in leaves_of(m):
        if a % 2:
            x.grad = None
        elif x.grad is not None:
            x.grad.detach_().zero_()


def checkpointed(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    x = m.pick(a)
    return checkpoint(lambda x: (x.sin() * x).cumsum(-1), x, use_reentrant=b % 4 == 0)


def offloaded(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    x = m.pick(a)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one * 1, lambda one: one):
        return (x * x).exp().tanh() if b % 2 else x.sin() * x


def without_gradient(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    with torch.no_grad():
        x = m.pick(a)
        return x.mT if b % 2 else x * 2


def leaf(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    return m.pick(a).detach().clone().requires_grad_()


def retained(m: Machine, a: int, b: int, c: int, d: int) -> None:
    m.pick(a).retain_grad()


def mapped(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    x = m.pick(a)
    functions = (
        torch.func.grad(lambda x: loss_of(x.sin() * x)),
        torch.func.vmap(lambda row: (row * row).sum() + row),
        lambda x: torch.func.jvp(lambda x: x.tanh(), (x,), (x * 0.5,))[1],
        lambda x: torch.func.vjp(lambda x: x.square(), x)[1](x)[0],
    )
    return functions[b % 4](x)


def jacobian(m: Machine, a: int, b: int, c: int, d: int) -> Any:
    x = m.pick(a).reshape(-1)[:3]
    return torch.autograd.functional.jacobian(
        lambda x: x.sin() * x.sum(), x, create_graph=b % 2 == 1
    )


def swapped_data(m: Machine, a: int, b: int, c: int, d: int) -> None:
    x = m.pick(a)
    x.data = x.data * 0.5


rows(
    9,
    {
        "hook": hooked,
        "hook of a node": hooked_node,
        "hook after accumulation": hooked_accumulation,
        "backward": passed_back,
        "backward again": passed_back,
        "backward of several": passed_back_by_several,
        "backward with a graph": passed_back_with_a_graph,
        "grad": differentiated,
        "grad by another tensor": differentiated_by_intermediates,
        "grad in batches": differentiated_in_batches,
        "descend": descended,
        "optimizer": optimized,
        "clear gradients": cleared,
        "checkpoint": checkpointed,
        "saved tensors hooks": offloaded,
        "no_grad": without_gradient,
        "new leaf": leaf,
        "retain_grad": retained,
        "own function": lambda m, a, b, c, d: Bent.apply(m.pick(a), 0.5),
        "own function in place": lambda m, a, b, c, d: Marked.apply(m.pick(a)),
        "torch.func": mapped,
        "jacobian": jacobian,
        "data": swapped_data,
        "the gradient as a tensor": lambda m, a, b, c, d: m.pick(a).grad,
    },
)

BACKWARD: Final = frozenset(name for name in STEPS if name.startswith(("backward", "grad")))


# --- programs -----------------------------------------------------------------------------------


def generated(seed: int, length: int = 24) -> Program:
    """Return the program of a seed; it ends with a backward pass of its last tensor."""
    draw = random.Random(seed)
    leaves = [(draw.choice(SHAPES), draw.random() < 0.8) for _ in range(draw.randint(2, 4))]
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    steps = [
        Step(name, tuple(draw.randrange(60) for _ in range(4)))  # type: ignore[arg-type]
        for name in draw.choices(names, weights, k=draw.randint(4, length))
    ]
    dtype = draw.choices(list(DTYPES), (8, 1, 2))[0]
    return Program(seed, dtype, tuple(leaves), (*steps, Step("backward", (0, 1, 0, 0))))


def history(x: Any) -> tuple[Any, ...]:
    """Return what PyTorch knows of a tensor without its elements."""
    try:
        node = x.grad_fn
    except (
        IndexError,
        RuntimeError,
    ) as error:  # of a view whose base was written in a forbidden way
        return (str(error),)
    return (
        tuple(x.shape), x.dtype, x.requires_grad, x.is_leaf,
        # Nodes may differ: for example, the CPU's view of a base that was written is as_strided.
        node is not None, x.grad is not None if x.is_leaf or x.retains_grad else None,
    )  # fmt: skip


def has_gradient(x: Any) -> bool:
    try:
        found: bool = x.is_leaf or x.retains_grad
        return found
    except RuntimeError:  # of a view whose base was written in a forbidden way
        return False


def is_used(made: Any) -> bool:
    if not isinstance(made, torch.Tensor) or made.numel() > MOST_ELEMENTS:
        return False
    return bool(made.dtype.is_floating_point or made.dtype.is_complex)


def tensors_of(made: Any) -> list[Any]:
    return [one for one in (made if isinstance(made, tuple | list) else [made]) if is_used(one)]


def bounded(x: Any) -> bool:
    """Return whether later steps may use a tensor of the CPU as it is."""
    numbers = real(x.detach())
    return not numbers.numel() or bool((numbers.abs() < LARGEST).all())


def carried_out(step: Step, m: Machine) -> tuple[list[Any], Exception | None]:
    try:
        return tensors_of(STEPS[step.name](m, *step.numbers)), None
    except Exception as error:
        return [], error


def refusal(error: Exception | None) -> str:
    """Return the kind of error that a program can expect. Only index errors are caught as such."""
    return "none" if error is None else "index" if isinstance(error, IndexError) else "other"


def close(ours: Any, theirs: Any, bound: float, where: str) -> None:
    if isinstance(theirs, list):
        if len(ours) != len(theirs):
            raise Difference(f"{where}: {len(ours)} instead of {len(theirs)}")
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            close(one, other, bound, f"{where}[{at}]")
        return
    if ours is None or theirs is None:
        if ours is not theirs:
            raise Difference(f"{where}: {ours} instead of {theirs}")
        return
    if any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in (ours, theirs)):
        return  # left over from a backward pass in batches
    try:
        torch.testing.assert_close(
            ours.detach().cpu(), theirs.detach(), rtol=bound, atol=bound, equal_nan=True
        )
    except (AssertionError, RuntimeError) as error:
        raise Difference(f"{where}: {error}") from None


def compare(program: Program, device: Any, watch: bool = False) -> int:  # noqa: C901
    """Run a program on both devices. Return how many steps both carried out.

    Raises ``Difference``. ``watch`` compares all elements after each step.
    """
    theirs, ours = Machine(program, "cpu"), Machine(program, device)
    done = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, step in enumerate(program.steps):
            expected, error = carried_out(step, theirs)
            if isinstance(error, NotImplementedError) or "is not implemented" in str(error):
                break  # the burn device may have it
            if error is not None and any(text in str(error) for text in COMPUTED_HERE):
                break
            found, own_error = carried_out(step, ours)
            if own_error is not None and REFUSED_HERE in str(own_error):
                return done
            where = f"step {place}, {step}"
            if refusal(own_error) != refusal(error):
                raise Difference(f"{where}: {own_error!r} instead of {error!r}")
            if error is not None:
                if step.name in BACKWARD:
                    break  # how far a failed backward pass came is undefined
                continue
            done += 1
            if len(found) != len(expected):
                raise Difference(f"{where}: {len(found)} tensors instead of {len(expected)}")
            for x, y in zip(found, expected, strict=True):
                if not bounded(y):
                    x, y = (
                        x.tanh() if not x.is_complex() else x * 0,
                        y.tanh() if not y.is_complex() else y * 0,
                    )
                ours.tensors.append(x)
                theirs.tensors.append(y)
            for at, (x, y) in enumerate(zip(ours.tensors, theirs.tensors, strict=True)):
                if history(x) != history(y):
                    raise Difference(f"{where}, tensor {at}: {history(x)} instead of {history(y)}")
            if watch:
                compare_elements(ours, theirs, bound_of(theirs, program), where)
            if len(theirs.tensors) > MOST_TENSORS or not all(map(bounded, theirs.tensors)):
                break
        compare_elements(ours, theirs, bound_of(theirs, program), "at the end")
    return done


def bound_of(m: Machine, program: Program) -> float:
    narrow = any(x.dtype in (torch.float32, torch.complex64) for x in m.tensors)
    return DTYPES["float32" if narrow else program.dtype]


def compare_elements(ours: Machine, theirs: Machine, bound: float, where: str) -> None:
    def with_gradients(m: Machine) -> list[Any]:
        kept = [x.grad if has_gradient(x) else None for x in m.tensors]
        return [m.tensors, kept, m.records]

    for name, found, expected in zip(
        ("tensors", "gradients", "records"),
        with_gradients(ours),
        with_gradients(theirs),
        strict=True,
    ):
        close(found, expected, bound, f"{where}, {name}")


def shrunk(program: Program, device: Any, reason: Difference) -> tuple[Program, Difference]:
    """Return a program without the steps that its difference does not need, and the difference.

    If another run has no difference, it returns the whole program: the first run differed because
    of what the device remembered of earlier programs.
    """

    def difference(candidate: Program) -> Difference | None:
        try:
            compare(candidate, device)
        except Difference as found:
            return found
        return None

    if difference(program) is None:
        return program, reason
    at = len(program.steps)
    while at:
        at -= 1
        candidate = program._replace(steps=program.steps[:at] + program.steps[at + 1 :])
        found = difference(candidate)
        if found is not None:
            program, reason = candidate, found
            at = min(at, len(program.steps))
    return program, reason


def differences(
    seeds: Iterator[int], device: Any, seconds: float
) -> Iterator[tuple[int, tuple[Program, Difference] | None]]:
    """Compare programs; return how many steps each has, and those that differ."""
    started = time.monotonic()
    for seed in seeds:
        if time.monotonic() - started > seconds:
            return
        program = generated(seed)
        try:
            yield compare(program, device), None
        except Difference as found:
            yield 0, (program, found)


def main() -> int:
    """Compare programs of consecutive seeds, and print those that differ, shrunk."""
    import burn_remote.torch as brt

    parser = argparse.ArgumentParser(prog="python -m differential.torch_autograd")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--programs", type=int, default=10**9, help="end after so many programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--keep-going", action="store_true", help="continue after a difference")
    given = parser.parse_args()
    device = brt.local()
    programs = steps = wrong = 0
    seeds = iter(range(given.seed, given.seed + given.programs))
    for done, found in differences(seeds, device, given.seconds):
        programs, steps = programs + 1, steps + done
        if found is not None:
            wrong += 1
            program, first = found
            least, reason = shrunk(program, device, first)
            sys.stdout.write(f"{least}\n{reason}\n\n")
            sys.stdout.flush()
            if not given.keep_going:
                break
    sys.stdout.write(f"{programs:,} programs, {steps:,} steps, {wrong:,} differences\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
