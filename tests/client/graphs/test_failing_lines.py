"""A failure at every step of a function in turn: compiled and fused, it has the eager line."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import Run
from burn_remote_server.fusion.cpu import kernel_compiler
from burn_remote_server.hosting import local
from support.failing_kernels import FailingKernel
from support.random_programs import forced_fusion

Program = Callable[[br.Tensor, br.Tensor], tuple[br.Tensor, ...]]


def program(x: br.Tensor, y: br.Tensor) -> tuple[br.Tensor, ...]:
    a = x + y
    b = a * 2.0
    c = b.exp()
    d = c - x
    e = d / y
    f = e.sum(axis=0)
    g = f + x[0]
    h = a > 0.5
    i = br.where(h, b, d)
    j = i.tanh()
    k = j @ j.T
    m = br.sort(k, axis=0)
    n = m.std()
    o = y.sqrt()
    p = o + 1.0
    return a, b, e, g, i, k, m, n, o, p


@contextlib.contextmanager
def opened() -> Iterator[br.Device]:
    """Open a device; closing it reports failures that nobody has read."""
    device = br.LocalDevice()
    try:
        yield device
    finally:
        with warnings.catch_warnings(), contextlib.suppress(OperationFailed):
            warnings.simplefilter("ignore")
            device.close()


def arguments(device: br.Device) -> tuple[br.Tensor, br.Tensor]:
    numbers = np.linspace(0.1, 2, 12, dtype=np.float32).reshape(3, 4)
    return device.tensor(numbers), device.tensor(numbers + 1)


def signatures() -> list[Signature]:
    """Return the operations of the program."""
    found: list[Signature] = []
    bind = ArraySession.bind

    def bound(session: ArraySession, signature: Signature) -> Run:
        if signature not in found:
            found.append(signature)
        return bind(session, signature)

    with patch.object(ArraySession, "bind", bound), opened() as device:
        for output in program(*arguments(device)):
            output.numpy()
    return found


def outcomes(function: Program, failing: FailingKernel, calls_before: int) -> list[Any]:
    """Return the bytes, or the failure and its line, of each output."""
    found: list[Any] = []
    with opened() as device:
        given = arguments(device)
        for _ in range(calls_before):
            for output in function(*given):
                output.numpy()
        failing.is_armed = True
        for output in function(*given):
            try:
                found.append(output.numpy().tobytes())
            except OperationFailed as error:
                found.append((type(error), error.reason, error.operation, error.location))
        failing.is_armed = False
    return found


@pytest.mark.parametrize("after", [False, True], ids=["before it writes", "after it has written"])
def test_a_failing_step_has_its_line_and_fails_the_same_tensors(
    after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled kernels cannot fail, and would run in place of the one that is made to.
    monkeypatch.setattr(kernel_compiler, "opened_compiler", lambda: None)
    monkeypatch.setattr(local, "_backends", {})  # the process's backend may have a compiler already
    targets = signatures()
    assert len(targets) > 20
    for target in targets:
        failing = FailingKernel(target, lambda: OperationFailed("it was made to fail"), after=after)
        with failing.installed():
            expected = outcomes(program, failing, 0)
            assert outcomes(br.compile(program), failing, 2) == expected, target
            with forced_fusion(4):
                assert outcomes(program, failing, 3) == expected, target
                assert outcomes(br.compile(program), failing, 2) == expected, target
        failures = [one for one in expected if isinstance(one, tuple)]
        assert failures and all(__file__ in location for *_, location in failures)
