"""The programs of a newcomer, on a server, compared with NumPy, SciPy and scikit-learn.

The twelfth, MiniLM-L6, needs its published weights; ``test_embed_sentences.py`` tests it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

import burn_remote as br
from first_programs import files_and_devices, networks, signals, statistics
from support.servers import server

FOLDER = Path(__file__).parents[2] / "examples" / "first_programs"
MAX_LINES = 25


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    with server() as first, server() as second:
        yield first.address, second.address


@pytest.fixture
def box(addresses: tuple[str, str]) -> Iterator[br.Device]:
    with br.RemoteDevice(addresses[0]) as device:
        yield device


@pytest.fixture
def other(addresses: tuple[str, str]) -> Iterator[br.Device]:
    with br.RemoteDevice(addresses[1]) as device:
        yield device


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_logistic_regression_finds_scikit_learns_weights(
    box: br.Device, random: np.random.Generator
) -> None:
    features = random.normal(size=(80, 3))
    labels = (features @ [1.0, -2.0, 0.5] + random.normal(size=80) > 0).astype(np.int64)
    reference = LogisticRegression(tol=1e-10).fit(features, labels)
    found = statistics.logistic_regression(features, labels, box)
    np.testing.assert_allclose(found[:-1], reference.coef_[0], rtol=1e-4)
    np.testing.assert_allclose(found[-1:], reference.intercept_, rtol=1e-4, atol=1e-5)


def test_k_means_finds_scikit_learns_centers(box: br.Device, random: np.random.Generator) -> None:
    points = random.normal(size=(90, 2)) + np.repeat([[0, 0], [6, 0], [0, 6]], 30, axis=0)
    centers = points[[0, 30, 60]]
    reference = KMeans(3, init=centers, n_init=1, max_iter=10, tol=0).fit(points)
    found = statistics.k_means(points, centers, box)
    np.testing.assert_allclose(found, reference.cluster_centers_, rtol=1e-10)


def test_principal_components_are_scikit_learns_but_for_signs(
    box: br.Device, random: np.random.Generator
) -> None:
    samples = random.normal(size=(50, 6)) @ random.normal(size=(6, 6))
    found = statistics.principal_components(samples, 2, box)
    expected = PCA(2, svd_solver="full").fit_transform(samples)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-9, atol=1e-12)


def test_the_convolution_is_scipys(box: br.Device, random: np.random.Generator) -> None:
    signal, kernel = random.normal(size=1000), random.normal(size=31)
    found = signals.convolution(signal, kernel, box)
    np.testing.assert_allclose(found, scipy.signal.convolve(signal, kernel), atol=1e-12)


def test_the_image_stack_is_numpys(box: br.Device, random: np.random.Generator) -> None:
    images = random.integers(0, 256, (5, 12, 16, 3), np.uint8)
    gray = (images / 255) @ [0.299, 0.587, 0.114]
    darkest, brightest = gray.min((1, 2), keepdims=True), gray.max((1, 2), keepdims=True)
    gray = (gray - darkest) / (brightest - darkest)
    gray[:, 0, :] = 0
    values, counts = signals.image_stack(images, box)
    np.testing.assert_allclose(values, gray, atol=1e-6)
    np.testing.assert_array_equal(counts, (gray > gray.mean((1, 2), keepdims=True)).sum((1, 2)))


def test_the_heat_equation_is_numpys(box: br.Device, random: np.random.Generator) -> None:
    heat = np.zeros((20, 30))
    heat[1:-1, 1:-1] = random.uniform(size=(18, 28))
    found = signals.heat_equation(heat, 100, box)
    for _ in range(100):
        inner = heat[1:-1, 1:-1]
        around = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]
        heat = np.pad(inner + 0.2 * (around - 4 * inner), 1)
    np.testing.assert_allclose(found, heat, atol=1e-14)


def test_the_lstm_is_numpys(box: br.Device, random: np.random.Generator) -> None:
    sequence = random.normal(size=(12, 5))
    weights = {
        "input": random.normal(size=(16, 5)),
        "recurrent": random.normal(size=(16, 4)),
        "bias": random.normal(size=16),
    }
    found = networks.lstm(sequence, weights, box)
    hidden = cell = np.zeros(4)
    for x in sequence:
        gates = weights["input"] @ x + weights["recurrent"] @ hidden + weights["bias"]
        enter, forget, new, leave = np.split(gates, 4)
        cell = _sigmoid(forget) * cell + _sigmoid(enter) * np.tanh(new)
        hidden = _sigmoid(leave) * np.tanh(cell)
    np.testing.assert_allclose(found, hidden, rtol=1e-12)


def test_adam_trains_the_network(box: br.Device) -> None:
    digits = load_digits()
    images = (digits.images[:200, None] / 16).astype(np.float32)
    losses = networks.train_network(images, digits.target[:200], box)
    assert len(losses) == 60
    assert losses[-1] < 0.1 * losses[0]


def test_safetensors_give_back_what_was_saved(
    box: br.Device, tmp_path: Path, random: np.random.Generator
) -> None:
    weights = {"a.weight": random.normal(size=(3, 4)), "a.bias": np.arange(3)}
    path = tmp_path / "weights.safetensors"
    assert files_and_devices.saved_and_loaded(path, weights, box)
    assert path.stat().st_size > 3 * 4 * 8 + 3 * 8


def test_two_servers_compute_what_numpy_does(
    box: br.Device, other: br.Device, random: np.random.Generator
) -> None:
    matrix = random.normal(size=(6, 6))
    found = files_and_devices.on_two_servers(matrix, box, other)
    np.testing.assert_allclose(found, np.linalg.inv(matrix @ matrix.T + np.eye(6)), rtol=1e-9)


def test_asyncio_computes_several_requests_at_once(addresses: tuple[str, str]) -> None:
    found = files_and_devices.many_at_once([1.0, 2.0, 3.0], addresses[0])
    assert found == [64.0**3, 4 * 64.0**3, 9 * 64.0**3]


def test_each_program_has_at_most_25_lines() -> None:
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for path in FOLDER.glob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) >= 12
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
    # One program of three functions.
    assert sum(lengths[name] for name in ("embed", "norm", "transformed")) <= MAX_LINES


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))
