"""Updates of containers follow the published formulas, and take one task each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import burn_remote as br
from burn_remote import optim
from burn_remote.sessions.native.graph_table import GraphTable
from burn_remote.sessions.native.signature_table import SignatureTable
from support.runners import RecordingDevice
from support.servers import server

Array = npt.NDArray[np.float64]
STEPS = 7


def gradients(step: int) -> dict[str, Any]:
    """Return gradients that change sign and size from step to step."""
    random = np.random.default_rng(step)
    return {
        "layers": [random.normal(size=(3, 4)), random.normal(size=4) * 10.0 ** (step % 3 - 1)],
        "scale": random.normal(size=()),
    }


def sgd(w: Array, grads: list[Array], o: dict[str, Any]) -> Array:
    buffer = None
    for g in grads:
        g = g + o.get("weight_decay", 0) * w
        if o.get("momentum"):
            if buffer is None:
                buffer = g
            else:
                buffer = o["momentum"] * buffer + (1 - o.get("dampening", 0)) * g
            g = g + o["momentum"] * buffer if o.get("nesterov") else buffer
        w = w - o["lr"] * g
    return w


def adam(w: Array, grads: list[Array], o: dict[str, Any]) -> Array:
    b1, b2 = o.get("betas", (0.9, 0.999))
    m, v, most = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        if o.get("decoupled"):
            w = w - o["lr"] * o["weight_decay"] * w
        else:
            g = g + o.get("weight_decay", 0) * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        most = np.maximum(most, v)
        corrected = (most if o.get("amsgrad") else v) / (1 - b2**t)
        w = w - o["lr"] * (m / (1 - b1**t)) / (np.sqrt(corrected) + o.get("eps", 1e-8))
    return w


def rmsprop(w: Array, grads: list[Array], o: dict[str, Any]) -> Array:
    a = o.get("alpha", 0.99)
    v, mean, buffer = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for g in grads:
        g = g + o.get("weight_decay", 0) * w
        v = a * v + (1 - a) * g**2
        mean = a * mean + (1 - a) * g
        variance = v - mean**2 if o.get("centered") else v
        step = g / (np.sqrt(variance) + o.get("eps", 1e-8))
        buffer = o.get("momentum", 0) * buffer + step
        w = w - o["lr"] * buffer
    return w


def adagrad(w: Array, grads: list[Array], o: dict[str, Any]) -> Array:
    total = np.full_like(w, o.get("initial_accumulator_value", 0))
    for t, g in enumerate(grads):
        g = g + o.get("weight_decay", 0) * w
        total = total + g**2
        rate = o["lr"] / (1 + t * o.get("lr_decay", 0))
        w = w - rate * g / (np.sqrt(total) + o.get("eps", 1e-10))
    return w


# The optimizer, its options, the reference with its options, and the operations of a parameter.
CASES: list[tuple[Any, dict[str, Any], Callable[..., Array], dict[str, Any], int]] = [
    (optim.SGD, {"lr": 0.1}, sgd, {}, 2),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}, sgd, {}, 4),
    (optim.SGD, {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}, sgd, {}, 5),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}, sgd, {}, 8),
    (optim.Adam, {"lr": 0.05}, adam, {}, 11),
    (optim.Adam, {"lr": 0.05, "betas": (0.7, 0.8), "eps": 0.1, "weight_decay": 0.2}, adam, {}, 13),
    (optim.Adam, {"lr": 0.05, "betas": (0.9, 0.5), "amsgrad": True}, adam, {}, 15),
    (optim.AdamW, {"lr": 0.05, "weight_decay": 0.3}, adam, {"decoupled": True}, 12),
    (optim.RMSprop, {"lr": 0.05}, rmsprop, {}, 9),
    (optim.RMSprop, {"lr": 0.05, "alpha": 0.8, "eps": 0.01, "momentum": 0.9, "weight_decay": 0.1,
                     "centered": True}, rmsprop, {}, 18),
    (optim.Adagrad, {"lr": 0.5}, adagrad, {}, 7),
    (optim.Adagrad, {"lr": 0.5, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 0.01,
                     "initial_accumulator_value": 0.2}, adagrad, {}, 9),
]  # fmt: skip
IDS = [f"{case[0].__name__}-{number}" for number, case in enumerate(CASES)]


def sent(tree: Any, device: br.Device, dtype: br.DType = br.float64) -> Any:
    return br.tree.map(lambda one: br.tensor(one, dtype=dtype, device=device), tree)


@pytest.mark.parametrize("kind, options, reference, extra, _", CASES, ids=IDS)
def test_updates_follow_the_published_formula(
    kind: Any, options: dict[str, Any], reference: Any, extra: dict[str, Any], _: int,
    local: br.Device,
) -> None:  # fmt: skip
    optimizer = kind(**options)
    start = gradients(99)
    params = sent(start, local)
    state = optimizer.init(params)
    for step in range(STEPS):
        params, state = optimizer.update(params, sent(gradients(step), local), state)
    assert state["step"] == STEPS
    every = [br.tree.leaves(gradients(step)) for step in range(STEPS)]
    for place, (w, found) in enumerate(
        zip(br.tree.leaves(start), br.tree.leaves(params), strict=True)
    ):
        grads = [one[place] for one in every]
        expected = reference(np.asarray(w), grads, {**options, **extra})
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind, options, reference, extra, _", CASES, ids=IDS)
def test_maximize_ascends(
    kind: Any, options: dict[str, Any], reference: Any, extra: dict[str, Any], _: int,
    local: br.Device,
) -> None:  # fmt: skip
    optimizer = kind(**options, maximize=True)
    params, grads = sent([1.5], local), [0.3, -0.2, 0.4]
    state = optimizer.init(params)
    for grad in grads:
        params, state = optimizer.update(params, sent([grad], local), state)
    opposite = [np.asarray(-grad) for grad in grads]
    expected = reference(np.asarray(1.5), opposite, {**options, **extra})
    np.testing.assert_allclose(params[0].numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kind, options, reference, extra, count", CASES, ids=IDS)
def test_a_step_issues_few_operations_per_parameter(
    kind: Any, options: dict[str, Any], reference: Any, extra: dict[str, Any], count: int,
    device: RecordingDevice,
) -> None:  # fmt: skip
    optimizer = kind(**options)
    params = {"w": br.ones((3, 4), device=device), "b": br.ones((4,), device=device)}
    grads = br.tree.map(br.ones_like, params)
    state = optimizer.init(params)
    for _ in range(3):
        before = len(device.runner.operations)
        params, state = optimizer.update(params, grads, state)
        issued = len(device.runner.operations) - before
    assert issued == 2 * count


@pytest.mark.parametrize("kind, options, reference, extra, _", CASES, ids=IDS)
def test_later_steps_define_nothing_and_request_nothing(
    kind: Any, options: dict[str, Any], reference: Any, extra: dict[str, Any], _: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    defined: list[object] = []
    for table in (SignatureTable, GraphTable):
        keep = table.keep

        def counted(self: Any, *arguments: Any, keep: Any = keep) -> None:
            defined.append(self)
            keep(self, *arguments)

        monkeypatch.setattr(table, "keep", counted)
    optimizer = kind(**{**options, "lr": optim.schedules.cosine(options["lr"], 1000)})
    with server() as running, br.RemoteDevice(running.address) as device:
        params = {"w": br.ones((3, 4), device=device), "b": br.ones((4,), device=device)}
        grads = br.tree.map(br.ones_like, params)
        state = optimizer.init(params)
        # The first steps record and define: dampening begins with the second.
        for _ in range(3):
            params, state = optimizer.update(params, grads, state)
        device.sync()
        assert defined
        defined.clear()
        before = device.traffic
        for _ in range(5):
            params, state = optimizer.update(params, grads, state)
        used = device.traffic - before
    assert not defined
    assert used.requests == 0
    assert used.bytes_sent < 5 * 200


def test_an_update_inside_a_compiled_function_is_part_of_its_task(local: br.Device) -> None:
    optimizer = optim.AdamW(lr=optim.schedules.warm_up(0.1, 5))

    @br.compile
    def step(params: Any, state: Any, x: br.Tensor) -> Any:
        grads = br.tree.map(lambda w: w * x, params)
        return optimizer.update(params, grads, state)

    def uncompiled(params: Any, state: Any, x: br.Tensor) -> Any:
        return optimizer.update(params, br.tree.map(lambda w: w * x, params), state)

    start = sent({"w": np.arange(6.0).reshape(2, 3), "b": np.ones(3)}, local)
    x = br.tensor(0.5, dtype=br.float64, device=local)
    found, expected = (start, optimizer.init(start)), (start, optimizer.init(start))
    for _ in range(5):
        found, expected = step(*found, x), uncompiled(*expected, x)
    assert found[1]["step"] == 5
    for one, other in zip(br.tree.leaves(found), br.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert "1 graph" in repr(step)


def test_another_optimizer_in_the_same_variable_makes_another_graph(local: br.Device) -> None:
    chosen = optim.SGD(lr=0.5)

    @br.compile
    def step(params: Any, grads: Any, state: Any) -> Any:
        return chosen.update(params, grads, state)[0]

    params, grads = sent([1.0], local), sent([1.0], local)
    assert step(params, grads, {"step": 0})[0].item() == 0.5
    assert step(params, grads, {"step": 0})[0].item() == 0.5
    chosen = optim.SGD(lr=0.25)
    assert step(params, grads, {"step": 0})[0].item() == 0.75


def test_parameters_without_a_gradient_stay_as_they_are(local: br.Device) -> None:
    optimizer = optim.Adam(lr=0.1)
    params = sent({"a": 1.0, "b": 2.0, "c": None}, local)
    state = optimizer.init(params)
    new, after = optimizer.update(params, {"a": params["a"], "b": None, "c": None}, state)
    assert new["b"] is params["b"]
    assert after["exp_avg"]["b"] is state["exp_avg"]["b"]
    assert new["c"] is None
    assert new["a"].item() == pytest.approx(0.9)
    same, _ = optimizer.update(params, {"a": None, "b": None, "c": None}, state)
    assert same["a"] is params["a"]


def test_data_classes_are_parameters_and_keep_their_class(local: br.Device) -> None:
    @dataclasses.dataclass
    class Linear:
        weight: Any
        bias: Any = None

    params = Linear(sent([1.0, 2.0], local))
    optimizer = optim.SGD(lr=1.0)
    new, _ = optimizer.update(params, params, optimizer.init(params))
    assert type(new) is Linear
    assert new.weight[1].item() == 0


def test_the_rate_of_a_step_replaces_the_optimizers(local: br.Device) -> None:
    optimizer = optim.SGD(lr=0.1)
    params, grads = sent([1.0], local), sent([1.0], local)
    new, _ = optimizer.update(params, grads, optimizer.init(params), lr=0.5)
    assert new[0].item() == 0.5


def test_a_rate_may_be_a_numpy_number(local: br.Device) -> None:
    optimizer = optim.SGD(lr=np.float32(0.5))  # type: ignore[arg-type]
    params = sent([1.0], local)
    assert optimizer.update(params, params, optimizer.init(params))[0][0].item() == 0.5


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16, br.float32])
def test_low_precision_parameters_keep_their_dtype(dtype: br.DType, local: br.Device) -> None:
    optimizer = optim.Adam(lr=0.125)
    params = sent([1.0], local, dtype)
    state = optimizer.init(params)
    for _ in range(2):
        params, state = optimizer.update(params, sent([2.0], local, dtype), state)
    assert params[0].dtype is dtype
    assert params[0].item() == pytest.approx(0.75, rel=0.02)


DEVICE, OTHER = RecordingDevice(), RecordingDevice("other")


def f(*shape: int, device: br.Device = DEVICE) -> br.Tensor:
    return br.ones(shape, device=device)


def run(params: Any, grads: Any, **options: Any) -> Any:
    optimizer = optim.SGD(lr=0.1)
    return optimizer.update(params, grads, optimizer.init(params), **options)


REFUSED: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    r"gradient of the parameter a.w is float32\[3\], but the parameter is float32\[2\]": (
        br.ShapeMismatch, lambda: run({"a": {"w": f(2)}}, {"a": {"w": f(3)}})),
    r"gradient of the parameter w is float64\[2\].*grad.astype": (
        br.DTypeMismatch, lambda: run({"w": f(2)}, {"w": f(2).astype(br.float64)})),
    "parameter count is int64.*only floating-point tensors have gradients": (
        br.DTypeMismatch, lambda: run({"count": br.zeros(2, dtype=br.int64, device=DEVICE)}, {})),
    "the gradient of the parameter 0 is on other": (
        br.DeviceMismatch, lambda: run([f(2)], [f(2, device=OTHER)])),
    "grads must be like params, but the containers differ at a: the key 'v' is missing$": (
        br.ArgumentMismatch, lambda: run({"a": {"v": f(2)}}, {"a": {}})),
    r"grads must be like params.*not tuple; clip_by_norm returns.*write grads, norm = burn_": (
        br.ArgumentMismatch,
        lambda: run({"w": f(2)}, optim.clip_by_norm({"w": f(2)}, 1.0))),
    r"state\['exp_avg_sq'\] must be like params, but the containers differ: the key 'w'": (
        br.ArgumentMismatch,
        lambda: optim.Adam().update(
            {"w": f(2)}, {"w": f(2)}, {**optim.Adam().init({"w": f(2)}), "exp_avg_sq": {}})),
    "gradient of the parameter 0 is of type float, not a tensor": (
        br.ArgumentMismatch, lambda: run([f(2)], [1.0])),
    "the parameter w is of type numpy.ndarray, not a tensor": (
        br.ArgumentMismatch, lambda: optim.SGD().init({"w": np.ones(2)})),
    "the state has no entry 'exp_avg_scale'.*optimizer.init": (
        br.ArgumentMismatch, lambda: optim.Adam().update([f(2)], [f(2)], {"step": 0})),
    r"entry 'step' of the state is a tensor.*like=.*state\['step'\] = state\['step'\]\.item\(\)": (
        br.ArgumentMismatch,
        lambda: optim.Adam().update(
            [f(2)], [f(2)], {**optim.Adam().init([f(2)]), "step": f()})),
    "lr must be at least 0 and below inf, not nan": (
        br.UsageError, lambda: optim.Adam(lr=float("nan"))),
    "lr must be at least 0 and below inf, not inf": (
        br.UsageError, lambda: optim.Adam(lr=float("inf"))),
    "lr must be at least 0 and below inf, not -0.1": (br.UsageError, lambda: optim.SGD(lr=-0.1)),
    "lr must be above 0": (br.UsageError, lambda: optim.SGD(lr=0)),
    "lr must be finite and not negative, not -1": (
        br.UsageError, lambda: run([f(2)], [f(2)], lr=-1)),
    "lr must be a number, not '0.1'": (br.ArgumentMismatch, lambda: optim.SGD(lr="0.1")),  # type: ignore[arg-type]
    "betas must be at least 0 and below 1, not 1.0": (
        br.UsageError, lambda: optim.Adam(betas=(0.9, 1.0))),
    "nesterov=True needs a momentum above 0": (br.UsageError, lambda: optim.SGD(nesterov=True)),
    "no argument foreach=; in burn_remote: not needed": (
        br.ArgumentMismatch, lambda: optim.Adam(foreach=True)),  # type: ignore[call-arg]
    "no argument fused=": (br.ArgumentMismatch, lambda: optim.SGD(fused=True)),  # type: ignore[call-arg]
    "no argument weight_decai=; did you mean weight_decay=": (
        br.ArgumentMismatch, lambda: optim.SGD(weight_decai=1)),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_updates_are_refused_with_the_name(text: str) -> None:
    kind, call = REFUSED[text]
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("name", ["LBFGS", "Adamax", "NAdam", "Adadelta"])
def test_an_optimizer_of_pytorch_that_is_missing_says_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match="in burn_remote: "):
        getattr(optim, name)
