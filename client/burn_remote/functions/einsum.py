"""``einsum``: sums of products by Einstein's summation convention.

An equation becomes permutations, reshapes, sums, products and matrix products, so all dialects,
gradients and graphs support it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from burn_remote.diagnostics.invalid_calls import explained, no_tensor
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.arithmetic import multiply
from burn_remote.functions.casting import astype
from burn_remote.functions.einsum_plan import planned
from burn_remote.functions.linear_algebra import matmul
from burn_remote.functions.manipulation import permute_dims
from burn_remote.functions.matrix_parts import diagonal
from burn_remote.functions.operands import all_alike
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import BOOL, I64, Category
from burn_remote_protocol.errors import ArgumentMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["einsum"]


class _Term(NamedTuple):
    """A tensor and the labels of its axes."""

    labels: str
    tensor: Tensor


@explained
def einsum(equation: str, /, *operands: Tensor) -> Tensor:
    """Sum products of operands over the axes that the result lacks, as ``numpy.einsum`` does.

    ``einsum("bij,bjk->bik", x, y)`` multiplies matrices. A letter names an axis; equal letters have
    equal sizes, or size 1, which broadcasts. A letter twice in one operand takes its diagonal, and
    ``...`` stands for further axes. Without ``->``, the result has the letters that occur once, in
    alphabetical order. Operands of different dtypes are converted to their common dtype, which the
    result has. Sums of integers wrap around, and those of bools are a logical OR. The operands of a
    longer product are multiplied pair by pair, in the order of ``numpy.einsum_path``.

    Raises ``UsageError`` for a malformed equation, ``ShapeMismatch`` for shapes that do not fit it,
    and ``DTypeMismatch`` for operands without a common dtype.
    """
    if not isinstance(equation, str):
        raise UsageError(
            f"expected an equation such as 'ij,jk->ik' as the first argument, not "
            f"{type(equation).__name__}"
        )
    for place, operand in enumerate(operands):
        if not is_tensor(operand):
            raise ArgumentMismatch(no_tensor(f"operands[{place}]", operand))
    plan = planned(equation, tuple([x.shape for x in operands]))
    # ``matmul`` dequantizes quantized operands, which have no common dtype with others.
    if not any(x.dtype.category is Category.QUANTIZED for x in operands):
        operands = tuple(all_alike(operands))
    if all(x.dtype.is_bool for x in operands):
        return astype(einsum(equation, *[astype(x, I64) for x in operands]), BOOL)
    terms = [
        _without_repetitions(_Term(labels, x), plan.sizes)
        for labels, x in zip(plan.inputs, operands, strict=True)
    ]
    for places in plan.steps:
        chosen = [terms[place] for place in places]
        others = [term for place, term in enumerate(terms) if place not in places]
        product = chosen[0]
        for place, factor in enumerate(chosen[1:], 1):
            later = "".join([term.labels for term in (*others, *chosen[place + 1 :])])
            product = _contracted(product, factor, plan.output + later)
        terms = [*others, product]
    (last,) = terms
    result = _summed(last, plan.output)
    return permute_dims(result.tensor, [result.labels.index(label) for label in plan.output])


def _without_repetitions(term: _Term, sizes: dict[str, int]) -> _Term:
    """Take the diagonal of equal labels, and remove axes of size 1 that broadcast."""
    labels, x = term
    for label in sorted(set(labels)):
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            others = [place for place in range(len(labels)) if place not in (first, second)]
            x = diagonal(permute_dims(x, [*others, first, second]))
            labels = "".join([labels[place] for place in others]) + label
    broadcasts = [
        size == 1 and sizes[label] != 1 for label, size in zip(labels, x.shape, strict=True)
    ]
    kept = [place for place, drops in enumerate(broadcasts) if not drops]
    shape = tuple([x.shape[place] for place in kept])
    return _Term("".join([labels[place] for place in kept]), reshaped(x, shape))


def _summed(term: _Term, needed: str) -> _Term:
    """Sum over the axes whose labels are not needed."""
    axes = tuple([place for place, label in enumerate(term.labels) if label not in needed])
    if not axes:
        return term
    kept = "".join([label for label in term.labels if label in needed])
    return _Term(kept, sum(term.tensor, axis=axes, dtype=term.tensor.dtype))


def _contracted(first: _Term, second: _Term, needed: str) -> _Term:
    """Multiply two terms, and sum over the axes whose labels are not needed."""
    first = _summed(first, needed + second.labels)
    second = _summed(second, needed + first.labels)
    shared = [label for label in first.labels if label in second.labels]
    batch = "".join([label for label in shared if label in needed])
    inner = "".join([label for label in shared if label not in needed])
    left = "".join([label for label in first.labels if label not in second.labels])
    right = "".join([label for label in second.labels if label not in first.labels])
    sizes = dict(zip(first.labels, first.tensor.shape, strict=True))
    sizes.update(zip(second.labels, second.tensor.shape, strict=True))

    def arranged(term: _Term, *groups: str) -> Tensor:
        """Order the axes by groups of labels, and make each group one axis."""
        order = [term.labels.index(label) for label in "".join(groups)]
        shape = [math.prod(sizes[label] for label in group) for group in groups]
        return reshaped(permute_dims(term.tensor, order), tuple(shape))

    result = batch + left + right
    shape = tuple([sizes[label] for label in result])
    if inner:
        groups = (batch,) if batch else ()
        product = matmul(
            arranged(first, *groups, left, inner), arranged(second, *groups, inner, right)
        )
    else:
        product = multiply(
            reshaped(arranged(first, batch, left), _grouped(sizes, batch, left, "")),
            reshaped(arranged(second, batch, right), _grouped(sizes, batch, "", right)),
        )
    return _Term(result, reshaped(product, shape))


def _grouped(sizes: dict[str, int], *groups: str) -> tuple[int, ...]:
    return tuple([math.prod(sizes[label] for label in group) for group in groups])
