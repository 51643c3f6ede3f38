"""Compilation of kernels to machine code by LLVM, if llvmlite is installed (extra ``fusion``).

A kernel is compiled beside the sessions, by a thread that ends when nothing waits; until then, and
whenever a kernel was evicted, programs run without it. So memory and time are bounded.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_server.fusion.array.kernel_source import declarations
from burn_remote_server.fusion.counts import KernelCounts
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["KernelCompiler", "Kernels", "opened_compiler"]

logger = get_logger(__name__)

# Compiled sources of a process, some 100 KB each with their machine code.
MAX_KERNELS: Final = 256
# Sources that wait. Each takes 10 to 60 ms, so an exiting process waits for about a second.
MAX_WAITING: Final = 16

# function(pointers, strides, lengths), all addresses of arrays
Function = Callable[[int, int, int], None]


class Kernels(NamedTuple):
    """The functions of a compiled source; ``engine`` owns their machine code."""

    functions: tuple[Function, ...]
    engine: Any


class KernelCompiler:
    """Compiled sources, the least recently used of which are evicted. Thread-safe."""

    def __init__(self, llvm: Any) -> None:
        self._llvm: Final = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._lock = threading.Lock()
        # ``None`` for a source that could not be compiled.
        self._compiled: OrderedDict[str, Kernels | None] = OrderedDict()
        self._waiting: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._counts = KernelCounts()
        os.register_at_fork(after_in_child=self._forked)

    @property
    def counts(self) -> KernelCounts:
        """What this compiler has done so far."""
        return self._counts

    def __len__(self) -> int:
        return len(self._compiled)

    def found(self, source: str, names: tuple[str, ...]) -> Kernels | None:
        """Return the functions with these names, or start to compile them and return ``None``."""
        with self._lock:
            if source in self._compiled:
                self._compiled.move_to_end(source)
                return self._compiled[source]
            if source not in self._waiting and len(self._waiting) < MAX_WAITING:
                self._waiting[source] = names
                if self._worker is None:
                    self._worker = threading.Thread(target=self._work, name="kernel-compiler")
                    self._worker.start()
        return None

    def _forked(self) -> None:
        # The parent's worker may have held any lock, also LLVM's: compile nothing more.
        self._lock = threading.Lock()
        self._worker = None
        self._waiting = OrderedDict((str(place), ()) for place in range(MAX_WAITING))

    def wait(self) -> None:
        """Wait until nothing waits for its compilation."""
        worker = self._worker
        if worker is not None:
            worker.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._worker = None
                    return
                source, names = next(iter(self._waiting.items()))
            started = time.perf_counter()
            kernels = None
            try:
                kernels = self._compile(source, names)
            except Exception:  # a bug: the programs run without the kernel
                logger.exception("kernel_not_compiled", functions=len(names))
            seconds = time.perf_counter() - started
            logger.debug("kernel_compiled", functions=len(names), seconds=round(seconds, 4))
            with self._lock:
                del self._waiting[source]
                self._compiled[source] = kernels
                compiled, evicted, spent = self._counts
                if len(self._compiled) > MAX_KERNELS:
                    self._compiled.popitem(last=False)
                    evicted += 1
                self._counts = KernelCounts(compiled + 1, evicted, spent + seconds)

    def _compile(self, source: str, names: tuple[str, ...]) -> Kernels:
        llvm = self._llvm
        module = llvm.parse_assembly(declarations() + source)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=3,
        )
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = True
        llvm.create_pass_builder(machine, tuning).getModulePassManager().run(
            module, llvm.create_pass_builder(machine, tuning)
        )
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
        functions = tuple(kind(engine.get_function_address(name)) for name in names)
        return Kernels(functions, engine)


_opened: dict[str, KernelCompiler] = {}


def opened_compiler() -> KernelCompiler | None:
    """Return the compiler of this process, or ``None`` without llvmlite."""
    if "llvm" not in _opened:
        try:
            import llvmlite
            import llvmlite.binding as llvm

            compiler = KernelCompiler(llvm)
        except ModuleNotFoundError:  # an extra that few servers have: no reason to log anything
            return None
        except (ImportError, OSError) as error:  # installed, but not for this system
            logger.warning("kernels_not_compiled", reason=str(error))
            return None
        logger.debug("kernels_compiled", llvmlite=llvmlite.__version__)
        # Without a lock, which a fork could leave locked: a second compiler would be discarded.
        _opened.setdefault("llvm", compiler)
    return _opened["llvm"]
