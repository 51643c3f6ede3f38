"""Calls as other libraries and Python have them, and the advice of our errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import burn_remote as br

# A name for ``getattr``: the type checker knows that the module has no such attribute.
NO_NAME = "xavier"

# The package, without the type checker's knowledge of its names and arguments.
ANY: Any = br


@pytest.fixture(scope="module")
def x() -> Iterator[Any]:
    with br.LocalDevice() as device:
        yield br.ones((2, 3), device=device)


@pytest.mark.parametrize(
    ("call", "error", "advice"),
    [
        (lambda x: x.repeat(2, 1), br.ArgumentMismatch, r"write x\.tile\(\(2, 1\)\)"),
        (lambda x: round(x), TypeError, r"write x\.round\(\)"),
        (lambda _: getattr(br.init, NO_NAME), AttributeError, r"burn_remote\.init\.xavier_uniform"),
        (lambda x: ANY.optim.SGD([x], learning_rate=0.1), br.ArgumentMismatch, "burn_remote: lr="),
        (lambda x: ANY.autograd.grad(x, x, only_inputs=True), br.ArgumentMismatch, "only inputs"),
        (
            lambda x: ANY.checkpoint(abs, x),
            br.ArgumentMismatch,
            r"write checkpoint\(function\)\(x\)",
        ),
        (lambda _: ANY.nn.Module, AttributeError, "nested containers of weights"),
        (lambda _: ANY.jacobian, AttributeError, r"burn_remote\.vjp\(f, x\)"),
        (
            lambda x: ANY.grad(lambda x: x.sum(), argnums="x")(x),
            br.ArgumentMismatch,
            "argnums is the position .* not 'x'$",
        ),
        (
            lambda _: ANY.LocalDevice(custom_operations="my_operations"),
            br.ArgumentMismatch,
            "is a list of custom operations, .* not 'my_operations'$",
        ),
        (
            lambda _: ANY.LocalDevice(custom_operations=7),
            br.ArgumentMismatch,
            "is a list of custom operations, .* not 7$",
        ),
        (lambda _: ANY.devices(), br.ArgumentMismatch, r"burn_remote\.RemoteDevice\('ws://"),
        (lambda x: x.zero_(), AttributeError, r"for a gradient w\.grad = None"),
        (lambda x: x.copy_(x), AttributeError, r"for a parameter x\.data = y"),
    ],
)
def test_a_call_that_means_something_else_gets_advice(
    x: br.Tensor, call: Callable[[Any], object], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        call(x)


def test_a_server_that_does_not_answer_is_named_with_the_option_and_without_a_route() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        expected = (
            f"^{address} did not answer within 0.2 seconds; .* raise connect_timeout_seconds$"
        )
        with pytest.raises(br.ConnectionFailed, match=expected):
            br.RemoteDevice(address, connect_timeout_seconds=0.2)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda x: x.max(dim=1), r"values and indices in PyTorch.*max_with_indices\(axis\)"),
        (lambda x: x.max(1, keepdim=True)[1], "values and indices in PyTorch"),
        (lambda x: ANY.min(x, dim=0), r"x\.min_with_indices\(axis\)"),
        (lambda x: x.sort(dim=1), r"x\.sort_with_indices\(axis=…\)"),
        (lambda x: ANY.median(x, dim=1), "PyTorch takes the lower one"),
        (lambda x: x.cummax(dim=1), "values and indices in PyTorch"),
        (lambda x: ANY.cummin(x, dim=1), "values and indices in PyTorch"),
        (lambda x: x.var(dim=1), r"divides by n - 1 in PyTorch.*write axis= with correction=1"),
        (lambda x: x.std(1, keepdim=True), "divides by n - 1 in PyTorch"),
        (lambda x: ANY.split(x, 2, dim=0), "sizes of the parts in PyTorch"),
    ],
)
def test_a_keyword_of_pytorch_is_refused_where_its_function_returns_something_else(
    call: Callable[[Any], object], advice: str, x: Any
) -> None:
    with pytest.raises(br.ArgumentMismatch, match=advice):
        call(x)


def test_a_keyword_of_pytorch_is_accepted_where_the_meaning_is_certain(x: Any) -> None:
    assert x.sum(dim=1, keepdim=True).shape == (2, 1)
    assert x.argmax(dim=1).shape == (2,)
    assert x.var(dim=1, correction=1).tolist() == [0.0, 0.0]
    assert x.std(dim=1, ddof=0).tolist() == [0.0, 0.0]
