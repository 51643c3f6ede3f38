"""LLVM assembly of the inner loop of a ufunc that computes several exact functions.

The loop has the signature that NumPy gives inner loops: ``void(ptr args, ptr dimensions, ptr steps,
ptr data)`` with the addresses of the operands and results, the number of elements, and the bytes
between the elements of each array. The loop accepts any steps. If the elements of each array are
consecutive, or one element is repeated where its shape says so, a second version of the loop runs,
which LLVM vectorizes.

NumPy calls a loop only with results that overlap no operand, or whose elements are exactly those of
an operand. So no iteration depends on another. The metadata of the second version tells LLVM so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from burn_remote_server.fusion.cpu.kernel_source import (
    KernelArray,
    KernelStep,
    computed,
    literal,
    load,
    memory_type,
    store,
    type_name,
)

__all__ = ["LOOP_NAME", "loop_source"]

LOOP_NAME = "loop"


def loop_source(
    operands: Sequence[KernelArray],
    constants: Sequence[Any],
    steps: Sequence[KernelStep],
    results: Sequence[int],
) -> str:
    """Return the assembly of a loop.

    The values of its steps are the operands, then ``constants``, which are zero-dimensional arrays,
    then the results of the steps. ``results`` are the values that it stores. An operand with
    ``is_row`` has one element for each iteration of most calls, and otherwise one element for all
    iterations.
    """
    dtypes = [
        *[each.dtype for each in operands],
        *[each.dtype for each in constants],
        *[each.dtype for each in steps],
    ]
    arrays = [*operands, *[KernelArray(dtypes[value]) for value in results]]
    lines = [*_version("fast", arrays, len(operands), constants, steps, results, dtypes)]
    lines += _version("slow", arrays, len(operands), constants, steps, results, dtypes)
    lines += _entry(arrays)
    lines += ["!0 = distinct !{}", "!1 = distinct !{!1, !2}"]
    lines += ['!2 = !{!"llvm.loop.parallel_accesses", !0}']
    # Half of the time to compile both versions went into vectors of strided elements.
    lines += ["!3 = distinct !{!3, !4, !5}"]
    lines += [
        '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
        '!5 = !{!"llvm.loop.unroll.disable"}',
    ]
    lines += [""]
    return "\n".join(lines)


def _entry(arrays: Sequence[KernelArray]) -> list[str]:
    """Return the function that loads the arguments and chooses a version."""
    lines = [
        f"define void @{LOOP_NAME}(ptr %args, ptr %dimensions, ptr %steps, ptr %data) {{",
        "entry:",
        "  %n = load i64, ptr %dimensions",
        "  %fits = icmp eq i64 0, 0",
    ]
    all_fit = "%fits"
    for place, array in enumerate(arrays):
        wanted = array.dtype.itemsize if array.is_row else 0
        lines += [
            f"  %a{place} = getelementptr ptr, ptr %args, i64 {place}",
            f"  %p{place} = load ptr, ptr %a{place}",
            f"  %b{place} = getelementptr i64, ptr %steps, i64 {place}",
            f"  %s{place} = load i64, ptr %b{place}",
            f"  %c{place} = icmp eq i64 %s{place}, {wanted}",
            f"  %d{place} = and i1 {all_fit}, %c{place}",
        ]
        all_fit = f"%d{place}"
    arguments = _arguments(len(arrays))
    return [
        *lines,
        "  %some = icmp sgt i64 %n, 0",
        "  br i1 %some, label %choose, label %exit",
        "choose:",
        f"  br i1 {all_fit}, label %fast, label %slow",
        "fast:",
        f"  call void @fast({arguments})",
        "  br label %exit",
        "slow:",
        f"  call void @slow({arguments})",
        "  br label %exit",
        "exit:",
        "  ret void",
        "}",
    ]


def _arguments(count: int) -> str:
    pointers = [f"ptr %p{place}" for place in range(count)]
    return ", ".join([*pointers, *[f"i64 %s{place}" for place in range(count)], "i64 %n"])


def _version(
    name: str,
    arrays: Sequence[KernelArray],
    count: int,
    constants: Sequence[Any],
    steps: Sequence[KernelStep],
    results: Sequence[int],
    dtypes: Sequence[np.dtype[Any]],
) -> list[str]:
    """Return the loop for consecutive elements (``fast``) or for any steps (``slow``)."""
    is_fast = name == "fast"
    before = [*_literals(count, constants)]
    body: list[str] = []
    for place, array in enumerate(arrays):
        if not is_fast:
            body += [
                f"  %o{place} = mul i64 %i, %s{place}",
                f"  %e{place} = getelementptr i8, ptr %p{place}, i64 %o{place}",
            ]
        elif array.is_row:
            body.append(
                f"  %e{place} = getelementptr {memory_type(array.dtype)}, ptr %p{place}, i64 %i"
            )
    for place, array in enumerate(arrays[:count]):
        if is_fast and not array.is_row:
            before += load(place, array.dtype, f"p{place}")
        else:
            body += _marked(load(place, array.dtype, f"e{place}"), is_fast)
    first = count + len(constants)
    for place, step in enumerate(steps):
        body += computed(first + place, step, [dtypes[value] for value in step.operands])
    for place, value in enumerate(results):
        body += _marked(store(count + place, value, dtypes[value]), is_fast)
    metadata = "!1" if is_fast else "!3"
    return [
        f"define internal void @{name}({_arguments(len(arrays))}) noinline {{",
        "entry:",
        *before,
        "  br label %row",
        "row:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %row ]",
        *body,
        "  %j = add i64 %i, 1",
        "  %more = icmp slt i64 %j, %n",
        f"  br i1 %more, label %row, label %exit, !llvm.loop {metadata}",
        "exit:",
        "  ret void",
        "}",
    ]


def _marked(lines: Iterable[str], is_fast: bool) -> list[str]:
    """Return instructions; if ``is_fast``, mark loads and stores as independent of iterations."""
    if not is_fast:
        return [*lines]
    return [
        f"{line}, !llvm.access.group !0" if " load " in line or " store " in line else line
        for line in lines
    ]


def _literals(first: int, constants: Sequence[Any]) -> list[str]:
    """Return the instructions that name the constants, from the value ``first`` on."""
    lines = []
    for place, constant in enumerate(constants, first):
        number = f"{type_name(constant.dtype)} {literal(constant)}"
        lines.append(f"  %v{place} = select i1 true, {number}, {number}")
    return lines
