"""Reads that are pending or done."""

from __future__ import annotations

import gc
import weakref

import burn_remote as br


def test_the_elements_of_a_read_are_freed_without_a_garbage_collection(device: br.Device) -> None:
    gc.disable()
    try:
        reading = br.ones((10,), device=device).read()
        elements = weakref.ref(reading.result())
        del reading
        assert elements() is None
    finally:
        gc.enable()
