"""``Fusion`` decorates a backend: everything but the fusers is the inner backend's."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, F32
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.fuser import FuserStatus
from burn_remote_server.fusion.fusing_backend import Fusion, FusionBackend
from burn_remote_server.fusion.runtime_selection import with_fusion

# ``supports_dtype`` follows from another member.
MEMBERS = [name for name in vars(Backend) if not name.startswith("_")]


class Answering:
    """Records the member of a backend that was used, and answers with its name."""

    name, ad_enabled = "inner", False

    def __getattribute__(self, member: str) -> Any:
        if member in ("name", "ad_enabled", "__class__"):
            return object.__getattribute__(self, member)
        if isinstance(vars(Backend)[member], property):
            return member
        return lambda *arguments, **options: member


def test_the_name_says_what_is_decorated() -> None:
    backend = with_fusion(NumpyBackend())
    assert isinstance(backend, FusionBackend)
    assert backend.name == "fusion<numpy>"


@pytest.mark.parametrize("member", sorted({*MEMBERS} - {"name", "ad_enabled"}))
def test_each_member_of_a_backend_is_that_of_the_inner_one(member: str) -> None:
    backend = Fusion(Answering(), None)  # type: ignore[arg-type]
    found = getattr(backend, member)
    if not isinstance(vars(Backend)[member], property):
        parameters = inspect.signature(getattr(Backend, member)).parameters
        found = found(*[None] * (len(parameters) - 1))
    # Some members return nothing; that they reach the inner backend is enough.
    assert found in (member, None)
    assert member in vars(Fusion) or member in vars(backend)


def test_a_backend_without_fusers_is_not_decorated() -> None:
    class Other(NumpyBackend):
        name = "other"

    backend = Other()
    assert with_fusion(backend) is backend


def test_cast_float_rounds_to_a_dtype() -> None:
    backend = with_fusion(NumpyBackend())
    assert isinstance(backend, FusionBackend)
    low = backend.cast_float(np.array([1.00390625], np.float32), BF16)
    assert backend.cast_float(low, F32).tolist() == [1.0]
    assert backend.full_precision_backend is backend


def test_the_fusers_of_a_stream_are_new_and_open() -> None:
    backend = with_fusion(NumpyBackend())
    assert isinstance(backend, FusionBackend)
    first, second = backend.fusers(), backend.fusers()
    assert not {*map(id, first)} & {*map(id, second)}
    assert all(fuser.status() is FuserStatus.OPEN and len(fuser) == 0 for fuser in first)
