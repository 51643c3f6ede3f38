"""Compare burn devices with the CPU on the samples of PyTorch's own operator database (OpInfo).

For each operator of core ATen: its samples forward, and backward where it has a gradient, in
float32 (or the first dtype that the operator has). Every result and every gradient is compared with
the CPU's. Prints the counts; with ``--write`` it also writes the page ``docs/torch-coverage.md``.
It needs PyTorch and expecttest: ``make torch-coverage``.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

import burn_remote.torch as brt
from burn_remote.torch.aten.table import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "torch-coverage.md"

# Entries of the database whose samples call operators of core ATen that have no entry of their own.
REACHING = frozenset(
    {
        "cdist",
        "nn.functional.adaptive_avg_pool1d",
        "nn.functional.adaptive_avg_pool2d",
        "nn.functional.adaptive_avg_pool3d",
        "nn.functional.batch_norm",
        "nn.functional.conv1d",
        "nn.functional.conv2d",
        "nn.functional.conv3d",
        "nn.functional.conv_transpose1d",
        "nn.functional.conv_transpose2d",
        "nn.functional.conv_transpose3d",
        "nn.functional.cross_entropy",
        "nn.functional.dropout",
        "nn.functional.elu",
        "nn.functional.embedding",
        "nn.functional.embedding_bag",
        "nn.functional.fold",
        "nn.functional.group_norm",
        "nn.functional.interpolate",
        "nn.functional.layer_norm",
        "nn.functional.max_pool2d",
        "nn.functional.max_pool3d",
        "nn.functional.nll_loss",
        "nn.functional.pad",
        "nn.functional.pdist",
        "nn.functional.scaled_dot_product_attention",
        "log_softmax",
        "softmax",
        "fft.rfft",
        "fft.irfft",
    }
)
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


def core_names() -> set[str]:
    """Return the names of the operators of core ATen."""
    names = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket) and any(
            torch.Tag.core in getattr(packet, each).tags for each in packet.overloads()
        ):
            names.add(name)
    return names


def operators() -> list[Any]:
    """Return the entries of the database for core ATen."""
    core = core_names()
    found = [op for op in op_db if op.aten_name in core or op.name in core or op.name in REACHING]
    return sorted(found, key=lambda op: (op.name, op.variant_test_name))


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


def page(forward: dict[str, Count], backward: dict[str, Count]) -> str:
    lines = [
        "# Aten operations on burn devices",
        "",
        "Generated by `make torch-coverage` (`benchmarks/torch_coverage.py`) with PyTorch "
        f"{torch.__version__.split('+')[0]}. [torch.md](torch.md) describes how programs use them.",
        "",
        f"The table has {len(TABLE)} overloads. PyTorch's decompositions give the others, and the "
        "operations that write, such as `add_`, follow from those that do not.",
        "",
        "The samples are those of PyTorch's operator database (`OpInfo`) for the operators of core "
        "ATen, in float32, evenly spaced. Every result and gradient was compared with the CPU's.",
        "",
        "| | samples | passed | |",
        "| --- | --- | --- | --- |",
    ]
    for title, counts in (("forward", forward), ("backward", backward)):
        total = sum(one.total for one in counts.values())
        passed = sum(one.passed for one in counts.values())
        lines.append(f"| {title} | {total:,} | {passed:,} | {100 * passed / total:.1f} % |")
    for title, counts in (("Forward", forward), ("Backward", backward)):
        lines += ["", f"## {title}: samples that fail", "", "| operator | passed | reason |"]
        lines.append("| --- | --- | --- |")
        for name, count in counts.items():
            if count.passed < count.total:
                reason, times = count.reasons.most_common(1)[0]
                text = reason.replace("|", "\\|").replace("<", "\\<")
                lines.append(f"| `{name}` | {count.passed} of {count.total} | {times} ×: {text} |")
    overloads = sorted(func.name().removeprefix("aten::") for func in TABLE)
    lines += ["", "## Overloads of the table", "", ", ".join(f"`{name}`" for name in overloads)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators; by default all of core ATen")
    parser.add_argument("--most", type=int, default=20, help="samples of an operator")
    parser.add_argument("--transposed", action="store_true", help="swap two axes in memory")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    brt.local()
    counts: list[dict[str, Count]] = [{}, {}]
    for op in operators():
        if options.names and op.name not in options.names:
            continue
        print(named(op), end="\r", file=sys.stderr, flush=True)
        for backward in (False, True):
            if backward and not op.supports_autograd:
                continue
            count = measure(op, backward, options.most, options.transposed)
            counts[backward][named(op)] = count
            direction = "backward" if backward else "forward"
            if count.restrided:
                print(f"{named(op)} {direction} {count.restrided} x other strides")
            for reason, times in count.reasons.items():
                print(f"{named(op)} {direction} {count.passed}/{count.total} {times} x {reason}")
        sys.stdout.flush()
    for title, side in zip(("forward", "backward"), counts, strict=True):
        total = sum(one.total for one in side.values())
        passed = sum(one.passed for one in side.values())
        restrided = sum(one.restrided for one in side.values())
        print(f"{title}: {passed} of {total} samples, {100 * passed / max(total, 1):.1f} %")
        print(f"{title}: {restrided} of {passed} samples have other strides than on the CPU")
    if options.write:
        PAGE.write_text(page(*counts))


if __name__ == "__main__":
    main()
