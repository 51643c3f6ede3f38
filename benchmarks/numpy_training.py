"""Training steps in NumPy, each program in a process of its own.

By default, glibc returns the large arrays that a step frees to the system, so the next step takes
them as new pages: 83 page faults in a step 784-128-10, a third of its time. Whether that happens
depends on everything that the process has allocated before. In a benchmark's own process, the same
step took 280 or 410 µs. A separate process does only what a user's program would do.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = [
    "NumpyProgram",
    "StepTimes",
    "cross_entropy_arrays",
    "cross_entropy_step",
    "softmax_arrays",
    "softmax_step",
]

RATE: Final = 0.05
SHAPES: Final = ((128, 784), (128,), (10, 128), (10,))

# Settings with which glibc keeps what a step frees, so that the next step has no page faults.
KEPT_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}

Array = np.ndarray[Any, Any]


# -- steps of a perceptron 784-128-10 with 64 images ----------------------------------------------


def softmax_arrays() -> list[Any]:
    """Return images, one-hot labels and weights for ``softmax_step``."""
    random = np.random.default_rng(0)
    return [
        random.random((64, 784), np.float32),
        np.eye(10, dtype=np.float32)[random.integers(0, 10, 64)],
        random.standard_normal((784, 128), np.float32) * np.float32(0.05),
        np.zeros((1, 128), np.float32),
        random.standard_normal((128, 10), np.float32) * np.float32(0.05),
        np.zeros((1, 10), np.float32),
    ]


def softmax_step(x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, ...]:
    """Train by one batch."""
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    d_logits = (exp / exp.sum(axis=1, keepdims=True) - y) * (1 / 64)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(np.float32)
    return (
        w1 - x.T @ d_hidden * 0.1,
        b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1,
        w2 - hidden.T @ d_logits * 0.1,
        b2 - d_logits.sum(axis=0, keepdims=True) * 0.1,
    )


def cross_entropy_arrays() -> tuple[list[Array], Array, Array]:
    """Return weights, images and labels for ``cross_entropy_step``."""
    random = np.random.default_rng(0)
    weights = [random.normal(0, 0.05, shape).astype(np.float32) for shape in SHAPES]
    images = random.uniform(0, 1, (64, 784)).astype(np.float32)
    return weights, images, random.integers(0, 10, 64)


def cross_entropy_step(weights: list[Array], x: Array, labels: Array) -> tuple[list[Array], Array]:
    """Train by one batch; return the new weights and the loss."""
    first, bias, second, out_bias = weights
    hidden = x @ first.T + bias
    active = np.maximum(hidden, 0)
    scores = active @ second.T + out_bias
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(x))
    loss = -scores[rows, labels].mean()
    to_scores = np.exp(scores)
    to_scores[rows, labels] -= 1
    to_scores /= len(x)
    to_hidden = to_scores @ second
    to_hidden[hidden <= 0] = 0
    grads = (to_hidden.T @ x, to_hidden.sum(axis=0), to_scores.T @ active, to_scores.sum(axis=0))
    return [w - g * np.float32(RATE) for w, g in zip(weights, grads, strict=True)], loss


def _by_softmax_products() -> Callable[[int], None]:
    """Return a program that computes only the products of ``softmax_step``, in kept memory."""
    x, _, w1, _, w2, _ = softmax_arrays()
    hidden, d_hidden = np.empty((2, 64, 128), np.float32)
    logits = np.empty((64, 10), np.float32)
    grads = np.empty_like(w1), np.empty_like(w2)

    def train(steps: int) -> None:
        for _ in range(steps):
            np.matmul(x, w1, hidden)
            np.matmul(hidden, w2, logits)
            np.matmul(logits, w2.T, d_hidden)
            np.matmul(x.T, d_hidden, grads[0])
            np.matmul(hidden.T, logits, grads[1])

    return train


def _by_softmax() -> Callable[[int], None]:
    x, y, *arrays = softmax_arrays()

    def train(steps: int) -> None:
        weights: Any = arrays
        for _ in range(steps):
            weights = softmax_step(x, y, *weights)

    return train


def _by_cross_entropy() -> Callable[[int], None]:
    arrays, images, labels = cross_entropy_arrays()

    def train(steps: int) -> None:
        weights = arrays
        for _ in range(steps):
            weights, _ = cross_entropy_step(weights, images, labels)

    return train


PROGRAMS: Final = {
    "softmax": _by_softmax,
    "softmax products": _by_softmax_products,
    "cross entropy": _by_cross_entropy,
}


# -- processes ------------------------------------------------------------------------------------


class StepTimes(NamedTuple):
    """Elapsed and processor seconds of a step, and its page faults."""

    elapsed: float
    processor: float
    faults: float


class NumpyProgram:
    """A process that trains in NumPy when it is asked to.

    ``keeps_memory``: freed memory stays with the process.
    """

    def __init__(self, name: str, *, keeps_memory: bool = False) -> None:
        self._process: Final = subprocess.Popen(
            [sys.executable, __file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(KEPT_MEMORY if keeps_memory else {})},
        )

    def __enter__(self) -> NumpyProgram:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.communicate()

    def run(self, steps: int) -> StepTimes:
        """Train by some steps, and return what one of them took."""
        assert self._process.stdin is not None  # started with pipes
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return StepTimes(*json.loads(self._process.stdout.readline()))


def _used() -> tuple[float, float, int]:
    # Processor time of all threads: BLAS may use several.
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return time.perf_counter(), time.process_time(), faults


def main() -> None:
    """Run the program in the first argument for as many steps as each line of the input says."""
    train = PROGRAMS[sys.argv[1]]()
    for line in sys.stdin:
        steps = int(line)
        before = _used()
        train(steps)
        found = [(after - then) / steps for after, then in zip(_used(), before, strict=True)]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
