"""Compilation of kernels to machine code by LLVM, if llvmlite is installed (extra ``fusion``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.fusion.cpu.kernel_source import declarations
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["KernelCompiler", "Kernels", "opened_compiler"]

logger = get_logger(__name__)

# function(pointers, strides, lengths), all addresses of arrays
Function = Callable[[int, int, int], None]


class Kernels(NamedTuple):
    """The functions of a compiled source; ``code`` owns their machine code."""

    functions: tuple[Function, ...]
    code: Any


class KernelCompiler(BackgroundCompiler[Kernels]):
    """Sources that LLVM has compiled.

    One linker serves all sources and keeps only their machine code, 0.13 MB for each. With a
    separate LLVM engine, each source would take 0.9 MB.
    """

    def __init__(self, llvm: Any) -> None:
        self._llvm: Final = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._machine = self._new_machine()
        self._linker = llvm.create_lljit_compiler(self._new_machine())
        self._linked = 0
        super().__init__()

    def _new_machine(self) -> Any:
        llvm = self._llvm
        return llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=3,
        )

    def _compile(self, source: str, names: tuple[str, ...]) -> Kernels:
        llvm, machine = self._llvm, self._machine
        module = llvm.parse_assembly(declarations() + source)
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = True
        llvm.create_pass_builder(machine, tuning).getModulePassManager().run(
            module, llvm.create_pass_builder(machine, tuning)
        )
        library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
        for name in names:
            library.export_symbol(name)
        self._linked += 1
        code = library.add_current_process().link(self._linker, f"kernels{self._linked}")
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
        return Kernels(tuple(kind(code[name]) for name in names), (code, self._linker))


_opened: dict[str, KernelCompiler] = {}


def opened_compiler() -> KernelCompiler | None:
    """Return the compiler of this process, or ``None`` without llvmlite."""
    if "llvm" not in _opened:
        try:
            import llvmlite
            import llvmlite.binding as llvm

            compiler = KernelCompiler(llvm)
        except ModuleNotFoundError:  # an extra that few servers have, so nothing is logged
            return None
        except (ImportError, OSError) as error:  # installed, but not for this system
            logger.warning("compiled kernels not used", reason=str(error))
            return None
        logger.debug("compiled kernels used", llvmlite=llvmlite.__version__)
        # Without a lock, because a fork could leave it locked. If two threads open a compiler, the
        # second one is discarded.
        _opened.setdefault("llvm", compiler)
    return _opened["llvm"]
