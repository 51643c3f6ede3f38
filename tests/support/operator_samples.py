"""PyTorch's own samples of operators (``OpInfo``), compared between a burn device and the CPU."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["Count", "measure", "named"]

# Results that nobody can compare: random numbers, and memory that nobody has written.
UNDEFINED = frozenset(
    {
        "nn.functional.dropout",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "rand_like",
        "randn",
        "randn_like",
        "randint",
    }
)


@dataclass
class Count:
    """How many samples of an operator passed, and the reasons of those that did not."""

    passed: int = 0
    total: int = 0
    # Samples that passed, but whose results have other strides or another offset.
    restrided: int = 0
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)


def dtype_of(op: Any) -> Any:
    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype in op.dtypes:
            return dtype
    return None


def spread(samples: list[Any], most: int) -> Iterator[Any]:
    """Return at most ``most`` samples, evenly spaced."""
    step = max(len(samples) / most, 1)
    for index in range(min(most, len(samples))):
        yield samples[int(index * step)]


def moved(tree: Any, device: Any) -> Any:
    """Return copies of the tensors of a sample on a device, as leaves that keep their strides."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().clone().to(device).requires_grad_(x.requires_grad)
        if isinstance(x, torch.device):
            return torch.device(device)
        return "burn" if isinstance(x, str) and x == "cpu" and device == "burn" else x

    return _pytree.tree_map(move, tree)


def tensors_of(tree: Any) -> list[Any]:
    return [x for x in _pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def layout_of(x: Any) -> tuple[Any, ...]:
    """Return strides and offset; the strides of axes without a second element mean nothing."""
    if not x.numel():
        return ()
    strides = [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return (strides, x.storage_offset())


def run(op: Any, sample: Any, device: str, backward: bool) -> tuple[list[Any], list[Any]]:
    """Return results of a sample, or gradients of its inputs, as CPU tensors, and their layouts."""
    given = (sample.input, sample.args, sample.kwargs)
    given, args, kwargs = moved(given, device)
    result = op.op(given, *args, **kwargs)
    if backward and sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    results = tensors_of(result)
    if not backward:
        numbers = [x for x in _pytree.tree_leaves(result) if isinstance(x, int | float | bool)]
        seen = [x.detach().cpu() for x in results] + [torch.tensor(x) for x in numbers]
        return seen, [layout_of(x) for x in results]
    inputs = [x for x in tensors_of((given, args, kwargs)) if x.requires_grad]
    outputs = [x for x in results if x.requires_grad]
    if not outputs or not inputs:
        return [], []
    weights = [
        (torch.arange(x.numel(), dtype=torch.float64) * 0.7 + 0.3).cos().reshape(x.shape)
        for x in outputs
    ]
    cotangents = [w.to(x.dtype).to(x.device) for w, x in zip(weights, outputs, strict=True)]
    grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    seen = [torch.zeros(()) if grad is None else grad.cpu() for grad in grads]
    return seen, [None if grad is None else layout_of(grad) for grad in grads]


def compare(op: Any, sample: Any, backward: bool) -> str | None:
    """Return why a sample fails, ``None`` if it passes; "skip" if the CPU refuses it.

    "strides" says that it passes, and that results have other strides than the CPU's.
    """
    try:
        expected, layouts = run(op, sample, "cpu", backward)
    except Exception:
        return "skip"
    if backward and not expected:
        return "skip"
    try:
        seen, our_layouts = run(op, sample, "burn", backward)
    except Exception as error:
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:110]}"
    if len(seen) != len(expected):
        return f"{len(seen)} results instead of {len(expected)}"
    for ours, theirs in zip(seen, expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if op.name in UNDEFINED or sample.kwargs.get("dropout_p"):  # attention with dropout
            continue
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
        except AssertionError as error:
            return f"other values: {' '.join(str(error).split())[:90]}"
    return None if our_layouts == layouts else "strides"


def transposed(sample: Any) -> Any:
    """Return a sample with the same elements, whose last two axes are swapped in memory."""

    def turn(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dim() < 2:
            return x
        return x.detach().mT.contiguous().mT.requires_grad_(x.requires_grad)

    return sample.transform(turn)


def measure(op: Any, backward: bool, most: int, is_transposed: bool = False) -> Count:
    count = Count()
    dtype = torch.float32 if backward else dtype_of(op)
    if dtype is None or (backward and dtype not in op.dtypes):
        return count
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, backward), 400))
    except Exception:
        return count
    for drawn in spread(samples, most):
        sample = transposed(drawn) if is_transposed else drawn
        reason = compare(op, sample, backward)
        if reason == "skip":
            continue
        count.total += 1
        if reason in (None, "strides"):
            count.passed += 1
            count.restrided += reason == "strides"
        else:
            count.reasons[reason] += 1
    return count


def named(op: Any) -> str:
    variant = f" ({op.variant_test_name})" if op.variant_test_name else ""
    return f"{op.name}{variant}"
