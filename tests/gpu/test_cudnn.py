"""Convolutions computed by cuDNN agree with the definition and with our own kernels."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend, BackendSession, open_backends
from support.kernels import signature

if TYPE_CHECKING:
    from burn_remote_server.backends.cupy.backend import CupyBackend

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]

# Relative to the largest result. TF32 in place of float32 would differ by some 1e-4.
TOLERANCE = {"F32": 1e-5, "F16": 2e-3, "BF16": 1.6e-2}
DIRECTIONS = ["", "XBackward", "WeightBackward"]


class Layer(NamedTuple):
    """The shapes and options of a convolution."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def options(self) -> dict[str, Any]:
        rank = len(self.x) - 2
        return {
            "stride": (self.stride,) * rank,
            "padding": (self.padding,) * rank,
            "dilation": (self.dilation,) * rank,
            "groups": self.groups,
        }


LAYERS = {
    "line": Layer((4, 32, 50), (48, 32, 5), padding=2),
    "plane": Layer((4, 64, 20, 20), (32, 64, 3, 3), padding=1),
    "plane of odd sizes": Layer((3, 7, 17, 23), (5, 7, 3, 5)),
    "plane with steps": Layer((4, 16, 21, 22), (24, 16, 3, 3), stride=2, padding=1),
    "volume": Layer((2, 16, 8, 9, 10), (24, 16, 3, 3, 3), padding=1),
    "plane with gaps": Layer((4, 16, 20, 20), (24, 16, 3, 3), padding=2, dilation=2),
    "plane in groups": Layer((4, 16, 20, 20), (24, 4, 3, 3), padding=1, groups=4),
}
# Layers for which cuDNN may lack an engine with the required precision. Then the backend uses its
# own kernels.
MAY_BE_OURS = {"plane with gaps", "plane in groups"}
PLANE = LAYERS["plane"]


@pytest.fixture(scope="module")
def backend(gpu: Backend) -> CupyBackend:
    from burn_remote_server.backends.cupy.backend import CupyBackend

    assert isinstance(gpu, CupyBackend)
    if gpu.cudnn is None:
        pytest.skip("cuDNN or its package nvidia-cudnn-frontend is not there")
    return gpu


@pytest.fixture
def session(backend: CupyBackend) -> BackendSession:
    session = backend.open_session()
    session.activate()
    return session


def tensors(layer: Layer, direction: str, dtype: str) -> list[Array]:
    """Return x, the filters, and the bias or the output's gradient, rounded to a dtype."""
    rng = np.random.default_rng(1)
    name, of = f"Module.Conv{len(layer.x) - 2}d", DType.from_wire(dtype)
    x, weight = TensorSpec(layer.x, of), TensorSpec(layer.weight, of)
    (out,) = signature(name, x, weight, None, **layer.options).outputs
    third = out.shape if direction else layer.weight[:1]
    return [rng.standard_normal(shape, np.float32) for shape in (layer.x, layer.weight, third)]


def bound(session: BackendSession, layer: Layer, direction: str, dtype: str, third: Any) -> Any:
    """Return the kernel that a session binds for a layer."""
    of = DType.from_wire(dtype)
    specs = [
        TensorSpec(layer.x, of),
        TensorSpec(layer.weight, of),
        None if third is None else TensorSpec(third.shape, of),
    ]
    name = f"Module.Conv{len(layer.x) - 2}d{direction}"
    return session.bind(signature(name, *specs, **layer.options))


def uploaded(backend: Backend, session: BackendSession, array: Array, dtype: str) -> Any:
    of = DType.from_wire(dtype)
    held = array.astype(session.array_dtype(of))
    return session.adopt(backend.to_device(TensorData(held.tobytes(), held.shape, of)))


def on_host(backend: Backend, result: Any, dtype: str) -> Array:
    of = DType.from_wire(dtype)
    held = np.frombuffer(backend.to_bytes(result, of), np.dtype(str(result.dtype)))
    return held.reshape(result.shape).astype(np.float64)


def run(
    backend: Backend,
    session: BackendSession,
    layer: Layer,
    direction: str,
    dtype: str,
    arrays: list[Array],
) -> Array:
    """Return a session's result as float64."""
    call = bound(session, layer, direction, dtype, arrays[2])
    given = [uploaded(backend, session, array, dtype) for array in arrays]
    return on_host(backend, call(*given), dtype)


def expected(layer: Layer, direction: str, dtype: str, arrays: list[Array]) -> Array:
    """Return NumPy's result in float64 for the rounded inputs."""
    (numpy,) = open_backends("numpy", 1)
    session = numpy.open_session()
    rounded = session.array_dtype(DType.from_wire(dtype))
    exact = [array.astype(rounded).astype(np.float64) for array in arrays]
    return run(numpy, session, layer, direction, "F64", exact)


def is_cudnns(call: Any) -> bool:
    from burn_remote_server.backends.cupy.cudnn_convolution import PlannedConvolution

    return isinstance(call, PlannedConvolution)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_cudnn_matches_the_definition(
    backend: CupyBackend, session: BackendSession, name: str, direction: str, dtype: str
) -> None:
    layer = LAYERS[name]
    arrays = tensors(layer, direction, dtype)
    found = run(backend, session, layer, direction, dtype, arrays)
    wanted = expected(layer, direction, dtype, arrays)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * abs(wanted).max())
    if name not in MAY_BE_OURS:
        assert is_cudnns(bound(session, layer, direction, dtype, arrays[2]))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cudnn_computes_pointwise_layers_of_low_precision(
    backend: CupyBackend, session: BackendSession, direction: str, dtype: str
) -> None:
    layer = Layer((4, 64, 14, 14), (32, 64, 1, 1))
    arrays = tensors(layer, direction, dtype)
    found = run(backend, session, layer, direction, dtype, arrays)
    wanted = expected(layer, direction, dtype, arrays)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * abs(wanted).max())
    assert is_cudnns(bound(session, layer, direction, dtype, arrays[2]))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_own_kernels_give_the_same_results_without_cudnn(
    backend: CupyBackend, session: BackendSession, direction: str
) -> None:
    from burn_remote_server.backends.cupy.backend import CupyBackend

    arrays = tensors(PLANE, direction, "F32")
    theirs = run(backend, session, PLANE, direction, "F32", arrays)
    plain = CupyBackend(uses_cudnn=False)
    other = plain.open_session()
    other.activate()
    assert plain.cudnn is None
    assert not is_cudnns(bound(other, PLANE, direction, "F32", arrays[2]))
    ours = run(plain, other, PLANE, direction, "F32", arrays)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-5 * abs(ours).max())


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (PLANE, "F64"),
        (Layer((2, 8, 9, 9), (8, 1, 3, 3), groups=8), "F32"),
        (Layer((2, 8, 9, 9), (8, 8, 1, 1)), "F32"),
    ],
)
def test_layers_left_to_own_kernels_do_not_use_cudnn(
    session: BackendSession, layer: Layer, dtype: str
) -> None:
    assert not is_cudnns(bound(session, layer, "", dtype, None))


def test_infinities_affect_only_their_own_windows(
    backend: CupyBackend, session: BackendSession
) -> None:
    x, weight, bias = tensors(PLANE, "", "F32")
    x[1, 3, 8, 8] = np.inf
    weight[:, 3] = 1
    found = run(backend, session, PLANE, "", "F32", [x, weight, bias])
    is_reached = np.zeros(found.shape, bool)
    is_reached[1, :, 7:10, 7:10] = True
    np.testing.assert_array_equal(np.isposinf(found), is_reached)
    assert np.isfinite(found[~is_reached]).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_results_are_the_same_on_every_run(
    backend: CupyBackend, session: BackendSession, direction: str
) -> None:
    arrays = tensors(PLANE, direction, "F32")
    first = run(backend, session, PLANE, direction, "F32", arrays)
    for _ in range(10):
        again = run(backend, session, PLANE, direction, "F32", arrays)
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_view_is_convolved_like_its_copy(
    backend: CupyBackend, session: BackendSession, dtype: str
) -> None:
    layer = Layer((2, 3, 5, 5), (7, 3, 3, 3))
    arrays = tensors(layer, "", dtype)
    wanted = run(backend, session, layer, "", dtype, arrays)
    call = bound(session, layer, "", dtype, arrays[2])
    x, weight, bias = (uploaded(backend, session, array, dtype) for array in arrays)
    # The second image starts at 150 or 300 bytes, too misaligned for vector loads.
    shifted = np.concatenate([arrays[0][:1], arrays[0]])
    later = uploaded(backend, session, shifted, dtype)[1:]
    np.testing.assert_array_equal(on_host(backend, call(later, weight, bias), dtype), wanted)
    turned = uploaded(backend, session, arrays[0].transpose(3, 2, 1, 0), dtype)
    turned = turned.transpose(3, 2, 1, 0)
    np.testing.assert_array_equal(on_host(backend, call(turned, weight, bias), dtype), wanted)
    assert x.flags.c_contiguous


def test_sessions_convolve_concurrently(backend: CupyBackend) -> None:
    arrays = tensors(PLANE, "", "F32")
    wanted = expected(PLANE, "", "F32", arrays)
    worst: list[float] = []

    def work() -> None:
        backend.prepare_thread()
        session = backend.open_session()
        session.activate()
        call = bound(session, PLANE, "", "F32", arrays[2])
        given = [uploaded(backend, session, array, "F32") for array in arrays]
        results = [call(*given) for _ in range(50)]
        worst.append(max(abs(on_host(backend, result, "F32") - wanted).max() for result in results))
        session.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 4
    assert max(worst) <= TOLERANCE["F32"] * abs(wanted).max()
