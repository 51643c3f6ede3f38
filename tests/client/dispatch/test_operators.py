"""Operators issue one operation per call, for any class made of a handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.dispatch.operators import (
    MAX_UPLOADED_RANGE,
    Operator,
    constant,
    counted,
    filled,
    reshaped,
    upload,
    with_rank,
)
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.operations.families import base, numeric, session
from support.runners import RecordingDevice

ADD = Operator(numeric.ADD)
ABS = Operator(numeric.ABS)


class Held:
    """A class that is not ``Tensor`` but made of a handle."""

    def __init__(self, handle: TensorHandle) -> None:
        self.handle = handle


def issued(device: RecordingDevice, since: int) -> list[str]:
    return device.runner.names[since:]


def test_results_have_the_class_of_the_first_operand(device: RecordingDevice) -> None:
    x = Held(br.ones((2,), device=device).handle)
    assert type(ABS.unary(x)) is type(ADD.binary(x, x)) is Held
    assert type(reshaped(x, (1, 2))) is type(constant(x, 1)) is Held
    assert type(upload(x, np.ones(2))) is type(counted(Held, x.handle.client, 3)) is Held


def test_an_object_without_a_handle_is_refused(device: RecordingDevice) -> None:
    argument: Any = [1, 2]
    with pytest.raises(br.ArgumentMismatch, match="x is of type list, not a tensor"):
        ABS.unary(argument)


def test_operands_of_equal_rank_take_one_operation(device: RecordingDevice) -> None:
    x, y = br.ones((4, 3), device=device), br.ones((1, 3), device=device)
    before = len(device.runner.names)
    assert ADD.binary(x, y).shape == (4, 3)
    assert issued(device, before) == ["NumericFloat.Add"]


def test_the_operand_of_lower_rank_is_reshaped_by_one_operation(device: RecordingDevice) -> None:
    x, y = br.ones((4, 3), device=device), br.ones((3,), device=device)
    for first, second in ((x, y), (y, x), (x, y)):
        before = len(device.runner.names)
        assert ADD.binary(first, second).shape == (4, 3)
        assert issued(device, before) == ["BaseFloat.Reshape", "NumericFloat.Add"]


def test_a_list_of_tensors_on_two_devices_is_refused_before_anything_is_sent(
    device: RecordingDevice,
) -> None:
    x, y = br.ones((2,), device=device), br.ones((2,), device=RecordingDevice())
    before = len(device.runner.names)
    with pytest.raises(br.DeviceMismatch, match=r"on different devices: .*x\.to\(device\)"):
        Operator(base.CAT).apply_to_list([x, y], (0,))
    assert issued(device, before) == []


def train_with(device: br.Device, given: br.Tensor) -> None:
    w = br.ones((1,), device=device)
    with br.DataParallel(lambda w, x: (w * x).sum(), w, [device]) as trainer:
        trainer.replicas = [given]


# What refuses a tensor that is not on the device.
REFUSING: dict[str, Callable[[br.Device, br.Tensor], object]] = {
    "an operation": lambda device, given: br.ones((1,), device=device) + given,
    "a group": lambda device, given: br.distributed.Group([device]).all_reduce([given]),
    "a broadcast": lambda device, given: br.distributed.Group([device]).broadcast(given),
    "training": train_with,
    "a gradient": lambda device, given: (
        br.ones((1,), device=device, requires_grad=True) * 2
    ).backward(given),
    "an optimizer": lambda device, given: br.optim.SGD(lr=0.1).update(
        br.ones((1,), device=device), given, br.optim.SGD(lr=0.1).init(br.ones(1, device=device))
    ),
    "full": lambda device, given: br.full((2,), given.reshape(()), device=device),
    "publish": lambda device, given: device.publish("name", given),
    "compile": lambda device, given: br.compile(lambda x: given)(br.ones((1,), device=device)),
    "a compiled function": lambda device, given: br.compile(lambda x, y: x + y)(
        br.ones((1,), device=device), given
    ),
}


@pytest.mark.parametrize("name", REFUSING)
def test_different_devices_of_equal_names_are_distinguished(name: str) -> None:
    text = r"local:numpy.* \(each LocalDevice\(\) is a device of its own\)"
    with br.LocalDevice() as one, br.LocalDevice() as other:
        given = other.tensor([2.0])
        with pytest.raises(br.BurnRemoteError, match=text):
            REFUSING[name](one, given)


def test_outputs_of_a_list_operation_have_the_declared_specs(device: RecordingDevice) -> None:
    x = br.ones((2,), device=device)
    specs = (br.TensorSpec((3,), br.int8), br.TensorSpec((), br.float64))
    outputs = Operator(session.CUSTOM).apply_lists([x, x], ("name", ()), specs)
    assert tuple(out.handle.spec for out in outputs) == specs


def test_reshaping_to_the_same_shape_issues_nothing(device: RecordingDevice) -> None:
    x = br.ones((2, 3), device=device)
    before = len(device.runner.names)
    assert reshaped(x, (2, 3)) is x
    assert with_rank(x, 2) is x
    assert issued(device, before) == []
    assert with_rank(x, 4).shape == (1, 1, 2, 3)


@pytest.mark.parametrize(
    ("dtype", "number", "row"),
    [
        (br.float32, 2, "NumericFloat.Full"), (br.int8, 2, "NumericInt.Full"),
        (br.bool, True, "BaseBool.Ones"), (br.bool, False, "BaseBool.Zeros"),
    ],
)  # fmt: skip
def test_a_fill_uses_the_operation_of_its_dtype(
    device: RecordingDevice, dtype: br.DType, number: float, row: str
) -> None:
    spec = br.TensorSpec((2,), dtype)
    assert filled(device.client, spec, number).spec == spec
    assert device.runner.names[-1] == row


def test_a_constant_broadcasts_with_its_tensor(device: RecordingDevice) -> None:
    one = constant(br.ones((2, 3), dtype=br.int16, device=device), 7)
    assert one.handle.spec == br.TensorSpec((1, 1), br.int16)


@pytest.mark.parametrize("count", [0, 1, MAX_UPLOADED_RANGE, MAX_UPLOADED_RANGE + 1])
def test_a_range_of_any_length_counts_from_zero(count: int) -> None:
    with br.LocalDevice() as local:
        assert counted(br.Tensor, local.client, count).tolist() == list(range(count))


def test_only_a_short_range_is_uploaded(device: RecordingDevice) -> None:
    counted(br.Tensor, device.client, MAX_UPLOADED_RANGE)
    assert len(device.runner.uploads) == 1
    counted(br.Tensor, device.client, MAX_UPLOADED_RANGE + 1)
    assert len(device.runner.uploads) == 1


MUL_SCALAR = Operator(numeric.MUL_SCALAR)


@pytest.mark.parametrize(
    ("number", "alike"),
    [(0.0, -0.0), (-0.0, 0.0), (1, True), (2, 2.0), (1.0, np.float32(1)), (2**53 + 1, 2.0**53)],
    ids=repr,
)
def test_numbers_that_compare_equal_are_not_confused(
    number: Any, alike: Any, device: RecordingDevice
) -> None:
    kind = br.int64 if isinstance(number, int) else br.float64
    x = Held(br.ones((2,), dtype=kind, device=device).handle)
    for _ in range(2):
        MUL_SCALAR.scalar(x, number)
    try:
        Operator(numeric.MUL_SCALAR).scalar(x, alike)
    except br.DTypeMismatch:
        with pytest.raises(br.DTypeMismatch):
            MUL_SCALAR.scalar(x, alike)
        return
    MUL_SCALAR.scalar(x, alike)
    alone, seen = device.runner.operations[-2:]
    assert repr(seen.signature) == repr(alone.signature)


def test_a_number_that_is_repeated_is_looked_up_by_the_identity_of_the_spec(
    device: RecordingDevice,
) -> None:
    x = Held(br.ones((2,), device=device).handle)
    operator = Operator(numeric.MUL_SCALAR)
    for number in (3, 0.5, 0.0, float("nan")):
        for _ in range(3):
            operator.scalar(x, number)
    assert len(operator._signatures.recent) == 2  # not 0.0 and NaN
    assert len(operator._signatures.known) == 4


def test_an_operator_that_repeats_issues_the_same_operation(device: RecordingDevice) -> None:
    x, y = br.ones((4, 3), device=device), br.ones((1, 3), device=device)
    before = len(device.runner.names)
    for _ in range(3):
        assert (x + y).shape == (x * 2).shape == (x > 0.5).shape == (4, 3)
        assert (x @ br.ones((3, 2), device=device)).shape == (4, 2)
    names = ["NumericFloat.Add", "NumericFloat.MulScalar", "NumericFloat.GreaterElem"]
    assert issued(device, before) == [*names, "BaseFloat.Ones", "Float.Matmul"] * 3


def test_dividing_integers_gives_floats_also_after_a_truncated_division(
    device: RecordingDevice,
) -> None:
    x = br.ones((2,), dtype=br.int32, device=device)
    for _ in range(2):
        assert br.trunc_divide(x, 2).dtype is br.trunc_divide(x, x).dtype is br.int32
        assert (x / 2).dtype is (x / x).dtype is br.float32


def test_an_error_of_an_operator_does_not_show_the_lookup_in_its_cache(
    device: RecordingDevice,
) -> None:
    with pytest.raises(br.ShapeMismatch) as caught:
        br.ones((2,), device=device) + br.ones((3,), device=device)
    assert not isinstance(caught.value.__context__, KeyError)


def test_numbers_that_are_equal_but_different_stay_different() -> None:
    with br.LocalDevice() as device:
        x = br.zeros((1,), device=device) - 0.0
        for _ in range(2):
            assert np.signbit((x * -0.0).numpy()).all()
            assert not np.signbit((x * 0.0).numpy()).any()
            assert (x + 1).item() == (x + 1.0).item() == 1


def test_an_operator_that_repeats_names_the_line_of_the_program() -> None:
    with br.LocalDevice() as device:
        x = br.ones((2,), device=device)
        session: Any = x.handle.client.session
        for _ in range(2):
            for y in (x + x, x * 2, x > 0):
                assert session._locations.find(y.handle.id).startswith(f"{__file__}:")
