"""The registration of the device type ``burn`` with PyTorch.

PyTorch lets Python register one backend (``PrivateUse1``) by functions that it calls experimental.
``TESTED`` is the range of versions that the tests of this package passed with. The extra
``burn-remote[torch]`` permits other versions too, for which ``register`` warns.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import torch
from torch.optim import optimizer
from torch.utils import backend_registration, dlpack

from burn_remote.sessions.source_locations import pass_over
from burn_remote.torch import device_registry
from burn_remote.torch.aten.table import TABLE
from burn_remote.torch.autocasting import register_autocast
from burn_remote.torch.backward_hook_errors import DeviceGuard, keep_errors_of_hooks
from burn_remote.torch.burn_tensor import BurnTensor, set_dispatcher
from burn_remote.torch.dispatching import HANDLERS, resolve
from burn_remote.torch.errors import as_runtime_error
from burn_remote.torch.generators import accept_burn_devices
from burn_remote.torch.lazy_parameters import remember_devices
from burn_remote.torch.loading import load_to_devices
from burn_remote.torch.modules import keep_identity
from burn_remote.torch.pinned_memory import accept_pinning
from burn_remote_protocol.errors import ConnectionLost, UsageError

__all__ = ["TESTED", "check_version", "register", "warn_of_cuda"]

# From the first version up to, but excluding, the second.
TESTED: Final = ((2, 13), (2, 16))

# The process that opened the connections of the devices.
_PROCESS: Final = os.getpid()


def check_version(version: str) -> None:
    """Warn if the tests of this package did not run with a version of PyTorch."""
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if not TESTED[0] <= release < TESTED[1]:
        low, high = (".".join(map(str, bound)) for bound in TESTED)
        warnings.warn(
            f"burn_remote.torch is tested with PyTorch from {low} up to, but excluding, {high}; "
            f"this is {version}, whose interface for backends may differ",
            stacklevel=3,
        )


def warn_of_cuda(available: bool) -> None:
    """Warn if CUDA is available, because its backward passes fail after the registration.

    PyTorch's engine supports one kind of accelerator in a process, and prefers a registered one:
    https://github.com/pytorch/pytorch/issues/161129.
    """
    if available:
        warnings.warn(
            "this process has a CUDA device, and PyTorch runs backward passes for one kind of "
            "accelerator only: from now on backward() of CUDA tensors fails with an internal "
            "assert of PyTorch; train on CUDA in a process that does not import "
            "burn_remote.torch",
            stacklevel=4,
        )


_MEMORY: Final = "the server counts the memory: see http://host:port/metrics"
_STREAMS: Final = "a device has one queue of operations; torch.burn.synchronize() waits for it"

# Names of torch.cuda that torch.burn lacks -> what to do instead. PyTorch itself looks for others,
# which therefore must stay missing.
_ADVICE: Final = {
    "Event": _STREAMS,
    "Stream": _STREAMS,
    "current_stream": _STREAMS,
    "stream": _STREAMS,
    "get_device_properties": "torch.burn.get_device_name() is the address of the server",
    "max_memory_allocated": _MEMORY,
    "mem_get_info": _MEMORY,
    "memory_allocated": _MEMORY,
    "memory_reserved": _MEMORY,
    "memory_summary": _MEMORY,
}


def _is_torch(module: Any) -> bool:
    package = getattr(module, "__package__", None)
    return isinstance(package, str) and package.partition(".")[0] == "torch"


class _Module(ModuleType):
    """The module ``torch.burn``, which PyTorch asks about its devices."""

    # torch.utils.checkpoint saves and restores random states only if this is true.
    _initialized = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._seeds: dict[int, int] = {}  # by the index of the device

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return device_registry.device_count() > 0

    def current_device(self) -> int:
        return device_registry.current_index()

    def device_count(self) -> int:
        return device_registry.device_count()

    def set_device(self, device: Any) -> None:
        device_registry.set_current_index(device_registry.index_of(device))

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = device_registry.current_index()
        self.set_device(device)
        try:
            yield
        finally:
            device_registry.set_current_index(before)

    def synchronize(self, device: Any = None) -> None:
        device_registry.wire_device(device).sync()

    def _is_in_bad_fork(self) -> bool:
        # PyTorch seeds no devices if this is true. A worker of a DataLoader would seed them all,
        # but a forked process has no connections.
        return os.getpid() != _PROCESS

    def manual_seed(self, seed: int) -> None:
        self._seed(None, seed % 2**64)

    def manual_seed_all(self, seed: int) -> None:
        for index in range(device_registry.device_count()):
            # A lost device raises an error where it is used; the others continue.
            with contextlib.suppress(ConnectionLost):
                self._seed(index, seed % 2**64)

    def get_rng_state(self, device: Any = None) -> Any:
        """Return a state for ``set_rng_state``: 8 bytes, as a tensor of uint8 on the CPU.

        The server's generator cannot be read without a round trip. So this seeds the device with a
        number that follows from its last seed, and returns that number. The numbers drawn
        afterwards can be drawn again after ``set_rng_state``. They differ from those that would
        be drawn without this call.
        """
        last = self._seeds.get(device_registry.index_of(device))
        if last is None:
            last = secrets.randbits(64)
        digest = hashlib.blake2b(last.to_bytes(8, "little"), digest_size=8).digest()
        self._seed(device, int.from_bytes(digest, "little"))
        return torch.tensor(list(digest), dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        """Continue with the numbers that were drawn after ``get_rng_state`` returned ``state``."""
        if state.device.type != "cpu" or state.dtype is not torch.uint8 or state.numel() != 8:
            raise UsageError(
                f"a state of a burn device is 8 bytes on the CPU, not {tuple(state.shape)} "
                f"{state.dtype} on {state.device}; pass what torch.burn.get_rng_state() returned"
            )
        self._seed(device, int.from_bytes(bytes(state.tolist()), "little"))

    def get_rng_state_all(self) -> list[Any]:
        return [self.get_rng_state(index) for index in range(device_registry.device_count())]

    def set_rng_state_all(self, states: Iterable[Any]) -> None:
        for index, state in enumerate(states):
            self.set_rng_state(state, index)

    def initial_seed(self) -> int:
        """Return the current device's last seed; seed it if it has none."""
        index = device_registry.current_index()
        if index not in self._seeds:
            self._seed(index, secrets.randbits(63))
        return self._seeds[index]

    def _seed(self, device: Any, seed: int) -> None:
        device_registry.wire_device(device).seed(seed)
        self._seeds[device_registry.index_of(device)] = seed

    def is_bf16_supported(self) -> bool:
        return True

    def get_device_name(self, device: Any = None) -> str:
        """Return the address of a device."""
        return str(device_registry.wire_device(device))

    def __getattr__(self, name: str) -> Any:
        advice = _ADVICE.get(name)
        text = "" if advice is None else f"; {advice}"
        raise AttributeError(f"module 'torch.burn' has no attribute {name!r}{text}", name=name)

    def empty_cache(self) -> None:
        """Do nothing: a server frees the memory of a tensor that is dropped."""

    def get_amp_supported_dtype(self) -> list[Any]:
        return [torch.bfloat16, torch.float16]


def _synchronize(index: int) -> None:
    """Wait for a device, for ``torch.accelerator.synchronize``."""
    if device_registry.device_count():
        device_registry.wire_device(torch.device(device_registry.BACKEND, index)).sync()


def _refuse_dlpack() -> None:
    """Have ``torch.to_dlpack`` refuse burn devices, where it would export a null pointer."""
    original = torch.to_dlpack

    @functools.wraps(original)
    def to_dlpack(x: Any) -> Any:
        return x.__dlpack__() if type(x) is BurnTensor else original(x)

    torch.to_dlpack = dlpack.to_dlpack = to_dlpack


_libraries: list[Any] = []


def register() -> None:
    """Make ``torch.device("burn")`` known to PyTorch."""
    if _libraries:
        return
    check_version(torch.__version__)
    warn_of_cuda(torch.cuda.is_available())
    set_dispatcher(HANDLERS, resolve)
    # An error names the line of the program, not that of torch.nn.
    packages = {
        str(module.__package__) for module in list(sys.modules.values()) if _is_torch(module)
    }
    pass_over(packages)
    backend_registration._setup_privateuseone_for_python_backend(
        device_registry.BACKEND,
        backend_module=_Module("torch.burn"),
        device_guard=DeviceGuard(),
    )
    keep_errors_of_hooks()
    # PyTorch's own function raises for all backends in Python. torch.utils.benchmark calls it, also
    # for programs on the CPU.
    torch._C._accelerator_synchronizeDevice = _synchronize
    # torch.accelerator.empty_cache() and the counts of memory then do nothing, as before the first
    # allocation. There is no allocator of PyTorch's.
    torch._C._accelerator_isAllocatorInitialized = bool
    library = torch.library.Library("aten", "IMPL")
    for func in factories():
        library.impl(func.name().removeprefix("aten::"), _factory(func), "PrivateUse1")
    register_autocast(library)
    accept_pinning(library)
    keep_identity()
    remember_devices()
    load_to_devices()
    accept_burn_devices()
    _refuse_dlpack()
    # Optimizers then update all parameters by one call for each operation, as on CUDA.
    if BurnTensor not in optimizer._foreach_supported_types:
        optimizer._foreach_supported_types.append(BurnTensor)
    _libraries.append(library)


def factories() -> list[Any]:
    """Return the overloads that PyTorch dispatches by their ``device``: they take no tensors."""
    found = {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten._copy_from.default,  # called by torch.tensor(data, device="burn")
    }
    for func in TABLE:
        arguments = func._schema.arguments
        has_tensors = any("Tensor" in str(one.type) for one in arguments)
        if not has_tensors and any(one.name == "device" for one in arguments):
            found.add(func)
    return sorted(found, key=lambda func: str(func.name()))


def _factory(func: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        handler = HANDLERS.get(func) or resolve(func)
        try:
            return handler(args, kwargs)
        except Exception as error:  # PyTorch programs expect RuntimeError
            translated = as_runtime_error(error)
            if translated is error:
                raise
            raise translated from error

    return make
