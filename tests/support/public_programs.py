"""Programs for the public names that ``public_call`` does not call: properties, classes, groups.

``public_names`` finds every public name of ``burn_remote`` from the lists ``__all__``, whatever
namespace a later version adds.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote import distributed as ds
from support.calls import f, folder, i, on_device, saved_file
from support.runners import RecordingDevice

__all__ = ["ISSUING_NOTHING", "PROGRAMS", "TESTED_ELSEWHERE", "public_names"]

W: Final = ds.DistributedParams("w")


def public_names() -> set[str]:
    """Return every public name: functions, and the members of classes that use devices.

    A member is a method or a property, such as ``Tensor.T``; operators have their Python names.
    """
    names: set[str] = set()
    _add_names("burn_remote", br, names, set())
    return names


def _add_names(space: str, module: ModuleType, names: set[str], seen: set[ModuleType]) -> None:
    seen.add(module)
    for key in module.__all__:
        value = getattr(module, key)
        if inspect.ismodule(value):
            if value not in seen:
                inner = key if module is br else f"{space}.{key}"
                _add_names(inner, value, names, seen)
        elif callable(value) and value not in VALUES and not _is_error(value):
            names.add(f"{space}.{key}")
            if value in CLASSES:
                names.update(f"{value.__name__}.{member}" for member in _members(value))


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _members(kind: type) -> set[str]:
    """Return the methods, properties and special methods that a class adds to its base class."""
    base = next((one for one in kind.__mro__[1:] if one in CLASSES), object)
    ignored = {"__slots__", "__weakref__", "__module__", "__final__", "__dict__", "__doc__"}
    ignored |= {"__annotations__", "__abstractmethods__", "__parameters__", "__orig_bases__"}
    ignored |= {
        "__init__",
        "__new__",
        "__init_subclass__",
        "__subclasshook__",
        "__static_attributes__",
    }
    ignored |= {"__firstlineno__", "__getattr__"}
    return {
        key
        for key in dir(kind)
        if not (key.startswith("_") and not key.startswith("__"))
        and key not in ignored
        and getattr(kind, key) is not getattr(base, key, None)
    }


# Classes whose instances issue operations.
CLASSES: Final = {
    *(br.Tensor, br.Device, br.LocalDevice, br.RemoteDevice, br.DataParallel, ds.Group),
    ds.DistributedSyncClient,
    *(br.optim.SGD, br.optim.Adagrad, br.optim.Adam, br.optim.AdamW, br.optim.Optimizer),
    br.optim.RMSprop,
}
# Classes of values, of numbers, and of what a runner or a server returns: they issue nothing.
VALUES: Final = {
    *(br.DType, br.DTypeUsage, br.DeviceId, br.Pending, br.QuantScheme, br.QuantizedArray),
    *(br.RunnerClient, br.TensorData, br.TensorHandle, br.TensorSpec, br.Traffic),
    *(ds.CollectiveTensor, ds.DistributedConfig, ds.DistributedParams, ds.ReduceOperation),
    *(ds.SplitBatch, ds.TensorRef),
    *(getattr(br.optim.lr_scheduler, name) for name in br.optim.lr_scheduler.__all__),
}


@contextmanager
def group(engine: str) -> Iterator[ds.Group]:
    """Open a group of the device and another one."""
    with ds.Group([on_device(), answering("another")], engine=engine) as made:
        yield made


def answering(name: str) -> RecordingDevice:
    """Return a device whose reads give zeros."""
    device = RecordingDevice(name)
    device.runner.answers_reads = True
    return device


def of_group(call: Callable[[ds.Group, list[br.Tensor]], object]) -> Callable[[], object]:
    """Return a program that calls a group of each engine with one vector for each member."""

    def run() -> None:
        for engine in ("moves", "ring"):
            with group(engine) as made:
                call(made, [br.ones((4,), device=device) for device in made.devices])

    return run


def loss(params: Any, x: br.Tensor) -> br.Tensor:
    return br.mean(br.square(br.multiply(params["w"], x)))


def of_training(call: Callable[[br.DataParallel, br.Tensor], object]) -> Callable[[], object]:
    """Return a program that calls a ``DataParallel`` with a batch."""

    def run() -> None:
        with group("ring") as made:
            optimizer = br.optim.Adam(lr=0.1)
            with br.DataParallel(loss, {"w": f(4)}, made, optimizer=optimizer) as training:
                call(training, f(2, 4))

    return run


def of_synchronization(
    call: Callable[[ds.DistributedSyncClient, list[ds.TensorRef]], object],
    *,
    registers: bool = True,
) -> Callable[[], object]:
    """Return a program that calls a client for gradients with one gradient for each member."""

    def run() -> None:
        devices = [on_device(), answering("another")]
        client = ds.start_communication_server(devices, name="public programs")
        try:
            if registers:
                for device in devices:
                    client.register_sync_parameters(device, [W])
            call(client, [ds.TensorRef(br.ones((4,), device=device)) for device in devices])
        finally:
            ds.close_distributed_sync_server("public programs")

    return run


def submitted(client: ds.DistributedSyncClient, gradients: list[ds.TensorRef]) -> None:
    for gradient in gradients:
        client.submit_gradient_sync(gradient, W)
    for device in client.group.devices:
        client.submit_sync_collective(device)
    for device in client.group.devices:
        client.sync_collective(device)


def _submitted_by_functions(_: Any, gradients: list[ds.TensorRef]) -> None:
    devices = [ds.comm_device(gradient) for gradient in gradients]
    for gradient, device in zip(gradients, devices, strict=True):
        ds.register_sync_parameters(device, [W])
        ds.submit_gradient_sync(gradient, W)
    for device in devices:
        ds.submit_sync_collective(device)
    for device in devices:
        ds.sync_collective(device)


def _accumulated(client: ds.DistributedSyncClient, gradients: list[ds.TensorRef]) -> None:
    with ds.no_sync(name="public programs"):
        ds.submit_gradient_sync(ds.TensorRef(gradients[0].tensor * 2), W)
    submitted(client, gradients)


def parameter() -> br.Tensor:
    x = f(4).requires_grad_()
    br.sum(x * x).backward()
    return x


def stepped(kind: Callable[..., br.optim.Optimizer], **options: Any) -> Callable[[], object]:
    """Return a program that takes steps in place and as a function, and copies the state."""

    def run() -> None:
        x = parameter()
        made = kind([x], lr=0.1, **options)
        made.step()
        made.load_state_dict(made.state_dict())
        made.add_param_group({"params": [parameter()]})
        made.step()
        made.zero_grad(set_to_none=False)
        formulas = kind(lr=0.1, **options)
        params = {"w": f(4)}
        formulas.update(params, {"w": f(4)}, formulas.init(params))

    return run


_KINDS: Final[dict[str, Callable[[], object]]] = {
    "SGD": stepped(br.optim.SGD, momentum=0.9),
    "Adagrad": stepped(br.optim.Adagrad),
    "Adam": stepped(br.optim.Adam),
    "AdamW": stepped(br.optim.AdamW),
    "RMSprop": stepped(br.optim.RMSprop),
}
_STEPS: Final = (
    *("add_param_group", "init", "load_state_dict", "state_dict", "step", "update", "zero_grad"),
)


def _set(one: object, name: str, value: object) -> None:
    setattr(one, name, value)


def _assigned() -> None:
    x = f(4)
    x[1:3] = 5


def _in_place(operator: str) -> Callable[[], object]:
    def run() -> None:
        x = f(4)
        getattr(x, operator)(f(4))

    return run


async def _read() -> None:
    await br.aio.read([f(2), f(3)])


async def _uploaded() -> None:
    await br.aio.tensor(np.ones(4, np.float32), device=on_device())


async def _loaded() -> None:
    await br.aio.load(saved_file(), device=on_device())


async def _saved() -> None:
    await br.aio.save(folder() / "written.safetensors", {"x": f(2)})


async def _synced() -> None:
    await br.aio.sync(on_device())


def _with_gradients(training: br.DataParallel, x: br.Tensor) -> None:
    training.backward(x)
    training.gradients = training.gradients
    training.update()


def _without_gradients(training: br.DataParallel, x: br.Tensor) -> None:
    training.backward(x)
    training.zero_grad()


PROGRAMS: Final[dict[str, Callable[[], object]]] = {
    # -- tensors --
    "burn_remote.Tensor": lambda: br.Tensor(f(2).handle),
    "Tensor.T": lambda: f(2, 3).T,
    "Tensor.mT": lambda: f(2, 3).mT,
    "Tensor.mH": lambda: f(2, 3).mH,
    "Tensor.real": lambda: f(2).astype(br.complex64).real,
    "Tensor.imag": lambda: f(2).astype(br.complex64).imag,
    "Tensor.data": lambda: _set(f(2).requires_grad_(), "data", f(2)),
    "Tensor.grad": lambda: parameter().grad,
    "Tensor.requires_grad": lambda: _set(f(2), "requires_grad", True),
    "Tensor.__array__": lambda: np.asarray(f(2)),
    "Tensor.__array_function__": lambda: np.concatenate([f(2), f(2)]),
    "Tensor.__array_ufunc__": lambda: np.exp(f(2)),
    "Tensor.__bool__": lambda: bool(f(1)),
    "Tensor.__complex__": lambda: complex(f(1)),
    "Tensor.__contains__": lambda: 1 in f(2),
    "Tensor.__copy__": lambda: copy.copy(f(2)),
    "Tensor.__deepcopy__": lambda: copy.deepcopy(f(2)),
    "Tensor.__divmod__": lambda: divmod(f(2), 2),
    "Tensor.__dlpack__": lambda: f(2).__dlpack__(),
    "Tensor.__float__": lambda: float(f(1)),
    "Tensor.__format__": lambda: f"{f(1)[0]:.2f}",
    "Tensor.__index__": lambda: [1, 2][i(1)[0]],
    "Tensor.__int__": lambda: int(f(1)),
    "Tensor.__iter__": lambda: [*f(2)],
    "Tensor.__pos__": lambda: +f(2),
    "Tensor.__rand__": lambda: 1 & i(2),
    "Tensor.__rlshift__": lambda: 1 << i(2),
    "Tensor.__ror__": lambda: 1 | i(2),
    "Tensor.__rrshift__": lambda: 1 >> i(2),
    "Tensor.__rxor__": lambda: 1 ^ i(2),
    "Tensor.__setitem__": _assigned,
    **{
        f"Tensor.{operator}": _in_place(operator)
        for operator in (
            *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"),
            *("__imod__", "__ipow__"),
        )
    },
    # -- devices --
    "Device.tensor": lambda: on_device().tensor([1.0, 2.0]),
    "Device.sync": lambda: on_device().sync(),
    "Device.seed": lambda: on_device().seed(3),
    "Device.dtype_usage": lambda: on_device().dtype_usage(br.float32),
    "Device.supports_dtype": lambda: on_device().supports_dtype(br.float32),
    "Device.memory_cleanup": lambda: on_device().memory_cleanup(),
    "move to another device": lambda: f(2).to(answering("another")),
    "move from another device": lambda: br.ones((2,), device=answering("other")).to(on_device()),
    # -- namespaces --
    "aio.load": lambda: asyncio.run(_loaded()),
    "aio.read": lambda: asyncio.run(_read()),
    "aio.save": lambda: asyncio.run(_saved()),
    "aio.sync": lambda: asyncio.run(_synced()),
    "aio.tensor": lambda: asyncio.run(_uploaded()),
    "autograd.grad": lambda: br.autograd.grad(br.sum((x := f(2).requires_grad_()) * x), x),
    "tree.map": lambda: br.tree.map(lambda x: x + 1, {"a": f(2), "b": [f(3)]}),
    # -- optimizers --
    **{f"optim.{name}": run for name, run in _KINDS.items()},
    **{f"Optimizer.{step}": _KINDS["Adam"] for step in _STEPS},
    "optim.clip_by_norm": lambda: br.optim.clip_by_norm({"w": f(4)}, 1.0),
    "optim.clip_by_value": lambda: br.optim.clip_by_value({"w": f(4)}, 1.0),
    "optim.clip_grad_norm_": lambda: br.optim.clip_grad_norm_([parameter()], 1.0),
    "optim.clip_grad_value_": lambda: br.optim.clip_grad_value_([parameter()], 1.0),
    "optim.global_norm": lambda: br.optim.global_norm({"w": f(4)}),
    # -- groups --
    "Group.all_gather": of_group(lambda group, values: group.all_gather(values)),
    "Group.all_reduce": of_group(lambda group, values: group.all_reduce(values)),
    "Group.all_to_all": of_group(lambda group, values: group.all_to_all(values)),
    "Group.barrier": of_group(lambda group, values: group.barrier()),
    "Group.broadcast": of_group(lambda group, values: group.broadcast(values[0])),
    "Group.reduce": of_group(lambda group, values: group.reduce(values)),
    "Group.reduce_buckets": of_group(
        lambda group, values: _reduced(group.reduce_buckets(), values)
    ),
    "Group.reduce_scatter": of_group(lambda group, values: group.reduce_scatter(values)),
    "Group.reduce_scatter_buckets": of_group(
        lambda group, values: _reduced(group.reduce_scatter_buckets(), values)
    ),
    "Group.sync": of_group(lambda group, values: group.sync()),
    "Group.without": of_group(lambda group, values: group.without([1]).all_reduce(values[:1])),
    "DataParallel.backward": of_training(lambda training, x: training.backward(x)),
    "DataParallel.gradients": of_training(_with_gradients),
    "DataParallel.no_sync": of_training(lambda training, x: _without_exchange(training, x)),
    "DataParallel.params": of_training(lambda training, x: training.params),
    "DataParallel.regroup": of_training(
        lambda training, x: training.regroup(training.snapshot(), without=[1])
    ),
    "DataParallel.replicas": of_training(
        lambda training, x: _set(training, "replicas", training.replicas)
    ),
    "DataParallel.snapshot": of_training(lambda training, x: training.snapshot()),
    "DataParallel.split": of_training(lambda training, x: training.split(x)),
    "DataParallel.state": of_training(lambda training, x: (training.step(x), training.state)),
    "DataParallel.step": of_training(lambda training, x: training.step(x)),
    "DataParallel.update": of_training(_with_gradients),
    "DataParallel.zero_grad": of_training(_without_gradients),
    "DistributedSyncClient.all_reduce": of_synchronization(
        lambda client, refs: [client.all_reduce(ref.tensor) for ref in refs]
    ),
    "DistributedSyncClient.no_sync": of_synchronization(_accumulated),
    **{
        f"DistributedSyncClient.{name}": of_synchronization(submitted)
        for name in (
            *("register_sync_parameters", "submit_gradient_sync", "submit_sync_collective"),
            "sync_collective",
        )
    },
    "distributed.all_reduce": of_synchronization(
        lambda client, refs: [ds.all_reduce(ref.tensor) for ref in refs]
    ),
    "distributed.no_sync": of_synchronization(_accumulated),
    **{
        f"distributed.{name}": of_synchronization(_submitted_by_functions, registers=False)
        for name in (
            *("register_sync_parameters", "submit_gradient_sync", "submit_sync_collective"),
            *("sync_collective", "comm_device", "float_from_ref"),
        )
    },
}


def _reduced(reduction: Any, values: list[br.Tensor]) -> None:
    for member, value in enumerate(values):
        reduction.give(member, [value])
    reduction.results()


def _without_exchange(training: br.DataParallel, x: br.Tensor) -> None:
    with training.no_sync():
        training.backward(x)
    training.step(x)


# Names that issue nothing: they return what the client knows, change its settings, or make an
# object whose methods issue something.
ISSUING_NOTHING: Final = frozenset(
    {
        *("DataParallel.__repr__", "Device.__eq__", "Device.__hash__", "Device.__reduce__"),
        *("Device.autodiff", "Device.client", "Device.distinction", "Device.elsewhere"),
        *("Device.info", "Device.session", "Device.traffic", "DistributedSyncClient.__repr__"),
        *("Group.__len__", "Group.__repr__", "Group.engine", "Group.failure", "Group.rank"),
        *("Group.size", "LocalDevice.__repr__", "LocalDevice.__str__"),
        *("LocalDevice.distinction", "LocalDevice.elsewhere", "Optimizer.__repr__"),
        *("Optimizer.__reduce__", "Optimizer.defaults"),
        *("RemoteDevice.__repr__", "RemoteDevice.__str__"),
        *("RemoteDevice.distinction", "RemoteDevice.from_id", "RemoteDevice.to_id"),
        *("Tensor.__array_namespace__", "Tensor.__await__", "Tensor.__dlpack_device__"),
        "Tensor.__len__",
        *("Tensor.__reduce__", "Tensor.__repr__", "Tensor.__rmatmul__", "Tensor.__round__"),
        *("Tensor.device", "Tensor.dtype", "Tensor.handle", "Tensor.is_leaf", "Tensor.nbytes"),
        *("Tensor.ndim", "Tensor.shape", "Tensor.size"),
        *("autograd.enable_grad", "autograd.no_grad"),
        *("burn_remote.enable_grad", "burn_remote.no_grad"),
        *("distributed.get_backend_client_map", "distributed.get_distributed_sync_client"),
        *("optim.Optimizer", "optim.Schedule", "tree.leaves", "tree.named_leaves"),
        *(f"optim.schedules.{name}" for name in br.optim.schedules.__all__),
    }
)
# Names that open or close what the programs use, or that need a session with a server.
TESTED_ELSEWHERE: Final = frozenset(
    {
        *("DataParallel.__enter__", "DataParallel.__exit__", "DataParallel.close"),
        *("Device.__aenter__", "Device.__aexit__", "Device.__enter__", "Device.__exit__"),
        *("Device.close", "Device.list_published", "Device.publish", "Device.published"),
        *("Device.unpublish", "DistributedSyncClient.close", "Group.__enter__"),
        *("Group.__exit__", "Group.close", "Group.rejoin", "RemoteDevice.close"),
        *("aio.open_device", "burn_remote.DataParallel", "burn_remote.Device"),
        *("burn_remote.LocalDevice", "burn_remote.RemoteDevice"),
        *("distributed.DistributedSyncClient", "distributed.Group"),
        *("distributed.close_communication_server", "distributed.close_distributed_sync_server"),
        *("distributed.start_communication_server", "distributed.start_distributed_sync_server"),
    }
)
