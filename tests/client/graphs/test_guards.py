"""What a compiled function takes from its surroundings is compared in each call, or refused."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import gc
import pickle
import queue
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.graphs.compiled import CompiledFunction as Compiled
from support.waiting import PATIENCE_SECONDS

RATE: Any = 1.0
OPTIONS: dict[str, Any] = {"rate": 1.0}
MODULE = types.ModuleType("settings_of_this_test")
MODULE.rate = 1.0  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


@pytest.fixture
def x(device: br.Device) -> br.Tensor:
    return device.tensor([1.0, -2.0, 3.0])


class Settings:
    def __init__(self, rate: Any) -> None:
        self.rate = rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: Any) -> None:
        self.rate = rate


class Model:
    momentum = 1.0

    def __init__(self) -> None:
        self.rate: Any = 1.0
        self.settings = Settings(1.0)
        self.layers = [Settings(1.0), Settings(1.0)]

    @property
    def doubled(self) -> Any:
        return self.hidden * 2

    hidden: Any = 1.0

    def helper(self, x: br.Tensor) -> Any:
        return x * self.rate

    @br.compile
    def forward(self, x: br.Tensor) -> Any:
        x = self.helper(x) + self.settings.rate
        for layer in self.layers:
            x = x - layer.rate
        return x * self.momentum + self.doubled


def helper(x: br.Tensor) -> Any:
    return x * RATE


def changed_global(value: Any) -> None:
    global RATE
    RATE = value


Changing = tuple[Callable[[br.Tensor], Any], Callable[[Any], object]]


def closure() -> Changing:
    rate = 1.0

    def change(value: Any) -> None:
        nonlocal rate
        rate = value

    return lambda x: x * rate, change


def nested_closure() -> Changing:
    rate = [1.0]

    def inner(x: br.Tensor) -> Any:
        return x * rate[0]

    return lambda x: inner(x) + 1, lambda value: rate.__setitem__(0, value)


def default() -> Changing:
    def function(x: br.Tensor, rate: Any = 1.0) -> Any:
        return x * rate

    return function, lambda value: setattr(function, "__defaults__", (value,))


def default_list() -> Changing:
    rates = [1.0]

    def function(x: br.Tensor, rates: list[Any] = rates) -> Any:
        return x * rates[0]

    return function, lambda value: rates.__setitem__(0, value)


def keyword_default() -> Changing:
    def function(x: br.Tensor, *, rate: Any = 1.0) -> Any:
        return x * rate

    return function, lambda value: setattr(function, "__kwdefaults__", {"rate": value})


def in_comprehension() -> Changing:
    return lambda x: [x * RATE for _ in range(2)][1], changed_global


def small_array() -> Changing:
    array = np.ones(3)
    return lambda x: x * float(array[0]), lambda value: array.__setitem__(0, value)


def in_partial() -> Changing:
    options = [1.0]

    def function(x: br.Tensor, options: list[Any]) -> Any:
        return x * options[0]

    partial = functools.partial(function, options=options)
    return partial, lambda value: options.__setitem__(0, value)


def callable_object() -> Changing:
    class Scale:
        rate: Any = 1.0

        def __call__(self, x: br.Tensor) -> Any:
            return x * self.rate

    scale = Scale()
    return scale, lambda value: setattr(scale, "rate", value)


def bound_method() -> Changing:
    model = Model()
    return model.helper, lambda value: setattr(model, "rate", value)


def model_attribute(change: Callable[[Model, Any], object]) -> Callable[[], Changing]:
    def changing() -> Changing:
        model = Model()
        return model.forward, functools.partial(change, model)

    return changing


def captured(settings: Any) -> Callable[[], Changing]:
    def changing() -> Changing:
        return lambda x: x * settings.rate, lambda value: setattr(settings, "rate", value)

    return changing


CHANGING: dict[str, Callable[[], Changing]] = {
    "a global variable": lambda: (lambda x: x * RATE, changed_global),
    "a global variable of a function that is called": lambda: (lambda x: helper(x), changed_global),
    "a global dictionary": lambda: (
        lambda x: x * OPTIONS["rate"],
        lambda value: OPTIONS.__setitem__("rate", value),
    ),
    "a variable of a module": lambda: (
        lambda x: x * MODULE.rate,
        lambda value: setattr(MODULE, "rate", value),
    ),
    "a closure": closure,
    "a list in a nested closure": nested_closure,
    "a default argument": default,
    "a list as default argument": default_list,
    "a keyword's default": keyword_default,
    "a comprehension": in_comprehension,
    "a small array": small_array,
    "functools.partial": in_partial,
    "a callable object": callable_object,
    "a bound method": bound_method,
    "an attribute": model_attribute(lambda model, value: setattr(model, "rate", value)),
    "a class attribute": model_attribute(lambda model, value: setattr(model, "momentum", value)),
    "an attribute of an attribute": model_attribute(
        lambda model, value: setattr(model.settings, "rate", value)
    ),
    "an object that is replaced": model_attribute(
        lambda model, value: setattr(model, "settings", Settings(value))
    ),
    "an attribute of an element": model_attribute(
        lambda model, value: setattr(model.layers[1], "rate", value)
    ),
    "an element that is replaced": model_attribute(
        lambda model, value: model.layers.__setitem__(0, Settings(value))
    ),
    "what a property reads": model_attribute(lambda model, value: setattr(model, "hidden", value)),
    "an object": captured(Settings(1.0)),
    "an object with slots": captured(Slotted(1.0)),
    "a namespace": captured(types.SimpleNamespace(rate=1.0)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_number_of_the_surroundings_is_that_of_the_call(name: str, x: br.Tensor) -> None:
    function, change = CHANGING[name]()
    fast: Any = br.compile(function)
    eager: Any = function
    if isinstance(function, types.MethodType) and isinstance(function.__func__, Compiled):
        plain = vars(function.__func__)["__wrapped__"]
        fast, eager = function, functools.partial(plain, function.__self__)
    for value in (1.0, 2.0, 1, 3, -0.0, 0.0, 2.0, float("nan")):
        change(value)
        for _ in range(2):
            expected = eager(x).numpy()
            assert fast(x).numpy().tobytes() == expected.tobytes(), value
    change(1.0)


class Adjustable:
    """An object without the attribute ``scale`` at first."""

    def apply(self, x: br.Tensor) -> br.Tensor:
        try:
            return x * self.scale  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            return x * 7


def test_an_attribute_that_appears_is_used(x: br.Tensor) -> None:
    compiled, instance = br.compile(Adjustable.apply), Adjustable()
    for scale in (None, None, 3.0, 4.0, None):
        if scale is None:
            vars(instance).clear()
        else:
            instance.scale = scale  # type: ignore[attr-defined]
        assert compiled(instance, x).tolist() == instance.apply(x).tolist()


def test_a_global_variable_that_appears_is_used(x: br.Tensor) -> None:
    def function(x: br.Tensor) -> br.Tensor:
        try:
            return x * APPEARING  # type: ignore[name-defined, no-any-return]
        except NameError:
            return x * 7

    compiled = br.compile(function)
    try:
        for rate in (None, 3.0, 4.0):
            if rate is not None:
                globals()["APPEARING"] = rate
            for _ in range(2):
                assert compiled(x).tolist() == function(x).tolist()
    finally:
        globals().pop("APPEARING", None)
    assert compiled(x).tolist() == function(x).tolist()


@pytest.mark.parametrize("clause", ["except:", "except* NameError:"])
def test_a_variable_that_appears_is_used_for_every_form_of_except(
    x: br.Tensor, clause: str
) -> None:
    names: dict[str, Any] = {}
    exec(f"def function(x):\n try:\n  y = x * rate\n {clause}\n  y = x * 7\n return y", names)
    function = names["function"]
    compiled = br.compile(function)
    for rate in (None, 3.0, 4.0):
        if rate is not None:
            names["rate"] = rate
        for _ in range(2):
            assert compiled(x).tolist() == function(x).tolist()


def test_a_variable_of_a_closure_may_have_no_value_yet(x: br.Tensor) -> None:
    def function(x: br.Tensor) -> br.Tensor:
        try:
            return x * late
        except NameError:
            return x * 7

    compiled = br.compile(function)
    assert compiled(x).tolist() == compiled(x).tolist() == (x * 7).tolist()
    late = 3.0
    assert compiled(x).tolist() == (x * 3).tolist()


def test_unchanged_surroundings_need_one_recording(x: br.Tensor) -> None:
    runs: queue.SimpleQueue[None] = queue.SimpleQueue()

    def function(x: br.Tensor) -> Any:
        runs.put(None)
        return helper(x) * OPTIONS["rate"]

    fast = br.compile(function)
    for _ in range(5):
        fast(x)
    assert runs.qsize() == 1


def test_a_function_that_changes_what_it_uses_is_recorded_each_time_and_warns(
    x: br.Tensor,
) -> None:
    class Counter:
        count = 0

        @br.compile
        def step(self, x: br.Tensor) -> Any:
            self.count += 1
            return x * self.count

    counter = Counter()
    with pytest.warns(UserWarning, match=r"step changes .*count, so each call is recorded") as seen:
        for count in range(1, 5):
            np.testing.assert_array_equal(counter.step(x).numpy(), x.numpy() * count)
    assert len(seen) == 1
    assert counter.count == 4


def test_a_helper_that_a_notebook_redefines_is_recorded_again(x: br.Tensor) -> None:
    cells: dict[str, Any] = {"br": br, "x": x}
    exec("def helper(x): return x * 2\n@br.compile\ndef f(x): return helper(x)", cells)
    exec("y = f(x).tolist()", cells)
    assert cells["y"] == [2.0, -4.0, 6.0]
    exec("def helper(x): return x * 3\ny = f(x).tolist()", cells)
    assert cells["y"] == [3.0, -6.0, 9.0]
    exec("@br.compile\ndef helper(x): return x * 4\ny = f(x).tolist()", cells)
    assert cells["y"] == [4.0, -8.0, 12.0]
    exec("@br.compile\ndef helper(x): return x * 5\ny = f(x).tolist()", cells)
    assert cells["y"] == [5.0, -10.0, 15.0]


def test_an_activation_that_an_object_exchanges_is_recorded_again(x: br.Tensor) -> None:
    model = Settings(br.abs)
    fast = br.compile(lambda x: model.rate(x))
    assert fast(x).tolist() == [1.0, 2.0, 3.0]
    model.rate = br.negative
    assert fast(x).tolist() == [-1.0, 2.0, -3.0]


# -- tensors ----------------------------------------------------------------------------------

WEIGHT: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    weight: br.Tensor


def capturing(weight: br.Tensor) -> dict[str, Callable[[br.Tensor], Any]]:
    global WEIGHT
    WEIGHT = weight + 1
    weights, options, holder = [weight, weight], {"w": weight}, Weights(weight)

    def with_default(x: br.Tensor, w: br.Tensor = weight) -> Any:
        return x * w

    class Layer:
        def __init__(self) -> None:
            self.w = weight

        @br.compile
        def forward(self, x: br.Tensor) -> Any:
            return x * self.w

        def __call__(self, x: br.Tensor) -> Any:
            return x * self.w

    return {
        "WEIGHT": lambda x: x * WEIGHT,
        "weight": lambda x: x * weight,
        r"weights\[1\]|weights\[0\]": lambda x: x * weights[1],
        r"options\['w'\]": lambda x: x * options["w"],
        "holder.weight": lambda x: x * holder.weight,
        "w ": with_default,
        "y ": functools.partial(lambda x, y: x * y, y=weight),
        "first ": functools.partial(lambda first, x: x * first, weight),
        "self.w": Layer().forward,
        "self.w ": Layer(),
    }


@pytest.mark.parametrize("place", range(10))
def test_a_captured_tensor_is_refused_by_its_name(device: br.Device, place: int) -> None:
    functions = capturing(device.tensor([1.0, 2.0, 3.0]))
    name = [*functions][place]
    x = device.tensor([1.0, 2.0, 3.0])
    function = functions[name]
    fast = function if isinstance(function, types.MethodType) else br.compile(function)
    for _ in range(2):
        with pytest.raises(br.UsageError, match=rf"test_guards.py:\d+.*uses ({name})"):
            fast(x)
    np.testing.assert_array_equal((x * 2).numpy(), [2, 4, 6])


def test_a_tensor_that_an_earlier_recording_left_behind_is_not_an_argument(
    device: br.Device,
) -> None:
    kept: list[Any] = []

    def function(x: br.Tensor, y: br.Tensor) -> Any:
        if not kept:
            kept.append((x, y))
            raise ValueError("stop")
        return kept[0][1] * x

    fast = br.compile(function)
    with pytest.raises(ValueError, match="stop"):
        fast(device.tensor([1.0]), device.tensor([5.0]))
    with pytest.raises(br.UsageError, match=r"uses kept\[0\]\[1\]"):
        fast(device.tensor([1.0, 2.0]), device.tensor([3.0, 4.0]))


def test_reads_of_tensors_on_other_devices_are_refused(x: br.Tensor) -> None:
    with br.LocalDevice() as other:
        scale = other.tensor(2.0)
        with pytest.raises(br.UsageError, match=r"test_guards.py:\d+: .*reads the elements"):
            br.compile(lambda x: x * scale.item())(x)
        assert scale.item() == 2


class Stateful:
    state: Any = None

    def __init__(self) -> None:
        self.history: list[Any] = []

    def __call__(self, x: br.Tensor) -> Any:
        raise NotImplementedError


class SetsAttribute(Stateful):
    def __call__(self, x: br.Tensor) -> Any:
        self.state = x * 2
        return x + 1


class Appends(Stateful):
    def __call__(self, x: br.Tensor) -> Any:
        y = x * 2
        self.history.append(y)
        return y.sum()


class StoresItsResult(Stateful):
    def __call__(self, x: br.Tensor) -> Any:
        self.state = x * 2
        return self.state


class KeepsArgument(Stateful):
    def __call__(self, x: br.Tensor) -> Any:
        self.state = x
        return x + 1


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (SetsAttribute, r"stores the tensor made at .*test_guards.py:\d+ outside"),
        (Appends, r"stores the tensor made at .*test_guards.py:\d+ outside"),
        (StoresItsResult, "stores one of its results outside .*; store what the call returns"),
        (KeepsArgument, "stores an argument outside"),
    ],
)
def test_a_tensor_stored_outside_is_refused(kind: Any, what: str, x: br.Tensor) -> None:
    with pytest.raises(br.UsageError, match=what):
        br.compile(kind())(x)


def test_reference_cycles_are_no_tensors_stored_outside(x: br.Tensor) -> None:
    def function(x: br.Tensor) -> Any:
        cycle: list[Any] = [x * 2, x]
        cycle.append(cycle)
        return x + 1

    np.testing.assert_array_equal(br.compile(function)(x).numpy(), x.numpy() + 1)


def test_a_changed_argument_is_refused(x: br.Tensor) -> None:
    def update(state: dict[str, Any], x: br.Tensor) -> Any:
        state["m"] = state["m"] + x
        return x * 2

    def extend(states: list[Any], x: br.Tensor) -> Any:
        states.append(1)
        return x * 2

    with pytest.raises(br.UsageError, match="changes a dict that is an argument"):
        br.compile(update)({"m": x}, x)
    with pytest.raises(br.UsageError, match="changes a list that is an argument"):
        br.compile(extend)([x], x)


@pytest.mark.parametrize(
    "made",
    [lambda y: functools.partial(str, y), lambda y: iter([y]), lambda y: {1, 2},
     lambda y: np.ones(2), lambda y: defaultdict(list, a=y), lambda y: y.device],
)  # fmt: skip
def test_a_result_that_later_calls_could_not_make_again_is_refused(made: Any, x: br.Tensor) -> None:
    with pytest.raises(br.UsageError, match="a compiled function returns an object of type"):
        br.compile(lambda x: made(x * 2))(x)


def test_results_may_be_ordered_dictionaries_and_constants(x: br.Tensor) -> None:
    fast = br.compile(lambda x: OrderedDict(y=x * 2, shape=x.shape, dtype=x.dtype, text="a"))
    for _ in range(2):
        result = fast(x)
        assert type(result) is OrderedDict
        assert result["shape"] == (3,)
        assert result["dtype"] is br.float32


# -- arguments --------------------------------------------------------------------------------


class Elementwise:
    """A hashable object whose ``==`` has no truth value, like that of a PyTorch tensor."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return np.ones(2, bool)


def test_static_arguments_are_compared_only_if_their_hashes_are_equal(x: br.Tensor) -> None:
    double = br.compile(lambda static, x: x + x)
    for static in (Elementwise(), Elementwise()):
        for _ in range(2):
            np.testing.assert_array_equal(double(static, x).numpy(), 2 * x.numpy())


@pytest.mark.parametrize(
    "pairs",
    [
        ({1: 0}, {True: 0}, {1.0: 0}),
        ({0.0: 0}, {-0.0: 0}),
        (frozenset([1]), frozenset([True]), frozenset([1.0])),
        (range(0, 3, 2), range(0, 4, 2)),
        (True, 1, 1.0, np.float64(1), np.bool_(True)),
        (slice(1), slice(2), slice(None), slice(0, 1, 1)),
    ],
)
def test_equal_arguments_of_other_types_are_told_apart(pairs: Any, x: br.Tensor) -> None:
    def function(x: br.Tensor, value: Any) -> Any:
        return x * 2, repr(value)

    fast = br.compile(function)
    for _ in range(2):
        for value in pairs:
            assert fast(x, value)[1] == function(x, value)[1]


@pytest.mark.parametrize("value", [defaultdict(list), type("Numbers", (list,), {})(), {1}, set()])
def test_other_containers_are_refused(value: Any, x: br.Tensor) -> None:
    with pytest.raises(br.ArgumentMismatch, match=r"of a compiled function is (of type|an unhash)"):
        br.compile(lambda x, value: x)(x, value)


def test_an_instance_is_not_kept_alive_by_its_compiled_method(x: br.Tensor) -> None:
    class Scale:
        factor = 3

        @br.compile
        def forward(self, x: br.Tensor) -> Any:
            return x * self.factor

    for factor in range(100):  # also more instances than graphs, without a warning
        scale = Scale()
        scale.factor = factor
        for _ in range(2):
            np.testing.assert_array_equal(scale.forward(x).numpy(), x.numpy() * factor)
        reference = weakref.ref(scale)
        del scale
        gc.collect(0)
        assert reference() is None
    forward: Any = Scale.__dict__["forward"]
    assert not forward._graphs
    assert not forward._found


@pytest.mark.parametrize(("members", "second"), [(64, 3.0), (65, 2.0)])
def test_containers_of_more_than_64_members_are_not_compared(
    members: int, second: float, x: br.Tensor
) -> None:
    numbers = [2.0] * members
    fast = br.compile(lambda x: x * numbers[0])
    np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * 2.0)
    numbers[0] = 3.0
    np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * second)


def test_two_instances_have_graphs_of_their_own(x: br.Tensor) -> None:
    one, two = Model(), Model()
    two.rate = 5.0
    for _ in range(3):
        np.testing.assert_array_equal(one.forward(x).numpy(), x.numpy() + 1)
        np.testing.assert_array_equal(two.forward(x).numpy(), x.numpy() * 5 + 1)


async def coroutine(x: br.Tensor) -> Any:
    return await asyncio.sleep(0, x)


def generator(x: br.Tensor) -> Any:
    yield x


@pytest.mark.parametrize("function", [coroutine, generator, functools.partial(generator)])
def test_generators_and_coroutines_are_refused(function: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match=r"not the (generator|coroutine) function"):
        br.compile(function)


@br.compile
def of_this_module(x: br.Tensor) -> Any:
    return x * 2


def test_a_compiled_function_is_copied_and_pickled_as_a_function(x: br.Tensor) -> None:
    assert copy.copy(of_this_module) is of_this_module
    assert copy.deepcopy(of_this_module) is of_this_module
    assert pickle.loads(pickle.dumps(of_this_module)) is of_this_module
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(br.compile(lambda x: x))


# -- threads, devices and errors --------------------------------------------------------------


def test_threads_may_record_the_same_function_on_the_same_device(device: br.Device) -> None:
    fast = br.compile(lambda x, n: ((x * n) + 1).sum() * (x - n))
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            for place in range(40):
                x = device.tensor(np.arange(1 + (seed + place) % 5, dtype=np.float32))
                n = place * 0.5
                expected = ((x * n) + 1).sum() * (x - n)
                np.testing.assert_array_equal(fast(x, n).numpy(), expected.numpy())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert device.runners.outermost is device.runners.owner


def test_a_function_may_wait_for_a_thread_that_records_on_the_device(x: br.Tensor) -> None:
    inner = br.compile(lambda x: x + 1)
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def function(y: br.Tensor) -> Any:
        thread = threading.Thread(target=lambda: results.put(inner(x).numpy()))
        thread.start()
        thread.join(PATIENCE_SECONDS)
        return y * 2

    np.testing.assert_array_equal(br.compile(function)(x).numpy(), x.numpy() * 2)
    np.testing.assert_array_equal(results.get(timeout=PATIENCE_SECONDS), x.numpy() + 1)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_while_recording_leaves_the_device_as_it_was(
    device: br.Device, x: br.Tensor, error: type[BaseException]
) -> None:
    raises = [True]

    def function(x: br.Tensor) -> Any:
        y = x * 2
        if raises[0]:
            raise error
        return y

    fast = br.compile(function)
    with pytest.raises(error):
        fast(x)
    assert device.runners.outermost is device.runners.owner
    raises[0] = False
    for _ in range(2):
        np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * 2)


def test_recursion_is_recorded_flat(x: br.Tensor) -> None:
    @br.compile
    def power(x: br.Tensor, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1)

    for exponent in (3, 0, 3, 2):
        np.testing.assert_array_equal(power(x, exponent).numpy(), x.numpy() ** (exponent + 1))


def test_a_compiled_function_works_on_several_devices_and_after_they_closed() -> None:
    fast = br.compile(lambda x, n: x[[0, 2]] * n + br.random.uniform((2,), device=x.device) * 0)
    kept = br.LocalDevice()
    for number in range(6):
        with br.LocalDevice() as other:
            for device in (kept, other):
                x = device.tensor([1.0, 2.0, 3.0])
                for factor in (number, 2 * number):
                    result = fast(x, factor)
                    assert result.device == device
                    np.testing.assert_array_equal(result.numpy(), [factor, 3 * factor])
    kept.close()


def test_a_graph_holds_only_while_recording_is_paused_as_it_was(x: br.Tensor) -> None:
    @br.compile
    def value(x: br.Tensor) -> Any:
        y = x.detach().requires_grad_() * 2
        return y * 10 if y.requires_grad else y

    for _ in range(2):
        np.testing.assert_array_equal(value(x).numpy(), x.numpy() * 20)
        with br.no_grad():
            np.testing.assert_array_equal(value(x).numpy(), x.numpy() * 2)
