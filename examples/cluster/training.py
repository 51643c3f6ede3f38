"""Data-parallel training on several nodes, with recovery from the loss of a node.

Every trainer has the same weights and its own part of each batch. It computes the gradients of its
part, the servers exchange them, and each adds them in the same order, so all trainers have the same
weights again, bit for bit. This program reads one number per step, the loss.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

import burn_remote as br
from cluster.digits_data import CLASSES, PIXELS, Digits
from cluster.nodes import Cluster, Node

__all__ = ["Training", "digest"]

HIDDEN: Final = 64
BATCH: Final = 120
LEARNING_RATE: Final = 0.3

# w1, b1, w2, b2 of 64 pixels → HIDDEN → 10 classes, one after the other in one flat tensor: the
# gradients of a step are then one move, not four.
SHAPES: Final = ((PIXELS, HIDDEN), (1, HIDDEN), (HIDDEN, CLASSES), (1, CLASSES))

Weights = dict[Node, br.Tensor]


@dataclass
class Training:
    """The state of a training; ``losses`` has one number for each step done."""

    cluster: Cluster
    train: Digits
    test: Digits
    losses: list[float] = field(default_factory=list)
    taken: int = 0  # steps, including repeated ones
    requests: int = 0  # of all steps, over all sessions
    seconds: float = 0.0  # duration of all steps
    _data: dict[Node, tuple[br.Tensor, br.Tensor]] = field(default_factory=dict)
    _images: dict[Node, br.Tensor] = field(default_factory=dict)  # to evaluate with
    # Weights by the number of completed steps. Each trainer keeps the weights before and after its
    # last step, so after the loss of a node the others have one of these in common.
    _weights: dict[int, Weights] = field(default_factory=dict)
    # A copy in this program: the fallback if all trainers are lost at the same time.
    _known: tuple[int, np.ndarray] = field(default_factory=lambda: (0, initial_weights()))

    def start(self) -> None:
        """Give every trainer its data and the initial weights."""
        self._spread(*self._known)

    def step(self) -> float:
        """Perform a step and return its loss. If one of ``FAILURES`` is raised, no step is counted.

        Only the read at the end waits.
        """
        nodes = self.cluster.trainers
        done = len(self.losses)
        before, started = self._asked(), time.perf_counter()
        weights = self._weights[done]
        start = done * BATCH % len(self.train.labels)
        rows = np.array_split(np.arange(start, start + BATCH), len(nodes))
        parts = [
            gradients(weights[node], *(d[part[0] : part[-1] + 1] for d in self._data[node]))
            for node, part in zip(nodes, rows, strict=True)
        ]
        sums = [
            functools.reduce(operator.add, [part.to(node.device) for part in parts])
            for node in nodes
        ]
        changed = {
            node: weights[node] - total[:-1] * LEARNING_RATE
            for node, total in zip(nodes, sums, strict=True)
        }
        loss = float(self.cluster.result(sums[0][-1:].read())[0])
        self.taken += 1
        self.requests += self._asked() - before
        self.seconds += time.perf_counter() - started
        self._weights = {done: weights, done + 1: changed}
        self.losses.append(loss)
        return loss

    def recover(self) -> None:
        """Continue with the remaining nodes, from the newest weights that any of them has.

        Raises ``TimeoutError`` if a node that may have them does not respond.
        """
        for done in sorted(self._weights, reverse=True):
            for node in self._holders(done):
                with contextlib.suppress(br.OperationFailed, br.ConnectionLost):
                    self._spread(done, self._read(done, node))
                    return
        self._spread(*self._known)

    def accuracy(self) -> float:
        """Move the weights to the evaluator and return its accuracy."""
        node = self.cluster.evaluator
        if node not in self._images:
            self._images[node] = br.tensor(self.test.pixels, device=node.device)
        done = len(self.losses)
        holders = self._holders(done)
        if not holders:
            raise br.SessionLost("no node that is left has the weights")
        weights = self._weights[done][holders[0]].to(node.device)
        _, logits = forward(unpacked(weights), self._images[node])
        answers = self.cluster.result(logits.argmax(axis=-1).read())
        return float(np.mean(np.asarray(answers).ravel() == self.test.labels))

    def weights(self) -> list[np.ndarray]:
        """Return the weights that each trainer has, flat, float32."""
        done = len(self.losses)
        found = [self._read(done, node) for node in self._holders(done)]
        self._known = done, found[0]
        return found

    def _holders(self, done: int) -> list[Node]:
        """Return the remaining nodes that have the weights after a number of steps."""
        return [node for node in self.cluster.alive if node in self._weights[done]]

    def _read(self, done: int, node: Node) -> np.ndarray:
        return np.asarray(self.cluster.result(self._weights[done][node].read()))

    def _spread(self, done: int, weights: np.ndarray) -> None:
        """Set the weights of every trainer, and the number of completed steps."""
        del self.losses[done:]
        nodes = self.cluster.trainers
        for node in nodes:
            if node not in self._data:
                self._data[node] = (
                    br.tensor(self.train.pixels, device=node.device),
                    br.tensor(self.train.one_hot, device=node.device),
                )
        self._weights = {done: {node: br.tensor(weights, device=node.device) for node in nodes}}

    def _asked(self) -> int:
        return sum(node.device.traffic.requests for node in self.cluster.nodes)


def initial_weights() -> np.ndarray:
    """Draw flat weights as He et al. (2015) advise for ReLU, the same at each call."""
    random = np.random.default_rng(0)
    drawn = [
        random.normal(0, (2 / rows) ** 0.5, (rows, columns)) if rows > 1 else np.zeros((1, columns))
        for rows, columns in SHAPES
    ]
    return np.concatenate([each.ravel() for each in drawn]).astype(np.float32)


def unpacked(flat: br.Tensor) -> list[br.Tensor]:
    """Return w1, b1, w2, b2 of flat weights."""
    tensors = []
    start = 0
    for rows, columns in SHAPES:
        stop = start + rows * columns
        tensors.append(flat[start:stop].reshape((rows, columns)))
        start = stop
    return tensors


def forward(weights: list[br.Tensor], x: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
    """Return the hidden layer [n, HIDDEN] and the logits [n, 10] for pixels [n, 64]."""
    w1, b1, w2, b2 = weights
    hidden = (x @ w1 + b1).relu()
    return hidden, hidden @ w2 + b2


def gradients(flat: br.Tensor, x: br.Tensor, y: br.Tensor) -> br.Tensor:
    """Return one part's share of the gradients and of the loss of a batch, in one flat tensor.

    The sum over all parts gives the gradients and the loss, the mean cross-entropy of the batch.
    ``y`` [n, 10] is one-hot.
    """
    weights = unpacked(flat)
    hidden, logits = forward(weights, x)
    likelihood = logits.log_softmax(axis=-1)
    d_logits = (likelihood.exp() - y) * (1 / BATCH)
    d_hidden = (d_logits @ weights[2].T) * (hidden > 0).astype(br.float32)
    found = [
        x.T @ d_hidden,
        d_hidden.sum(axis=0),
        hidden.T @ d_logits,
        d_logits.sum(axis=0),
        (likelihood * y).sum() * (-1 / BATCH),
    ]
    return br.concat([each.reshape((-1,)) for each in found])


def digest(weights: np.ndarray) -> str:
    """Return the SHA-256 of weights: equal for equal bits."""
    return hashlib.sha256(weights.astype("<f4").tobytes()).hexdigest()
