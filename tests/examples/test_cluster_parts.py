"""The parts of the cluster demo."""

from __future__ import annotations

import math

import numpy as np
import pytest

import burn_remote as br
from cluster import digits_data, training
from cluster.nodes import Node
from cluster.report import table
from cluster.watching import Sample, parse
from support.servers import server

STEP = 1e-6


def loss_by_definition(flat: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean cross-entropy of a network over a batch, in float64."""
    w1, b1, w2, b2 = np.split(flat.astype(np.float64), np.cumsum([64 * 64, 64, 64 * 10]))
    hidden = np.maximum(x @ w1.reshape(64, 64) + b1, 0)
    logits = hidden @ w2.reshape(64, 10) + b2
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -float(np.log(chances[y == 1]).sum()) / training.BATCH


def test_the_gradients_match_finite_differences() -> None:
    train, _ = digits_data.load()
    x, y = train.pixels[:7], train.one_hot[:7]
    flat = training.initial_weights()
    with br.LocalDevice() as device:
        found = training.gradients(*(br.tensor(each, device=device) for each in (flat, x, y)))
        elements = np.asarray(found.numpy())
    assert elements[-1] == pytest.approx(loss_by_definition(flat, x, y), rel=1e-5)
    for place in np.random.default_rng(1).choice(len(flat), 60, replace=False):
        step = np.zeros(len(flat))
        step[place] = STEP
        rise = loss_by_definition(flat + step, x, y) - loss_by_definition(flat - step, x, y)
        assert elements[place] == pytest.approx(rise / (2 * STEP), rel=1e-3, abs=1e-6)


def test_the_images_match_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    train, test = digits_data.load()
    pixels = np.concatenate([train.pixels, test.pixels])
    labels = np.concatenate([train.labels, test.labels])
    np.testing.assert_array_equal(pixels, (digits.data[order] / 16).astype(np.float32))
    np.testing.assert_array_equal(labels, digits.target[order])


def test_a_sample_holds_the_metrics_of_a_server() -> None:
    array = np.ones(1000, np.float32)
    with server() as running, br.RemoteDevice(running.address) as device:
        node = Node(device, None)
        held = br.tensor(array, device=device) + 1
        held.numpy()
        status, text = node.http_get("/metrics") or (0, b"")
        assert status == 200
        sample = parse(text.decode(), 2.5)
        assert sample.seconds == 2.5
        assert sample.operations == device.traffic.operations == 1
        assert sample.clients_in == device.traffic.bytes_sent > array.nbytes
        assert sample.clients_out >= array.nbytes
        assert sample.tensor_bytes >= array.nbytes
        assert sample.memory_bytes > 10 * 2**20
        assert sample.cpu_seconds > 0
        assert sample.peers_in == sample.peers_out == 0


def test_differences_of_samples_keep_gauges() -> None:
    before = Sample(1.0, operations=5, peers_in=7, memory_bytes=100)
    after = Sample(3.0, operations=8, peers_in=7, memory_bytes=60)
    since = after.since(before)
    assert (since.operations, since.peers_in, since.memory_bytes) == (3, 0, 60)


def test_missing_metrics_are_zero() -> None:
    assert parse("# HELP nothing\nother_total 3.0\n", 2.0) == Sample(2.0)
    assert not math.isnan(parse("", 0.0).cpu_seconds)


def test_tables_are_aligned_in_columns() -> None:
    assert table([("", "a"), ("node", "12"), ("b", "3")]) == "       a\nnode  12\nb      3"
