"""Kernels that are compiled before they are first needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import burn_remote_server.fusion.cpu.block_program as block_program
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler, Kernels
from burn_remote_server.programs import graphs

__all__ = ["compiled_at_once"]


@contextmanager
def compiled_at_once(block_elements: int = 64) -> Iterator[None]:
    """Let programs compile their kernels and wait for them at their first run, in small blocks."""
    found = KernelCompiler.found

    def found_at_once(
        compiler: KernelCompiler, source: str, names: tuple[str, ...]
    ) -> Kernels | None:
        found(compiler, source, names)
        compiler.wait()
        return found(compiler, source, names)

    with (
        patch.object(KernelCompiler, "found", found_at_once),
        patch.object(block_program, "COMPILED_AT", 1),
        patch.object(graphs, "COMPILED_AT", 1),
        patch.object(block_program, "KERNEL_BLOCK_ELEMENTS", block_elements),
    ):
        yield
