"""Operations of finalizers, which may run while their thread is sending another operation."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.servers import RunningServer


@pytest.fixture
def automatic_device(first_server: RunningServer) -> Iterator[br.Device]:
    """A device whose session recognizes repeated operations."""
    with br.RemoteDevice(first_server.address, automatic_graphs=True) as device:
        yield device


# A collection after this many new objects. With 1, they come wherever an object is made.
@pytest.mark.parametrize("objects", [20, 5, 1])
def test_operations_of_finalizers_neither_hang_nor_disturb_others(
    device: br.Device, objects: int
) -> None:
    check(device, objects)


@pytest.mark.parametrize("objects", [20, 1])
def test_operations_of_finalizers_do_not_disturb_automatic_graphs(
    automatic_device: br.Device, objects: int
) -> None:
    check(automatic_device, objects)


def check(device: br.Device, objects: int) -> None:
    """Issue operations while the garbage collector calls functions that issue others.

    It runs after so many new objects.
    """
    x = br.ones((4, 4), device=device)
    array = np.ones((200, 200))
    refused: list[str] = []
    given = 0
    is_running = False
    thread = threading.get_ident()

    def use_tensor(*_: Any) -> None:
        nonlocal given, is_running
        if is_running or threading.get_ident() != thread:
            return
        is_running = True
        try:
            given += (x + 1).size
            if given % 5 == 0:
                given += int((x + 1).sum().item())
        except br.UsageError as error:
            refused.append(str(error))
        finally:
            is_running = False

    thresholds = gc.get_threshold()
    y = x
    uploaded = 0.0
    gc.callbacks.append(use_tensor)
    gc.set_threshold(objects)
    try:
        for number in range(300):
            y = y * 1.0
            if number % 60 == 0:
                uploaded += br.tensor(array, device=device).sum().item()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(use_tensor)
    assert y.sum().item() == 16
    assert uploaded == 5 * array.size
    assert given, "no operation of a callback was issued"
    assert refused, "no callback came while its thread was sending"
    assert all("finalizer" in text for text in refused)
    device.sync()
