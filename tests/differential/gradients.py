"""Random differentiable programs, whose gradients are compared with finite differences.

A program computes tensors from earlier ones, and sums the tensors that no step used, with random
weights. Its derivative in a random direction is compared with a central difference in float64. Two
steps must give the same difference; if they do not, there is a kink between the two points, and the
program is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import burn_remote as br
import burn_remote.functional as F

__all__ = ["Comparison", "GradientMismatch", "compare", "generated"]

Array = np.ndarray[Any, Any]
Random = np.random.Generator
Function = Callable[..., br.Tensor]

STEP: Final = 1e-5
FIRST_BOUND: Final = 1e-6
SECOND_BOUND: Final = 1e-5
# Tensors with larger numbers are bounded by ``tanh`` before they are used again.
MOST: Final = 5.0
MOST_ELEMENTS: Final = 200
# If all elements are equal, finite differences of these functions measure only rounding errors.
ROOTS: Final = ("std", "vector_norm")
LEAST_ROOT: Final = 1e-3


class GradientMismatch(AssertionError):
    """A gradient differs from the finite difference."""


class Step(NamedTuple):
    """A function of tensors that were made by earlier steps."""

    name: str
    function: Function
    operands: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'x{one}' for one in self.operands)})"


class Program(NamedTuple):
    """Inputs, and steps of which each appends a tensor."""

    inputs: tuple[Array, ...]
    steps: tuple[Step, ...]
    seed: int

    def run(self, tensors: Sequence[br.Tensor]) -> br.Tensor:
        """Return the weighted sum of the tensors that no step used."""
        made = [*tensors]
        for step in self.steps:
            made.append(step.function(*[made[one] for one in step.operands]))
        used = {one for step in self.steps for one in step.operands}
        random = np.random.default_rng(self.seed)
        total = br.zeros((), dtype=br.float64, device=made[0].device)
        for place, x in enumerate(made):
            weights = random.normal(size=x.shape)
            if place not in used and x.size:
                total = total + (x * br.tensor(weights, device=x.device)).sum()
        return total

    def __str__(self) -> str:
        lines = [f"x{place} = {array!r}" for place, array in enumerate(self.inputs)]
        first = len(lines)
        lines += [f"x{first + place} = {step}" for place, step in enumerate(self.steps)]
        return f"seed {self.seed}:\n" + "\n".join(lines)


class Comparison(NamedTuple):
    """Whether the first and the second derivative were compared, and not skipped at a kink."""

    first: bool
    second: bool


def generated(seed: int, device: br.Device) -> Program:
    """Return the program of a seed: 5 to 30 steps on one to three inputs."""
    random = np.random.default_rng(seed)
    inputs = tuple([_array(random) for _ in range(random.integers(1, 4))])
    made = [br.tensor(array, device=device) for array in inputs]
    steps: list[Step] = []
    count = int(random.integers(5, 31))
    while len(steps) < count:
        name = str(random.choice([*OPERATIONS]))
        first = _chosen(random, made)
        drawn = OPERATIONS[name](random, made[first])
        operands: tuple[int, ...] = (first,)
        if isinstance(drawn, _Binary):
            second = _partner(random, made, made[first], drawn)
            if second is None:
                continue
            function: Function = drawn.function
            operands = (first, second)
        elif drawn is None:
            continue
        else:
            function = drawn
        out = function(*[made[one] for one in operands])
        if out.size > MOST_ELEMENTS or (name in ROOTS and (out < LEAST_ROOT).any().item()):
            continue
        steps.append(Step(name, function, operands))
        made.append(out)
        if out.size and not np.abs(out.numpy()).max() < MOST:
            steps.append(Step("tanh", br.tanh, (len(made) - 1,)))
            made.append(br.tanh(out))
    return Program(inputs, tuple(steps), seed)


def compare(program: Program, device: br.Device) -> Comparison:
    """Compare the derivatives of a program. Raises ``GradientMismatch``."""
    random = np.random.default_rng(program.seed + 1)
    way = [np.asarray(random.normal(size=array.shape)) for array in program.inputs]
    other = [np.asarray(random.normal(size=array.shape)) for array in program.inputs]

    def value(distance: float) -> float:
        moved = [a + distance * b for a, b in zip(program.inputs, way, strict=True)]
        return float(program.run([br.tensor(one, device=device) for one in moved]).item())

    def slope(distance: float) -> float:
        moved = [a + distance * b for a, b in zip(program.inputs, way, strict=True)]
        found, _ = _derivative(program, moved, other, None, device)
        return found

    first, second = _derivative(program, program.inputs, way, other, device)
    compared_first = _check(program, "first", first, value, FIRST_BOUND)
    compared_second = compared_first and _check(program, "second", second, slope, SECOND_BOUND)
    return Comparison(compared_first, compared_second)


def _derivative(
    program: Program,
    inputs: Sequence[Array],
    way: Sequence[Array],
    second_way: Sequence[Array] | None,
    device: br.Device,
) -> tuple[float, float]:
    """Return the derivative along ``way``, and that of the derivative along ``second_way``."""
    leaves = [br.tensor(array, device=device).requires_grad_() for array in inputs]
    total = program.run(leaves)
    is_second = second_way is not None
    if not total.requires_grad:
        return 0.0, 0.0
    found = br.autograd.grad(total, leaves, create_graph=is_second, allow_unused=True)
    first = _along(found, way)
    if second_way is None:
        return first, 0.0
    pairs = [
        (one, br.tensor(to, device=device))
        for one, to in zip(found, second_way, strict=True)
        if one is not None and one.requires_grad
    ]
    if not pairs:
        return first, 0.0
    slopes, weights = [one for one, _ in pairs], [to for _, to in pairs]
    again = br.autograd.grad(slopes, leaves, weights, allow_unused=True)
    return first, _along(again, way)


def _along(gradients: Sequence[br.Tensor | None], way: Sequence[Array]) -> float:
    pairs = zip(gradients, way, strict=True)
    return sum(float((one.detach().numpy() * to).sum()) for one, to in pairs if one is not None)


def _check(
    program: Program, order: str, found: float, value: Callable[[float], float], bound: float
) -> bool:
    wide, narrow = [(value(step) - value(-step)) / (2 * step) for step in (STEP, STEP / 2)]
    scale = bound * (1 + abs(narrow))
    if not abs(wide - narrow) < scale:
        return False
    if not abs(found - narrow) < 10 * scale:
        raise GradientMismatch(
            f"the {order} derivative is {found!r}, but the finite difference {narrow!r}\n{program}"
        )
    return True


# -- Drawing --------------------------------------------------------------------------------------


class _Binary(NamedTuple):
    """A function of two tensors: of any that broadcast, or of equal shape."""

    function: Function
    broadcasts: bool = True


Drawn = Function | _Binary | None
Operation = Callable[[Random, br.Tensor], Drawn]


def _array(random: Random) -> Array:
    rank = int(random.integers(0, 4))
    sizes = [int(random.choice([1, 2, 3, 4], p=[0.2, 0.3, 0.3, 0.2])) for _ in range(rank)]
    if rank and random.random() < 0.02:
        sizes[0] = 0
    return np.asarray(random.normal(size=sizes))


def _chosen(random: Random, made: Sequence[br.Tensor]) -> int:
    """Choose a tensor, the latest with greater probability."""
    if random.random() < 0.6:
        return len(made) - 1 - int(random.integers(0, min(3, len(made))))
    return int(random.integers(0, len(made)))


def _partner(random: Random, made: Sequence[br.Tensor], x: br.Tensor, drawn: _Binary) -> int | None:
    fitting = []
    for place, y in enumerate(made):
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            continue
        if drawn.broadcasts or x.shape == y.shape:
            fitting.append(place)
    return int(random.choice(fitting)) if fitting else None


def _always(function: Function) -> Operation:
    return lambda random, x: function


def _both(function: Function, *, broadcasts: bool = True) -> Operation:
    return lambda random, x: _Binary(function, broadcasts)


def _with_axis(function: Callable[[br.Tensor, int], br.Tensor]) -> Operation:
    """Draw an axis that is not empty."""

    def draw(random: Random, x: br.Tensor) -> Drawn:
        axes = [axis for axis, size in enumerate(x.shape) if size]
        if not axes:
            return None
        axis = int(random.choice(axes))
        return lambda x: function(x, axis)

    return draw


def _reduction(name: str) -> Operation:
    def draw(random: Random, x: br.Tensor) -> Drawn:
        if 0 in x.shape:
            return None
        axes = [axis for axis in range(x.ndim) if random.random() < 0.5]
        keeps = bool(random.random() < 0.5)
        return lambda x: getattr(br, name)(x, axis=tuple(axes) or None, keepdims=keeps)

    return draw


def _slice(random: Random, x: br.Tensor) -> Drawn:
    if not x.ndim:
        return None
    parts: list[Any] = []
    for size in x.shape:
        kind = random.integers(0, 4)
        if kind == 0 and size:
            parts.append(int(random.integers(-size, size)))
        elif kind == 1:
            parts.append(slice(None, None, int(random.choice([-2, -1, 2]))))
        elif kind == 2 and size > 1:
            parts.append(slice(int(random.integers(0, size - 1)), None))
        else:
            parts.append(slice(None))
    return lambda x: x[tuple(parts)]


def _picked(random: Random, x: br.Tensor) -> Drawn:
    axes = [axis for axis, size in enumerate(x.shape) if size]
    if not axes:
        return None
    axis = int(random.choice(axes))
    places = random.integers(0, x.shape[axis], size=int(random.integers(1, 5)))
    return lambda x: x.take(br.tensor(places, device=x.device), axis=axis)


def _gathered(random: Random, x: br.Tensor) -> Drawn:
    if not x.ndim or 0 in x.shape:
        return None
    axis = int(random.integers(0, x.ndim))
    indices = random.integers(0, x.shape[axis], size=x.shape)
    return lambda x: x.gather(axis, br.tensor(indices, device=x.device))


def _scattered(random: Random, x: br.Tensor) -> Drawn:
    if not x.ndim or 0 in x.shape:
        return None
    axis = int(random.integers(0, x.ndim))
    indices = random.integers(0, x.shape[axis], size=x.shape)
    update: Any = str(random.choice(["add", "assign", "min", "max"]))
    return _Binary(
        lambda x, y: x.scatter(axis, br.tensor(indices, device=x.device), y, update=update),
        broadcasts=False,
    )


def _assigned(random: Random, x: br.Tensor) -> Drawn:
    if not x.ndim or x.shape[0] < 2:
        return None
    start = int(random.integers(0, x.shape[0] - 1))
    return lambda x: x.set(slice(start, None), x[: x.shape[0] - start] * 2)


def _masked(random: Random, x: br.Tensor) -> Drawn:
    mask = random.random(x.shape) < 0.5
    return _Binary(lambda x, y: br.where(br.tensor(mask, device=x.device), x, y), broadcasts=False)


def _reshaped(random: Random, x: br.Tensor) -> Drawn:
    if not x.size:
        return None
    sizes = [size for size in range(1, x.size + 1) if x.size % size == 0]
    size = int(random.choice(sizes))
    return lambda x: x.reshape((size, -1))


def _permuted(random: Random, x: br.Tensor) -> Drawn:
    order = tuple(int(one) for one in random.permutation(x.ndim))
    return lambda x: x.permute_dims(order)


def _broadcast(random: Random, x: br.Tensor) -> Drawn:
    shape = tuple(int(random.integers(1, 4)) if size == 1 else size for size in x.shape)
    return lambda x: x.broadcast_to((2, *shape))


def _matrix(x: br.Tensor) -> br.Tensor:
    return x.reshape((x.shape[0] if x.ndim else 1, -1)) if x.size else br.zeros_like(x[None])


def _convolved(random: Random, x: br.Tensor) -> Drawn:
    if x.size < 3:
        return None
    stride, padding = int(random.integers(1, 3)), int(random.integers(0, 2))
    weight = random.normal(size=(2, 1, 3))
    return lambda x: F.conv1d(
        x.reshape((1, 1, -1)), br.tensor(weight, device=x.device), None, stride, padding
    )


def _pooled(random: Random, x: br.Tensor) -> Drawn:
    if x.size < 2:
        return None
    pool: Any = [F.max_pool1d, F.avg_pool1d][int(random.integers(0, 2))]
    return lambda x: pool(x.reshape((1, 1, -1)), 2, 1)


def _attended(random: Random, x: br.Tensor) -> Drawn:
    if not x.size:
        return None

    def attend(x: br.Tensor) -> br.Tensor:
        rows = _matrix(x)[None, None]
        return F.scaled_dot_product_attention(rows, rows, rows, is_causal=True)

    return attend


def _positive(x: br.Tensor) -> br.Tensor:
    return x * x + 0.5


OPERATIONS: Final[dict[str, Operation]] = {
    **{
        name: _always(getattr(br, name))
        for name in (
            *("tanh", "sin", "cos", "exp", "erf", "atan", "asinh", "square", "abs", "expm1"),
            *("negative", "sign", "floor", "positive"),
        )
    },
    **{
        name: _always(getattr(F, name))
        for name in (
            *("sigmoid", "silu", "gelu", "softplus", "relu", "leaky_relu", "elu", "mish"),
            *("hardswish", "softsign", "logsigmoid", "selu", "softshrink"),
        )
    },
    "log": _always(lambda x: br.log(_positive(x))),
    "sqrt": _always(lambda x: br.sqrt(_positive(x))),
    "rsqrt": _always(lambda x: br.rsqrt(_positive(x))),
    "reciprocal": _always(lambda x: br.reciprocal(_positive(x))),
    "log1p": _always(lambda x: br.log1p(x * x)),
    "power of 3": _always(lambda x: x**3),
    "power of 1.5": _always(lambda x: _positive(x) ** 1.5),
    "numbers": _always(lambda x: (2 - x) * 0.5 + 1 / (x * x + 1)),
    "clip": _always(lambda x: x.clip(-0.7, 0.9)),
    "remainder": _always(lambda x: x % 0.7),
    "add": _both(br.add),
    "subtract": _both(br.subtract),
    "multiply": _both(br.multiply),
    "divide": _both(lambda x, y: x / _positive(y)),
    "pow": _both(lambda x, y: _positive(x) ** br.tanh(y)),
    "maximum": _both(br.maximum),
    "minimum": _both(br.minimum),
    "atan2": _both(lambda x, y: br.atan2(x, _positive(y))),
    "where": _both(lambda x, y: br.where(x > y, x, y * 2)),
    "masked": _masked,
    "concat": _both(lambda x, y: br.concat([x, y, x], None)),
    "stack": _both(lambda x, y: br.stack([x, y], axis=0), broadcasts=False),
    "mse_loss": _both(F.mse_loss, broadcasts=False),
    "outer": _both(lambda x, y: br.outer(x.flatten()[:6], y.flatten()[:6])),
    **{
        name: _reduction(name)
        for name in ("sum", "mean", "max", "min", "prod", "var", "std", "max_abs", "vector_norm")
    },
    "cumulative_sum": _with_axis(lambda x, axis: br.cumulative_sum(x, axis)),
    "cumulative_prod": _with_axis(lambda x, axis: br.cumulative_prod(x, axis)),
    "cummax": _with_axis(lambda x, axis: br.cummax(x, axis)),
    "softmax": _with_axis(lambda x, axis: F.softmax(x, axis)),
    "log_softmax": _with_axis(lambda x, axis: F.log_softmax(x, axis)),
    "sort": _with_axis(lambda x, axis: br.sort(x, axis=axis)),
    "flip": _with_axis(lambda x, axis: br.flip(x, axis)),
    "roll": _with_axis(lambda x, axis: br.roll(x, 1, axis)),
    "diff": _with_axis(lambda x, axis: br.diff(x, axis=axis)),
    "repeat": _with_axis(lambda x, axis: br.repeat(x, 2, axis=axis)),
    "unfold": _with_axis(lambda x, axis: br.unfold(x, axis, 1 + (x.shape[axis] > 1), 1)),
    "layer_norm": lambda random, x: (
        (lambda x: F.layer_norm(x, x.shape[-1:])) if x.ndim and x.shape[-1] > 1 else None
    ),
    "tril": lambda random, x: br.tril if x.ndim > 1 else None,
    "matmul": lambda random, x: (lambda x: _matrix(x) @ _matrix(x).T) if x.size else None,
    "slice": _slice,
    "take": _picked,
    "gather": _gathered,
    "scatter": _scattered,
    "set": _assigned,
    "reshape": _reshaped,
    "permute": _permuted,
    "broadcast": _broadcast,
    "conv1d": _convolved,
    "pool": _pooled,
    "attention": _attended,
}
