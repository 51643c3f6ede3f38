"""What a call does not take is refused with what was seen, what is expected and what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote
from support.runners import RecordingDevice

# Type checkers would refuse these calls before they are made.
br: Final[Any] = burn_remote
DEVICE: Final[Any] = RecordingDevice()


def f(*shape: int) -> Any:
    return br.ones(shape, device=DEVICE)


def refused(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


NO_WHOLE_NUMBERS: dict[str, Callable[[], object]] = {
    "a seed is a whole number, not 'a'": lambda: DEVICE.seed("a"),
    "a seed is a whole number, not 1.5": lambda: DEVICE.seed(1.5),
    "an axis is a whole number, not 'a'": lambda: f(2).sum(axis="a"),
    "an axis is a whole number, not 0.5": lambda: f(2).sum(axis=0.5),
    r"a tuple of them, not \(2.5,\)": lambda: br.zeros((2.5,), device=DEVICE),
    "a tuple of them, not 'ab'": lambda: br.zeros("ab", device=DEVICE),
    r"a tuple of them, not \(2, '3'\)": lambda: f(6).reshape(2, "3"),
    "a size in block=1.5 is a whole number": lambda: br.quant_scheme(block=1.5),
    "a size in block='a' is a whole number": lambda: br.quant_scheme(block="a"),
}


@pytest.mark.parametrize("text", NO_WHOLE_NUMBERS)
def test_what_is_no_whole_number_is_named(text: str) -> None:
    refused(NO_WHOLE_NUMBERS[text], br.ArgumentMismatch, text)


OUT_OF_RANGE: dict[str, Callable[[], object]] = {
    "a seed is from 0 to 18,446,744,073,709,551,615, not -1": lambda: DEVICE.seed(-1),
    "from 1 to 255, not 0": lambda: br.quant_scheme(block=0),
    "from 1 to 255, not 256": lambda: br.quant_scheme(block=(4, 256)),
    r"block=\(\) is not one to 5 sizes": lambda: br.quant_scheme(block=()),
    "value=3 is none of Q8F": lambda: br.quant_scheme(3),
    r"value=\['Q8S'\] is none of Q8F": lambda: br.quant_scheme(["Q8S"]),
}


@pytest.mark.parametrize("text", OUT_OF_RANGE)
def test_a_value_that_cannot_be_is_named_with_those_that_can(text: str) -> None:
    refused(OUT_OF_RANGE[text], br.UsageError, text)


def test_integers_of_numpy_are_whole_numbers() -> None:
    assert br.quant_scheme(block=np.int64(4)).level == (4,)
    assert br.quant_scheme(block=[np.int64(4), 2]).level == (4, 2)
    assert f(6).reshape(np.int64(2), 3).shape == (2, 3)


def test_a_local_device_computes_on_after_a_seed_was_refused() -> None:
    with br.LocalDevice() as device:
        refused(lambda: device.seed(1.5), br.ArgumentMismatch, "not 1.5")
        assert br.ones(2, device=device).tolist() == [1, 1]
