"""Synchronization of gradients with the names of Burn's ``DistributedBackend``.

Each device registers the parameters of a backward pass, submits their gradients when they are
finished, and ends the pass with ``submit_sync_collective``. The n-th passes of all devices belong
together. ``docs/distributed.md`` compares each function with Burn's. New programs use ``Group`` or
``DataParallel``, which need fewer calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from burn_remote.distributed.collective_engine import Reduction
from burn_remote.distributed.group import Group
from burn_remote.distributed.member_values import untracked
from burn_remote.distributed.reduce_operations import ReduceOperation, checked_operation
from burn_remote.functions.creation import zeros
from burn_remote.functions.device_class import Device, checked_device
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    shown,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "CollectiveTensor",
    "DistributedConfig",
    "DistributedParams",
    "DistributedSyncClient",
    "TensorRef",
    "all_reduce",
    "close_communication_server",
    "close_distributed_sync_server",
    "comm_device",
    "float_from_ref",
    "get_backend_client_map",
    "get_distributed_sync_client",
    "no_sync",
    "register_sync_parameters",
    "start_communication_server",
    "start_distributed_sync_server",
    "submit_gradient_sync",
    "submit_sync_collective",
    "sync_collective",
]

DEFAULT_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class DistributedConfig:
    """How gradients are reduced."""

    all_reduce_op: ReduceOperation = ReduceOperation.MEAN


@dataclass(frozen=True, slots=True)
class DistributedParams:
    """A parameter, by an id that it has on all devices, such as its name."""

    param_id: str | int


class TensorRef:
    """A reference to a gradient, which the synchronization replaces by the reduced one."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        if not is_tensor(tensor):
            raise ArgumentMismatch(f"TensorRef takes a tensor, not {shown(tensor)}")
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"TensorRef({self.tensor!r})"


class CollectiveTensor:
    """The result of ``all_reduce`` on one device; ``resolve`` returns its tensor."""

    __slots__ = ("_description", "_missing", "_tensor")

    def __init__(self, description: str, missing: set[str]) -> None:
        self._description = description
        self._missing = missing  # the members that have not called; each call removes its member
        self._tensor: Tensor | None = None

    def resolve(self) -> Tensor:
        """Return the reduced tensor, without waiting for its elements.

        Raises ``UsageError`` if not all members have called ``all_reduce`` yet.
        """
        if self._tensor is None:
            raise UsageError(
                f"{self._description} is not complete: {', '.join(sorted(self._missing))} did not "
                "call it; call all_reduce for each member, and resolve() after that"
            )
        return self._tensor

    def assume_resolved(self) -> Tensor:
        """Return the reduced tensor; the same as ``resolve``."""
        return self.resolve()

    def _complete(self, tensor: Tensor) -> None:
        self._tensor = tensor


@dataclass(slots=True)
class _Pass:
    """One backward pass of all members."""

    # For each member, the ids of the parameters that it registered; ``None`` before that.
    registered: list[set[str | int] | None]
    # By parameter and member, the gradients that are not reduced yet, in order.
    submitted: dict[str | int, list[list[TensorRef]]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Call:
    """One ``all_reduce``, to which the members give their tensors one after the other."""

    reduction: Reduction
    spec: TensorSpec
    operation: ReduceOperation
    missing: set[str]
    results: dict[int, CollectiveTensor] = field(default_factory=dict)


class DistributedSyncClient:
    """Synchronizes the gradients of the devices of a group.

    Threads may use it at the same time, such as one for each device.
    """

    def __init__(self, devices: Iterable[Device], config: DistributedConfig, name: str) -> None:
        if not isinstance(config, DistributedConfig):
            raise ArgumentMismatch(f"config must be a DistributedConfig, not {shown(config)}")
        self.config: Final = config
        self.group: Final = Group(devices, name=name)
        # Collectives are issued under the lock, because all members must issue them in one order.
        self._lock = threading.RLock()
        self._passes: dict[int, _Pass] = {}
        self._number = [0 for _ in self.group.devices]  # of each member's current pass
        self._accumulated: list[dict[str | int, Tensor]] = [{} for _ in self.group.devices]
        self._accumulates = False
        self._calls: dict[int, _Call] = {}
        self._call_number = [0 for _ in self.group.devices]

    def __repr__(self) -> str:
        return f"<DistributedSyncClient of {self.group!r}>"

    def register_sync_parameters(
        self, device: Device, params: Iterable[DistributedParams] = ()
    ) -> None:
        """Declare which parameters get a gradient on a device in its next backward pass.

        A device may register none. A parameter that a device did not register counts as zeros.
        """
        member = self.group.rank(device)
        found = {_param_id(one) for one in params}
        with self._lock:
            if self._accumulates:
                return
            registered = self._pass_of(member).registered
            registered[member] = (registered[member] or set()) | found
            self._reduce_complete(self._number[member])

    def submit_gradient_sync(self, tensor: TensorRef, params: DistributedParams) -> None:
        """Reduce a gradient as soon as all members that registered the parameter submitted theirs.

        The result then replaces the tensor in the reference. Does not wait. Several gradients of
        one parameter in one pass are reduced one by one.
        """
        if not isinstance(tensor, TensorRef):
            raise ArgumentMismatch(
                f"submit_gradient_sync takes a TensorRef(gradient), not {shown(tensor)}"
            )
        member = self._member_of(tensor.tensor)
        place = _param_id(params)
        with self._lock:
            before = self._accumulated[member].get(place)
            if before is not None:
                _check_alike(place, tensor.tensor, before.handle.spec)
            own = untracked("submit_gradient_sync", tensor.tensor)
            total = own if before is None else before + own
            if self._accumulates:
                self._accumulated[member][place] = total
                return
            current = self._pass_of(member)
            if place not in (current.registered[member] or ()):
                raise UsageError(
                    f"the parameter {place!r} is not registered on {self._named(member)} in this "
                    "pass; call register_sync_parameters(device, params) before the gradients"
                )
            queues = current.submitted.setdefault(place, [[] for _ in self.group.devices])
            known = next((refs[0].tensor for refs in queues if refs), None)
            if known is not None:
                _check_alike(place, tensor.tensor, known.handle.spec)
            self._accumulated[member].pop(place, None)
            tensor.tensor = total
            queues[member].append(tensor)
            self._reduce_complete(self._number[member])

    def submit_sync_collective(self, device: Device) -> None:
        """End the backward pass of a device; when all members have ended theirs, all is reduced.

        Parameters that the device registered and did not submit count as zeros. Does not wait.
        """
        member = self.group.rank(device)
        with self._lock:
            if self._accumulates:
                return
            current = self._pass_of(member)
            current.ended.add(member)
            if current.registered[member] is None:
                current.registered[member] = set()
            number = self._number[member]
            self._number[member] += 1
            self._reduce_complete(number)
            if len(current.ended) == self.group.size:
                self._reduce_rest(current)
                del self._passes[number]

    def sync_collective(self, device: Device) -> None:
        """Check that all gradients which a device submitted are reduced or being reduced.

        Does not wait. Raises ``UsageError`` with the members that have not ended their pass.
        """
        member = self.group.rank(device)
        with self._lock:
            for number in sorted(self._passes):
                if number < self._number[member]:
                    late = [
                        self._named(other)
                        for other in range(self.group.size)
                        if other not in self._passes[number].ended
                    ]
                    raise UsageError(
                        f"a pass of {self._named(member)} is not complete, because "
                        f"{', '.join(late)} did not end it; call submit_sync_collective(device) "
                        "for each member, also for one without gradients"
                    )

    def all_reduce(
        self, tensor: Tensor, op: ReduceOperation | str = ReduceOperation.SUM
    ) -> CollectiveTensor:
        """Give a device's tensor to a reduction; the n-th calls of all members form one."""
        member = self._member_of(tensor)
        operation = checked_operation(op, [tensor.dtype])
        own = untracked("all_reduce", tensor)
        with self._lock:
            number = self._call_number[member]
            call = self._calls.get(number)
            spec = tensor.handle.spec
            if call is None:
                names = {self._named(other) for other in range(self.group.size)}
                call = _Call(self.group.reduce_buckets(operation), spec, operation, names)
                self._calls[number] = call
            _check_alike(f"all_reduce number {number + 1}", tensor, call.spec)
            if operation is not call.operation:
                raise UsageError(
                    f"all_reduce number {number + 1} of {self._named(member)} is a "
                    f"{operation.value}, but another member's is a {call.operation.value}; all "
                    "members must issue the same collectives in the same order"
                )
            call.reduction.give(member, [own])
            self._call_number[member] += 1
            call.missing.discard(self._named(member))
            made = CollectiveTensor(f"{operation.value} of {spec}", call.missing)
            call.results[member] = made
            if not call.missing:
                del self._calls[number]
                for place, (result,) in enumerate(call.reduction.results()):
                    call.results[place]._complete(result)
            return made

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Have gradients accumulate on their device; the next ones submitted include them.

        Registrations and the ends of passes inside have no effect.
        """
        before = self._accumulates
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = before

    def close(self) -> None:
        """Forget all gradients that are not reduced, and close the group."""
        with self._lock:
            for call in self._calls.values():
                call.reduction.abandon()
            self._calls.clear()
            self._passes.clear()
            for known in self._accumulated:
                known.clear()
            self.group.close()

    # -- parts --------------------------------------------------------------------------------

    def _pass_of(self, member: int) -> _Pass:
        number = self._number[member]
        if number not in self._passes:
            self._passes[number] = _Pass([None for _ in self.group.devices])
        return self._passes[number]

    def _named(self, member: int) -> str:
        return f"member {member} ({self.group.devices[member]})"

    def _member_of(self, tensor: Any) -> int:
        if not is_tensor(tensor):
            raise ArgumentMismatch(f"expected a tensor, not {shown(tensor)}")
        return self.group.rank(tensor.device)

    def _reduce_complete(self, number: int) -> None:
        """Reduce each parameter that all members which registered it have submitted."""
        current = self._passes[number]
        registered = [one for one in current.registered if one is not None]
        if len(registered) < self.group.size:
            return
        for place, queues in current.submitted.items():
            while any(queues) and all(
                refs or place not in known for refs, known in zip(queues, registered, strict=True)
            ):
                self._reduce_next(place, queues)

    def _reduce_rest(self, current: _Pass) -> None:
        for place, queues in current.submitted.items():
            while any(queues):
                self._reduce_next(place, queues)

    def _reduce_next(self, place: str | int, queues: list[list[TensorRef]]) -> None:
        """Reduce the first gradient of each member; zeros where there is none."""
        refs = [queue[0] if queue else None for queue in queues]
        spec = next(ref.tensor.handle.spec for ref in refs if ref is not None)
        tensors = []
        for member, ref in enumerate(refs):
            device = self.group.devices[member]
            # What no_sync accumulated counts even if the member submits nothing.
            waiting = self._accumulated[member].get(place) if ref is None else ref.tensor
            tensors.append(
                zeros(spec.shape, dtype=spec.dtype, device=device) if waiting is None else waiting
            )
        made = self.group.all_reduce(tensors, self.config.all_reduce_op)
        for member, (queue, ref, result) in enumerate(zip(queues, refs, made, strict=True)):
            if ref is None:
                self._accumulated[member].pop(place, None)
            else:
                ref.tensor = result
                queue.pop(0)


# The clients that were started, by name. The lock is never held while operations are issued.
_clients: Final[dict[str, DistributedSyncClient]] = {}
_clients_lock: Final = threading.Lock()


def start_communication_server(
    devices: Iterable[Device], config: DistributedConfig | None = None, *, name: str = DEFAULT_NAME
) -> DistributedSyncClient:
    """Start to synchronize gradients of devices, under a name; return the client.

    If it is started again with the same devices and configuration, this returns the running client.
    Raises ``UsageError`` if the name is in use for other devices or another configuration.
    """
    made = DistributedSyncClient(devices, config or DistributedConfig(), name)
    with _clients_lock:
        known = _clients.get(name)
        if known is None:
            _clients[name] = made
            return made
    if known.group.devices != made.group.devices or known.config != made.config:
        raise UsageError(
            f"{name!r} is in use for {known.group!r} with {known.config}; close it with "
            f"close_communication_server(device, name={name!r}), or start this one with another "
            "name="
        )
    return known


def close_communication_server(device: Device, *, name: str | None = None) -> None:
    """End the synchronization in which a device takes part. A second call does nothing."""
    with contextlib.suppress(KeyError):
        client = _client_of(device, name)
        with _clients_lock:
            _clients.pop(client.group.name, None)
        client.close()


def get_distributed_sync_client(name: str = DEFAULT_NAME) -> DistributedSyncClient | None:
    """Return the client that was started under a name, ``None`` if there is none."""
    return get_backend_client_map().get(name)


def get_backend_client_map() -> Mapping[str, DistributedSyncClient]:
    """Return the clients that were started, by name, as a copy."""
    with _clients_lock:
        return MappingProxyType({**_clients})


def start_distributed_sync_server(
    devices: Iterable[Device], config: DistributedConfig | None = None, *, name: str = DEFAULT_NAME
) -> DistributedSyncClient:
    """Start to synchronize gradients; the same as ``start_communication_server``."""
    return start_communication_server(devices, config, name=name)


def close_distributed_sync_server(name: str = DEFAULT_NAME) -> None:
    """End the synchronization that was started under a name. A second call does nothing."""
    with _clients_lock:
        client = _clients.pop(name, None)
    if client is not None:
        client.close()


def register_sync_parameters(
    device: Device, params: Iterable[DistributedParams] = (), *, name: str | None = None
) -> None:
    """Call ``DistributedSyncClient.register_sync_parameters`` of the device's client."""
    _started(device, name).register_sync_parameters(device, params)


def submit_gradient_sync(
    tensor: TensorRef, params: DistributedParams, *, name: str | None = None
) -> None:
    """Call ``DistributedSyncClient.submit_gradient_sync`` of the client of the tensor's device."""
    _started(comm_device(tensor), name).submit_gradient_sync(tensor, params)


def submit_sync_collective(device: Device, *, name: str | None = None) -> None:
    """Call ``DistributedSyncClient.submit_sync_collective`` of the device's client."""
    _started(device, name).submit_sync_collective(device)


def sync_collective(device: Device, *, name: str | None = None) -> None:
    """Call ``DistributedSyncClient.sync_collective`` of the device's client."""
    _started(device, name).sync_collective(device)


def all_reduce(
    tensor: Tensor,
    op: ReduceOperation | str = ReduceOperation.SUM,
    devices: Iterable[Device] | None = None,
    *,
    name: str | None = None,
) -> CollectiveTensor:
    """Call ``DistributedSyncClient.all_reduce`` of the client of the tensor's device.

    ``devices``, if they are given, must be those of the client. ``Group.all_reduce`` takes the
    tensors of all members in one call.
    """
    if not is_tensor(tensor):
        raise ArgumentMismatch(
            f"all_reduce takes one device's tensor, not {shown(tensor)}; group.all_reduce of a "
            "Group takes a list with the tensors of all members"
        )
    client = _started(tensor.device, name)
    if devices is not None and tuple(devices) != client.group.devices:
        raise UsageError(
            f"the devices are not those of {client!r}; start a communication server for them, with "
            "a name of its own"
        )
    return client.all_reduce(tensor, op)


def comm_device(tensor: TensorRef) -> Device:
    """Return the device of the tensor in a reference."""
    return float_from_ref(tensor).device


def float_from_ref(tensor: TensorRef) -> Tensor:
    """Return the tensor in a reference: the reduced one, as soon as the reduction is issued."""
    if not isinstance(tensor, TensorRef):
        raise ArgumentMismatch(f"expected a TensorRef, not {shown(tensor)}")
    return tensor.tensor


def no_sync(*, name: str = DEFAULT_NAME) -> contextlib.AbstractContextManager[None]:
    """Call ``DistributedSyncClient.no_sync`` of the client with this name."""
    client = get_distributed_sync_client(name)
    if client is None:
        raise UsageError(
            f"no communication server was started as {name!r}; call "
            "start_communication_server(devices) first"
        )
    return client.no_sync()


def _started(device: Device, name: str | None) -> DistributedSyncClient:
    try:
        return _client_of(device, name)
    except KeyError:
        started = ", ".join(map(repr, get_backend_client_map())) or "none"
        wanted = "with this device" if name is None else f"named {name!r}"
        raise UsageError(
            f"no communication server {wanted} was started ({device}; started: {started}); call "
            "start_communication_server(devices) first"
        ) from None


def _client_of(device: Device, name: str | None) -> DistributedSyncClient:
    """Return a client by its name, or the only one with a device. Raises ``KeyError`` for none."""
    checked_device(device)
    clients = get_backend_client_map()
    if name is not None:
        return clients[name]
    found = [one for one in clients.values() if device in one.group.devices]
    if not found:
        raise KeyError(device)
    if len(found) > 1:
        names = ", ".join(repr(one.group.name) for one in found)
        raise UsageError(f"{device} takes part in {names}; choose one with name=")
    return found[0]


def _param_id(params: Any) -> str | int:
    if not isinstance(params, DistributedParams):
        raise ArgumentMismatch(
            f"a parameter is named by DistributedParams(param_id), not {shown(params)}"
        )
    return params.param_id


def _check_alike(what: str | int, tensor: Tensor, spec: TensorSpec) -> None:
    seen = tensor.handle.spec
    if seen == spec:
        return
    error = ShapeMismatch if seen.shape != spec.shape else DTypeMismatch
    raise error(f"{what}: the tensor of {tensor.device} is {seen}, but another one is {spec}")
