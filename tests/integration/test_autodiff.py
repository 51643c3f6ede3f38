"""Gradients over real connections, in both dialects and between servers."""

from __future__ import annotations

import numpy as np

import burn_remote as br
from support.servers import RunningServer

WEIGHT = np.array([[0.5, -1.0], [2.0, 0.25], [1.0, 1.0]])
INPUT = np.array([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
GRADIENT = INPUT.T @ (1 - np.tanh(INPUT @ WEIGHT) ** 2)


def test_backward_takes_no_request_until_the_gradient_is_read(device: br.Device) -> None:
    weight = device.tensor(WEIGHT).requires_grad_()
    x = device.tensor(INPUT)
    device.sync()
    before = device.traffic
    for _ in range(3):
        br.tanh(x @ weight).sum().backward()
    assert (device.traffic - before).requests == 0
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), 3 * GRADIENT)


def test_gradients_cross_servers_without_a_request(
    remote_pair: tuple[br.RemoteDevice, br.RemoteDevice],
) -> None:
    a, b = remote_pair
    weight = a.tensor(WEIGHT).requires_grad_()
    x = b.tensor(INPUT)
    a.sync()
    b.sync()
    before = a.traffic, b.traffic
    br.tanh(x @ weight.to(b)).sum().backward()
    assert (a.traffic - before[0]).requests == (b.traffic - before[1]).requests == 0
    assert weight.grad is not None
    assert weight.grad.device == a
    np.testing.assert_allclose(weight.grad.numpy(), GRADIENT)


def test_gradients_cross_dialects(first_server: RunningServer) -> None:
    with (
        br.RemoteDevice(first_server.address, dialect="burn-0.21") as a,
        br.LocalDevice() as b,
    ):
        weight = a.tensor(WEIGHT).requires_grad_()
        br.tanh(b.tensor(INPUT) @ weight.to(b)).sum().backward()
        assert weight.grad is not None
        assert weight.grad.device == a
        np.testing.assert_allclose(weight.grad.numpy(), GRADIENT)


def test_forwards_without_backward_leave_nothing_on_the_server(
    first_server: RunningServer,
) -> None:
    name = "burn_remote_tensors"
    with br.RemoteDevice(first_server.address) as device:
        weight = device.tensor(WEIGHT).requires_grad_()
        x = device.tensor(INPUT)
        device.sync()
        before = first_server.metric(name)
        for _ in range(1000):
            br.tanh(br.exp(x @ weight)).sum()
        loss = weight.sum()
        for _ in range(5000):
            loss = br.tanh(loss)
        loss.backward()
        del loss
        weight.grad = None
        device.sync()
        assert first_server.metric(name) <= before + 1


def test_a_failed_forward_operation_fails_the_gradient_and_names_its_line(
    device: br.Device,
) -> None:
    weight = device.tensor(WEIGHT).requires_grad_()
    failed = br.custom("missing", device.tensor(WEIGHT), outputs=br.TensorSpec((3, 2), br.float64))
    (weight * failed).sum().backward()
    assert weight.grad is not None
    try:
        weight.grad.numpy()
    except br.OperationFailed as error:
        assert "missing" in str(error)
        assert "test_autodiff.py" in str(error)
    else:
        raise AssertionError("the gradient depends on a failed operation")
