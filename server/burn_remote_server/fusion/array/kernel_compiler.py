"""Compilation of kernels to machine code by LLVM, if llvmlite is installed (extra ``fusion``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_server.fusion.array.kernel_source import declarations
from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["KernelCompiler", "Kernels", "opened_compiler"]

logger = get_logger(__name__)

# function(pointers, strides, lengths), all addresses of arrays
Function = Callable[[int, int, int], None]


class Kernels(NamedTuple):
    """The functions of a compiled source; ``engine`` owns their machine code."""

    functions: tuple[Function, ...]
    engine: Any


class KernelCompiler(BackgroundCompiler[Kernels]):
    """Sources that LLVM has compiled."""

    def __init__(self, llvm: Any) -> None:
        self._llvm: Final = llvm
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        super().__init__()

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
