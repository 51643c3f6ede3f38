"""Compiled functions give the results of the functions that they were made from."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import burn_remote as br
from burn_remote.functions import default_device
from burn_remote.graphs.compiled import MAX_GRAPHS, MAX_IDENTITIES
from support.servers import server
from support.waiting import PATIENCE_SECONDS

LARGE = np.zeros(20_000)  # above the size from which uploads are shared


@pytest.fixture
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


def values(device: br.Device, *shape: int) -> br.Tensor:
    return device.tensor(np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def sent(device: br.Device) -> int:
    """Count the operations that a device was sent, and the tasks that it was sent them in."""
    return int(device.session.traffic.operations)


class Calls:
    """A function that counts how often Python runs it."""

    def __init__(self, function: Any) -> None:
        # Not an attribute that is rebound, which would be a reason to record again.
        self._calls: deque[None] = deque()
        self._function = function

    @property
    def count(self) -> int:
        return len(self._calls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append(None)
        return self._function(*args, **kwargs)


def compiled(function: Any) -> tuple[Calls, Any]:
    calls = Calls(function)

    def counted(*args: Any, **kwargs: Any) -> Any:
        return calls(*args, **kwargs)

    return calls, br.compile(counted)


def test_later_calls_run_no_python_and_give_the_same_results(device: br.Device) -> None:
    def step(x: br.Tensor, w: br.Tensor) -> br.Tensor:
        return ((x @ w).relu() - 0.5).softmax(axis=-1)

    calls, fast = compiled(step)
    for seed in range(3):
        random = np.random.default_rng(seed)
        x = device.tensor(random.normal(size=(4, 3)).astype(np.float32))
        w = device.tensor(random.normal(size=(3, 5)).astype(np.float32))
        np.testing.assert_array_equal(fast(x, w).numpy(), step(x, w).numpy())
    assert calls.count == 1


def test_a_compiled_call_is_one_task_whatever_the_number_of_operations(device: br.Device) -> None:
    @br.compile
    def many(x: br.Tensor) -> br.Tensor:
        for _ in range(50):
            x = x + 1
        return x

    x = values(device, 4)
    many(x).numpy()
    many(x).numpy()
    before = device.session.traffic.bytes_sent
    many(x)
    device.sync()
    assert device.session.traffic.bytes_sent - before < 60


def test_other_shapes_and_dtypes_are_recorded_again(device: br.Device) -> None:
    calls, fast = compiled(lambda x: x * 2 + 1)
    for x in (values(device, 4), values(device, 2, 2), device.tensor([1, 2], dtype=br.int64)):
        for _ in range(2):
            np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * 2 + 1)
    assert calls.count == 3


def test_other_tensors_of_the_same_shape_and_dtype_find_the_same_graph(device: br.Device) -> None:
    calls, fast = compiled(lambda x, y: x - y)
    shapes = [(2,), (3,), (1, 2)]
    for turn in range(4 * MAX_IDENTITIES):
        x, y = (values(device, *shapes[turn % 3]) for _ in range(2))
        np.testing.assert_array_equal(fast(x, y).numpy(), np.zeros(shapes[turn % 3], np.float32))
    assert calls.count == 3
    assert len(fast._found) <= MAX_IDENTITIES


def test_discarded_graphs_are_not_found_any_more(device: br.Device) -> None:
    calls, fast = compiled(lambda x: x * 2)
    first = values(device, 1)
    for _ in range(2):
        fast(first)
    with pytest.warns(UserWarning, match="recorded for more than"):
        for size in range(2, 2 + MAX_GRAPHS):
            fast(values(device, size))
    assert calls.count == 1 + MAX_GRAPHS
    fast(first)
    assert calls.count == 2 + MAX_GRAPHS


def test_a_tensor_that_is_returned_twice_is_one_object_in_each_call(device: br.Device) -> None:
    fast = br.compile(lambda x: [x + 1] * 2)
    for _ in range(2):
        one, other = fast(values(device, 2))
        assert one is other


def test_arguments_may_be_unused_or_used_in_another_order(device: br.Device) -> None:
    fast = br.compile(lambda a, b, c, d: (d - b, a))
    tensors = [values(device, 2) * scale for scale in (1, 10, 100, 1000)]
    for _ in range(2):
        difference, same = fast(*tensors)
        np.testing.assert_array_equal(difference.numpy(), [-1980, 2970])
        np.testing.assert_array_equal(same.numpy(), [-2, 3])


class Pair(NamedTuple):
    left: br.Tensor
    right: br.Tensor


def test_arguments_and_results_may_be_nested_containers(device: br.Device) -> None:
    def swap(pairs: list[Pair], options: dict[str, Any], *, scale: br.Tensor) -> dict[str, Any]:
        (pair,) = pairs
        return {"pair": Pair(pair.right * scale, pair.left), "none": options["none"], "one": 1}

    fast = br.compile(swap)
    left, right, scale = values(device, 2), values(device, 3), values(device, 1)
    for _ in range(2):
        result = fast([Pair(left, right)], {"none": None}, scale=scale)
        np.testing.assert_array_equal(result["pair"].left.numpy(), right.numpy() * scale.numpy())
        assert result["pair"].right is left or result["pair"].right.handle.id == left.handle.id
        assert result["none"] is None
        assert result["one"] == 1


def test_numbers_may_change_without_another_recording(device: br.Device) -> None:
    def update(w: br.Tensor, rate: float, step: int) -> br.Tensor:
        return w - w * (rate / (1 - 0.9**step))

    calls, fast = compiled(update)
    w = values(device, 8)
    for step in range(1, 6):
        rate = 0.1 / step
        np.testing.assert_array_equal(fast(w, rate, step).numpy(), update(w, rate, step).numpy())
    assert calls.count == 1


def test_a_branch_on_a_number_is_recorded_once_for_each_side(device: br.Device) -> None:
    calls, fast = compiled(lambda x, n: x + n if n > 2 else x - n)
    x = values(device, 4)
    for number in (1.0, 5.0, 2.0, 7.0, 0.5):
        expected = x.numpy() + np.float32(number) if number > 2 else x.numpy() - np.float32(number)
        np.testing.assert_array_equal(fast(x, number).numpy(), expected)
    assert calls.count == 2


def test_a_number_that_becomes_part_of_a_shape_is_recorded_for_each_value(
    device: br.Device,
) -> None:
    calls, fast = compiled(lambda x, n: x.reshape((n, -1)))
    x = values(device, 12)
    for rows in (2, 3, 2, 3):
        assert fast(x, rows).shape == (rows, 12 // rows)
    assert calls.count == 2


def test_random_numbers_are_those_of_the_function(device: br.Device) -> None:
    def noisy(x: br.Tensor) -> br.Tensor:
        return x + br.random.normal(x.shape, device=device) * br.random.uniform(
            x.shape, device=device
        )

    x, fast = values(device, 16), br.compile(noisy)
    fast(x)
    device.seed(7)
    expected = [noisy(x).numpy() for _ in range(3)]
    device.seed(7)
    for one in expected:
        np.testing.assert_array_equal(fast(x).numpy(), one)


def test_an_argument_may_be_given_twice_and_differ_later(device: br.Device) -> None:
    fast = br.compile(lambda x, y: x - 2 * y)
    x, y = values(device, 4), values(device, 4) * 3
    fast(x, x)
    np.testing.assert_array_equal(fast(x, y).numpy(), x.numpy() - 2 * y.numpy())


def test_results_may_be_arguments_repeated_results_and_numbers(device: br.Device) -> None:
    def several(x: br.Tensor, n: float) -> Any:
        y = x * n
        return x, y, [y, y + 1], n * 2, "text"

    fast, x = br.compile(several), values(device, 3)
    for number in (2.0, 3.0):
        same, y, (again, more), doubled, text = fast(x, number)
        assert same.handle.id == x.handle.id
        np.testing.assert_array_equal(y.numpy(), x.numpy() * np.float32(number))
        np.testing.assert_array_equal(again.numpy(), y.numpy())
        np.testing.assert_array_equal(more.numpy(), y.numpy() + 1)
        assert (doubled, text) == (number * 2, "text")


def test_methods_can_be_compiled(device: br.Device) -> None:
    class Model:
        scale = 3

        @br.compile
        def forward(self, x: br.Tensor) -> br.Tensor:
            return x * self.scale

    model, x = Model(), values(device, 4)
    for _ in range(2):
        np.testing.assert_array_equal(model.forward(x).numpy(), x.numpy() * 3)


def test_a_compiled_function_inside_another_is_part_of_its_graph(device: br.Device) -> None:
    inner = br.compile(lambda x, n: x * n)
    calls, outer = compiled(lambda x, n: inner(x, n + 1) + inner(x, 2.0))
    x = values(device, 4)
    for number in (1.0, 4.0):
        expected = x.numpy() * np.float32(number + 1) + x.numpy() * np.float32(2)
        np.testing.assert_array_equal(outer(x, number).numpy(), expected)
    assert calls.count == 1


captured: Any = None


def test_a_captured_tensor_that_is_also_an_argument_is_named_as_captured(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "captured", values(device, 4))
    for argument in (captured, [captured], {"w": captured}):
        with pytest.raises(br.UsageError, match=r"uses captured \(float32\[4\]\)"):
            br.compile(lambda given: captured * 2)(argument)


def test_a_captured_tensor_is_refused_by_its_name(device: br.Device) -> None:
    weight = values(device, 4)
    with pytest.raises(br.UsageError, match=r"test_compiled.py:\d+.*uses weight \(float32\[4\]\)"):
        br.compile(lambda x: x * weight)(values(device, 4))


@pytest.mark.parametrize(
    ("forbidden", "text"),
    [
        (lambda x: x if x.sum() > 0 else -x, "reads the elements"),
        (lambda x: x * x.numpy().max(), "reads the elements"),
        (lambda x: x + x.device.tensor([1.0]), "uploads a tensor"),
        (lambda x: x.to(br.LocalDevice()), "moves a tensor"),
        (lambda x: x.device.publish("w", x), "publishes a tensor"),
        (lambda x: x.device.published("w"), "asks for the names of published tensors"),
        (lambda x: x.device.list_published(), "asks for the names of published tensors"),
        (lambda x: x.device.unpublish("w"), "removes the name of a published tensor"),
        (lambda x: br.load("server:/w.npy", device=x.device), "loads a file of the server"),
        (lambda x: br.tensor(LARGE, device=x.device, share=True), "uploads a tensor"),
        (lambda x: x.device.sync(), "waits for the device"),
        (lambda x: x.device.seed(1), "sets the seed"),
    ],
)
def test_what_a_graph_cannot_repeat_is_refused_with_the_line(
    device: br.Device, forbidden: Any, text: str
) -> None:
    x = values(device, 1)
    with pytest.raises(br.UsageError, match=rf"test_compiled.py:\d+: the compiled function {text}"):
        br.compile(forbidden)(x)
    assert x.numpy() is not None  # the device works as before


def test_other_threads_may_use_the_device_while_a_function_is_recorded(device: br.Device) -> None:
    x = values(device, 4)
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def elsewhere() -> None:
        results.put((x + 1).numpy())

    def function(y: br.Tensor) -> br.Tensor:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return y * 2

    fast = br.compile(function)
    for _ in range(2):
        np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * 2)
    np.testing.assert_array_equal(results.get(timeout=PATIENCE_SECONDS), x.numpy() + 1)


def test_a_failure_inside_a_graph_names_the_line_of_its_operation(device: br.Device) -> None:
    def failing(x: br.Tensor, places: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        taken = x.take(places)  # the line
        return taken * 2, x + 1

    fast, x = br.compile(failing), values(device, 4)
    fast(x, device.tensor([0, 1]))
    wrong, right = fast(x, device.tensor([0, 9]))
    with pytest.raises(br.OperationFailed, match=r"Select.*test_compiled.py:\d+") as caught:
        wrong.numpy()
    line = failing.__code__.co_firstlineno + 1
    assert caught.value.location.endswith(f":{line}")
    np.testing.assert_array_equal(right.numpy(), x.numpy() + 1)


def test_too_many_graphs_are_warned_about_once_and_bounded(device: br.Device) -> None:
    fast = br.compile(lambda x: x + 1)
    with pytest.warns(UserWarning, match="recorded for more than 64") as warned:
        for size in range(1, 80):
            fast(values(device, size))
    assert len(warned) == 1
    np.testing.assert_array_equal(fast(values(device, 1)).numpy(), values(device, 1).numpy() + 1)


def test_the_decorator_may_have_parentheses(device: br.Device) -> None:
    @br.compile()
    def doubled(x: br.Tensor) -> br.Tensor:
        return x * 2

    x = values(device, 4)
    np.testing.assert_array_equal(doubled(x).numpy(), x.numpy() * 2)
    assert repr(doubled).endswith("doubled: 1 graph>")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: br.compile(Calls), "not the class Calls; compile a method"),
        (lambda: br.compile(staticmethod(abs)), "write @staticmethod above @compile"),
        (lambda: br.compile(abs, **{"static_argnums": 0}), "no argument static_argnums="),
        (lambda: br.compile(abs, **{"mode": "fast"}), "no argument mode=; .* only one way"),
        (lambda: br.compile(*[1]), "takes a function, not 1"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_advice(call: Any, text: str) -> None:
    with pytest.raises(br.ArgumentMismatch, match=text):
        call()


def test_a_call_without_tensors_says_why_it_needs_the_default_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable() -> br.Device:
        raise br.ConnectionFailed("nothing listens at ws://127.0.0.1:3000")

    monkeypatch.setattr(default_device, "_chosen", None)
    monkeypatch.setattr(default_device, "_default", None)
    monkeypatch.setattr(default_device, "_openers", [unreachable])
    with pytest.raises(
        br.ConnectionFailed, match=r"contain no tensor.*the default device: nothing listens at ws"
    ):
        br.compile(lambda model: model)(object())


def test_a_function_without_tensors_runs_on_the_device_among_its_arguments(
    device: br.Device,
) -> None:
    fast = br.compile(lambda place, n: br.full((2,), 3.0, device=place) * n)
    for number in (2.0, 5.0):
        assert fast(device, number).tolist() == [number * 3] * 2
    with br.LocalDevice() as other, pytest.raises(br.UsageError, match=r"but it runs on local"):
        br.compile(lambda _: br.ones((2,), device=other))(device)


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_function_of_many_operations_becomes_several_graphs(dialect: str) -> None:
    def long(x: br.Tensor, n: float) -> tuple[br.Tensor, br.Tensor]:
        early, kept = x * n, x + 1
        for place in range(9000):
            x = x + early if place % 3 else -x * n
            if place == 5000:
                kept = kept + x * 1e-9
        return kept, x * 1e-30

    with server() as running, br.RemoteDevice(running.address, dialect=dialect) as remote:
        calls, fast = compiled(long)
        for number in (0.5, 0.5, 0.25):
            x = remote.tensor([1.0, -2.0])
            for seen, expected in zip(fast(x, number), long(x, number), strict=True):
                assert seen.numpy().tobytes() == expected.numpy().tobytes()
        assert calls.count == 1
        if dialect == "native":
            remote.sync()
            before = remote.session.traffic.bytes_sent
            fast(x, 0.75)
            remote.sync()
            assert remote.session.traffic.bytes_sent - before < 1000


def test_functions_of_thousands_of_different_operations_are_compiled(device: br.Device) -> None:
    def different(x: br.Tensor) -> br.Tensor:
        for number in range(4500):
            x = x + number
        return x

    fast, x = br.compile(different), values(device, 2)
    expected = different(x).numpy().tobytes()
    for _ in range(3):
        assert fast(x).numpy().tobytes() == expected


def test_a_failure_in_a_later_part_names_its_line(device: br.Device) -> None:
    def failing(x: br.Tensor, places: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        for _ in range(5000):
            x = x + 1
        taken = x.take(places)  # the line
        for _ in range(5000):
            taken, x = taken + 1, x - 1
        return taken, x

    fast, x = br.compile(failing), values(device, 4)
    fast(x, device.tensor([0, 1]))
    wrong, right = fast(x, device.tensor([0, 9]))
    with pytest.raises(br.OperationFailed, match="Select") as caught:
        wrong.numpy()
    assert caught.value.location.endswith(f":{failing.__code__.co_firstlineno + 3}")
    assert right.shape == (4,)
    right.numpy()


@dataclasses.dataclass
class Model:
    weight: Any
    bias: Any
    steps: int = 0

    @br.compile
    def trained(self, x: br.Tensor, rate: float) -> Model:
        """Return a model with other weights."""
        return Model(self.weight - x * rate, self.bias, self.steps + 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    weight: Any


def test_data_classes_are_arguments_and_results(device: br.Device) -> None:
    x, model = values(device, 3), Model(values(device, 3), None)
    for _ in range(3):
        model = model.trained(x, 0.5)
    assert type(model) is Model
    assert model.steps == 3
    assert (model.bias, type(model.steps)) == (None, int)
    np.testing.assert_array_equal(model.weight.numpy(), x.numpy() - 3 * 0.5 * x.numpy())
    assert "1 graph" in repr(Model.trained)


def test_frozen_data_classes_with_slots_are_arguments_and_results(device: br.Device) -> None:
    calls, double = compiled(lambda model: Frozen(model.weight * 2))
    model = Frozen(values(device, 3))
    for _ in range(2):
        np.testing.assert_array_equal(double(model).weight.numpy(), model.weight.numpy() * 2)
    assert calls.count == 1


def test_a_change_of_a_data_class_that_is_an_argument_is_refused(device: br.Device) -> None:
    def grow(model: Model) -> br.Tensor:
        model.steps += 1
        return model.weight * 2  # type: ignore[no-any-return]

    with pytest.raises(br.UsageError, match="changes a Model that is an argument"):
        br.compile(grow)(Model(values(device, 3), None))


@pytest.mark.parametrize(
    ("progression", "expected"),
    [
        (lambda x: br.arange(x.shape[0], device=x.device), np.arange(5)),
        (lambda x: br.arange(3, 13, 2, device=x.device), np.arange(3, 13, 2)),
        (lambda x: br.linspace(0, 1, 5, device=x.device), np.linspace(0, 1, 5, dtype=np.float32)),
    ],
    ids=["arange of a shape", "arange with a step", "linspace"],
)
def test_progressions_are_constants_of_a_graph(
    progression: Any, expected: Any, device: br.Device
) -> None:
    calls, function = compiled(lambda x: x + progression(x).astype(x.dtype))
    x = values(device, 5)

    for factor in (1, 2, 3):
        found = function(x * factor).numpy()
        assert found == pytest.approx(x.numpy() * factor + expected, abs=1e-6)
    assert calls.count == 1


def test_a_progression_follows_a_number_among_the_arguments(device: br.Device) -> None:
    _, function = compiled(lambda x, count: br.arange(count, device=x.device).sum() + x.sum())
    x = device.tensor([0])

    for count in (3, 5, 3, 700):
        assert function(x, count).item() == count * (count - 1) // 2


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_large_integer_inside_an_option_is_exact(device: br.Device, dtype: str) -> None:
    padded = br.compile(lambda x, number: br.functional.pad(x, (1, 0), value=number))
    x = br.tensor(np.array([1, 2], dtype), device=device)
    for number in (5, 2**62 + 1, 2**62 + 3):
        assert padded(x, number).tolist() == [number, 1, 2]


def test_a_single_complex_product_has_the_bits_of_the_eager_one(device: br.Device) -> None:
    random = np.random.default_rng(3)
    function = br.compile(lambda x, y: (x * y) * (y * x) * y)
    for _ in range(20):
        arrays = random.normal(size=(2, 1)) + 1j * random.normal(size=(2, 1))
        x, y = (br.tensor(one, device=device) for one in arrays)
        assert function(x, y).item() == ((x * y) * (y * x) * y).item()


@pytest.mark.parametrize(
    "function, way",
    [
        (
            lambda x: x[x > 0],
            r"the shape of x\[mask\] depends on elements; write where\(mask, x, 0",
        ),
        (lambda x: br.nonzero(x), r"the shape of nonzero\(x\) depends .* pass size=count"),
        (lambda x: br.unique_values(x), "the shape of the distinct elements of x depends"),
        (lambda x: br.bincount(x), "pass length="),
    ],
)
def test_a_result_whose_shape_depends_on_elements_is_refused_with_advice(
    function: Any, way: str, device: br.Device
) -> None:
    with pytest.raises(br.UsageError, match=rf"test_compiled\.py:\d+: a compiled function .*{way}"):
        br.compile(function)(br.arange(4, device=device))


def test_a_call_like_the_last_one_needs_no_structure(device: br.Device) -> None:
    compiled = br.compile(lambda place, x, y, scale: [x * scale + y, y])
    x, y = values(device, 4), values(device, 4) * 2
    assert compiled.call_again([x, y], [3.0], (None,)) is None  # nothing was recorded yet
    for _ in range(2):  # the first call is recorded, the second issues the graph
        compiled(None, x, y, 2.0)
    before = sent(device)
    found = compiled.call_again([y, x], [3.0], (None,))
    assert found is not None
    assert sent(device) == before + 2  # the steps of the graph
    np.testing.assert_array_equal(found[0].numpy(), y.numpy() * np.float32(3) + x.numpy())
    assert found[1] is x
    with br.LocalDevice() as other:
        far = values(other, 4)
        assert compiled.call_again([far, far], [3.0], (None,)) is not None
        assert compiled.call_again([x, far], [3.0], (None,)) is None
    assert compiled.call_again([values(device, 5), y], [3.0], (None,)) is None
    assert compiled.call_again([], [], (None,)) is None


def test_a_call_like_the_last_one_compares_captured_values(device: br.Device) -> None:
    scale = 2.0
    compiled = br.compile(lambda x: x * scale)
    x = values(device, 4)
    for _ in range(2):
        compiled(x)
    assert compiled.call_again([x], [], ()) is not None
    scale = 3.0
    assert compiled.call_again([x], [], ()) is None
    np.testing.assert_array_equal(compiled(x).numpy(), x.numpy() * np.float32(3))
