"""What a tensor's texts show, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br


@pytest.fixture
def elements() -> Iterator[None]:
    """Have texts show the elements of tensors of at most 6 elements."""
    br.set_printoptions(threshold=6)
    yield
    br.set_printoptions()


@pytest.fixture
def own() -> Iterator[br.Device]:
    with br.LocalDevice() as device:
        yield device


def failed(device: br.Device) -> br.Tensor:
    return br.ones((2,), device=device).take(br.tensor([7], device=device), axis=0)


def test_by_default_no_text_asks_the_server(own: br.Device) -> None:
    x = br.ones((2,), device=own)
    before = own.traffic
    assert repr(x) == str(x) == f"{x}" == "Tensor(shape=(2,), dtype=float32, device=local:numpy)"
    assert x._repr_html_() == (
        "<div><b>Tensor</b> (2,) · <code>float32</code> · on local:numpy</div>"
    )
    assert (own.traffic - before).requests == 0


def test_elements_of_small_tensors_are_shown_on_request(own: br.Device, elements: None) -> None:
    x = br.tensor([[1.0, 2.5], [3.0, 4.0]], device=own)
    before = own.traffic
    assert repr(x) == (
        f"Tensor({np.array2string(x.numpy(), separator=', ', prefix='Tensor(')}, "
        "shape=(2, 2), dtype=float32, device=local:numpy)"
    )
    assert (own.traffic - before).requests == 2  # this test's own read, and that of repr
    assert "<pre>[[1. , 2.5],\n [3. , 4. ]]</pre>" in x._repr_html_()
    assert repr(br.ones((7,), device=own)).startswith("Tensor(shape=(7,)")


def test_a_scalar_is_shown_on_request(own: br.Device, elements: None) -> None:
    loss = br.tensor(0.125, device=own)
    assert repr(loss).startswith("Tensor(0.125, shape=(), ")


def test_a_format_of_a_scalar_is_one_read(own: br.Device) -> None:
    loss = br.tensor(0.12345, device=own)
    before = own.traffic
    assert f"loss {loss:.3f}, {loss.mean():8.1e}" == "loss 0.123,  1.2e-01"
    assert (own.traffic - before).requests == 2


@pytest.mark.parametrize("form", [repr, str, br.Tensor._repr_html_])
def test_a_failed_tensor_is_shown_with_its_failure(
    own: br.Device, elements: None, form: object
) -> None:
    text = form(failed(own))  # type: ignore[operator]
    assert "(1,)" in text
    assert "OperationFailed: " in text


@pytest.mark.parametrize("form", [repr, str, br.Tensor._repr_html_])
def test_a_tensor_of_a_closed_device_is_shown_as_closed(elements: None, form: object) -> None:
    with br.LocalDevice() as device:
        x = br.ones((2,), device=device)
    assert "closed" in form(x)  # type: ignore[operator]


def test_a_tracked_tensor_says_so(own: br.Device, elements: None) -> None:
    x = br.tensor([1.0], device=own, requires_grad=True)
    assert repr(x).endswith(", requires_grad=True)")
    assert "requires_grad=True" in x._repr_html_()


def test_a_quantized_tensor_is_shown_with_the_reason_why_it_has_no_elements(
    own: br.Device,
) -> None:
    br.set_printoptions(threshold=1000)
    try:
        x = br.quantize(br.ones((32,), device=own), br.quant_scheme("Q8S"))
        assert "DTypeMismatch: " in repr(x)
    finally:
        br.set_printoptions()


def test_a_text_inside_a_compiled_function_leaves_the_recording_intact(
    own: br.Device, elements: None
) -> None:
    @br.compile
    def double(x: br.Tensor) -> br.Tensor:
        y = x * 2
        assert repr(y).startswith("Tensor(")
        return y

    assert double(br.ones((2,), device=own)).tolist() == [2, 2]


def test_a_markup_in_an_address_is_escaped(own: br.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(br.LocalDevice, "__str__", lambda _: "<script>")
    assert "on &lt;script&gt;" in br.ones((1,), device=own)._repr_html_()


def test_a_threshold_that_is_no_count_is_refused() -> None:
    with pytest.raises(br.UsageError, match="threshold"):
        br.set_printoptions(threshold=-1)
