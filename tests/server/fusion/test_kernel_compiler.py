"""Kernels are compiled beside the sessions, once, and in bounded number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import burn_remote_server.fusion.cpu.kernel_compiler as kernel_compiler
from burn_remote_protocol.messages import DefineGraph
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion import background_compiler
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.engines import EngineSession
from support.fused_sessions import ADD, TWICE, fused_session

llvmlite = pytest.importorskip("llvmlite", reason="the extra fusion is not installed")

GRAPH = 4096


@pytest.fixture
def compiler() -> Iterator[kernel_compiler.KernelCompiler]:
    """A new compiler of this process."""
    with patch.dict(kernel_compiler._opened, clear=True):
        opened = kernel_compiler.opened_compiler()
        assert opened is not None
        yield opened
        opened.wait()


@pytest.fixture
def session(compiler: kernel_compiler.KernelCompiler) -> Iterator[EngineSession]:
    with fused_session() as session:
        yield session


SOURCE = """
define void @one(ptr %pointers, ptr %strides, ptr %lengths) {
  ret void
}
"""


def sources(count: int) -> list[str]:
    """Return different sources of the function ``one``."""
    return [f"; {place}\n{SOURCE}" for place in range(count)]


def test_a_source_is_compiled_beside_its_user(compiler: kernel_compiler.KernelCompiler) -> None:
    assert compiler.found(SOURCE, ("one",)) is None
    compiler.wait()
    kernels = compiler.found(SOURCE, ("one",))
    assert kernels is not None
    assert len(kernels.functions) == 1
    assert compiler.counts.compiled == 1
    assert compiler.counts.seconds > 0


def test_the_least_recently_used_kernels_are_evicted(
    compiler: kernel_compiler.KernelCompiler,
) -> None:
    first, second, third = sources(3)
    with patch.object(background_compiler, "MAX_KERNELS", 2):
        for source in (first, second, first, third):
            compiler.found(source, ("one",))
            compiler.wait()
    assert len(compiler) == 2
    assert compiler.counts.evicted == 1
    assert compiler.found(first, ("one",)) is not None
    assert compiler.found(second, ("one",)) is None


def test_no_more_sources_wait_than_the_limit(compiler: kernel_compiler.KernelCompiler) -> None:
    with compiler._lock:
        compiler._worker = busy = threading.current_thread()
    for source in sources(2 * background_compiler.MAX_WAITING):
        assert compiler.found(source, ("one",)) is None
    assert len(compiler._waiting) == background_compiler.MAX_WAITING
    assert compiler._worker is busy
    compiler._worker = None


def test_a_source_that_cannot_be_compiled_is_tried_once(
    compiler: kernel_compiler.KernelCompiler,
) -> None:
    for _ in range(3):
        assert compiler.found("no assembly", ("one",)) is None
        compiler.wait()
    assert compiler.counts.compiled == 1


def test_a_program_runs_without_its_kernel_until_it_is_compiled(
    session: EngineSession, compiler: kernel_compiler.KernelCompiler
) -> None:
    session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2)), (3,)))
    seen = []
    for tensor in range(3, 7):
        session.run((GRAPH, 1, 2, tensor))
        assert session.values(tensor, size=1000) == [2.0 * place + 2 for place in range(1000)]
        seen.append(_block(session).runs_compiled)
        compiler.wait()
    assert seen == [False, False, True, True]


def test_changed_numbers_need_one_compilation(
    session: EngineSession, compiler: kernel_compiler.KernelCompiler
) -> None:
    session.run(DefineGraph(GRAPH, 1, ((TWICE, 0), (TWICE, 1)), (2,), ((0, 1, 0), (1, 1, 1))))
    for place in range(20):
        session.run((GRAPH, 2, 10 + place, (place / 7, 3.0)))
        compiler.wait()
        wanted = np.float32(1) * np.float32(place / 7) * np.float32(3)
        assert session.values(10 + place, size=1000) == [wanted] * 1000
    assert _block(session).runs_compiled
    assert compiler.counts.compiled == 1


def test_sessions_share_compiled_kernels(compiler: kernel_compiler.KernelCompiler) -> None:
    for _ in range(2):
        with fused_session() as session:
            session.run(DefineGraph(GRAPH, 2, ((ADD, 0, 1), (TWICE, 2)), (3,)))
            for tensor in range(3, 6):
                session.run((GRAPH, 1, 2, tensor))
                compiler.wait()
            assert _block(session).runs_compiled
    assert compiler.counts.compiled == 1


def test_kernels_can_be_turned_off() -> None:
    backend: Any = with_fusion(NumpyBackend(), compiles=False)
    assert backend.fusion_runtime.compiler is None


def test_without_llvmlite_nothing_is_compiled_and_nothing_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level("DEBUG"),
        patch.dict(kernel_compiler._opened, clear=True),
        patch.dict("sys.modules", {"llvmlite": None}),
    ):
        backend: Any = with_fusion(NumpyBackend())
    assert backend.fusion_runtime.compiler is None
    assert not caplog.records


def test_a_server_logs_nothing_at_its_usual_level_about_the_compiler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"), patch.dict(kernel_compiler._opened, clear=True):
        assert kernel_compiler.opened_compiler() is not None
    assert not caplog.records


def test_a_forked_process_compiles_nothing(compiler: kernel_compiler.KernelCompiler) -> None:
    compiler.found(SOURCE, ("one",))
    compiler.wait()
    compiler._forked()
    assert compiler.found(SOURCE, ("one",)) is not None
    assert compiler.found(sources(1)[0], ("one",)) is None
    assert compiler._worker is None


def _block(session: EngineSession) -> Any:
    (block,) = session.interpreter.numbered[GRAPH].blocks.values()
    return block.execution.optimization


def test_a_thread_that_ended_for_lack_of_memory_is_replaced(
    compiler: kernel_compiler.KernelCompiler,
) -> None:
    first, second = sources(2)
    ended = threading.Thread(target=bool)
    ended.start()
    ended.join()
    with compiler._lock:
        compiler._worker = ended
        compiler._waiting[first] = ("one",)
    assert compiler.found(second, ("one",)) is None
    compiler.wait()
    assert compiler.found(first, ("one",)) is not None
    assert compiler.found(second, ("one",)) is not None


def test_a_source_is_compiled_later_if_the_system_has_no_thread(
    compiler: kernel_compiler.KernelCompiler,
) -> None:
    first, second = sources(2)
    with patch.object(threading, "_start_new_thread", side_effect=RuntimeError("no thread")):
        assert compiler.found(first, ("one",)) is None
    assert compiler.found(second, ("one",)) is None
    compiler.wait()
    assert compiler.found(first, ("one",)) is not None
    assert compiler.found(second, ("one",)) is not None
