"""``LocalDevice``: a device inside this process."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Final

from burn_remote.devices.automatic_graphs import automatic_graphs_wanted
from burn_remote.functions.device_class import Device
from burn_remote.runner.stack import RunnerStack
from burn_remote.sessions.native.automatic_graph_session import AutomaticGraphSession
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown

__all__ = ["LocalDevice"]

# For the handshake, which an engine in this process answers at once.
CONNECT_TIMEOUT_SECONDS: Final = 10.0


class LocalDevice(Device):
    """A device inside this process, without a server.

    Each ``LocalDevice()`` is a device of its own, and tensors of two devices cannot be combined:
    create one and use it for all tensors.

    ``backend`` names a backend: ``"numpy"`` comes with ``pip install "burn-remote[server]"``.
    ``custom_operations`` are those that ``custom`` can call, made by
    ``burn_remote_server.custom.custom_operation``. ``automatic_graphs`` has the session recognize
    sequences of operations that the program repeats, and run each as one; the default is
    ``$BURN_REMOTE_AUTOMATIC_GRAPHS``, else ``False``. Results are the same.
    """

    distinction = "each LocalDevice() is a device of its own"
    elsewhere = (
        "make another burn_remote.LocalDevice() in the other process, and send it the elements of "
        "tensors, x.numpy()"
    )

    def __init__(
        self,
        backend: str = "numpy",
        *,
        custom_operations: Iterable[object] = (),
        automatic_graphs: bool | None = None,
    ) -> None:
        self.backend: Final = backend
        found = entry_points(group="burn_remote.local", name=backend)
        if not found:
            raise UsageError(
                f"a LocalDevice computes with 'numpy', not {shown(backend)}; for a GPU, start "
                "burn-remote-server --backend cupy, and open RemoteDevice('ws://host:3000')"
            )
        try:
            open_link = next(iter(found)).load()
        except ImportError as error:
            raise UsageError(
                f"a LocalDevice contains a server, whose package {error.name} is not installed; "
                'run pip install "burn-remote[server]"'
            ) from error
        if isinstance(custom_operations, str) or not isinstance(custom_operations, Iterable):
            raise ArgumentMismatch(
                "custom_operations is a list of custom operations, such as [swish], not "
                f"{shown(custom_operations)}"
            )
        wanted = {"custom_operations": tuple(custom_operations)} if custom_operations else {}
        session_class = (
            AutomaticGraphSession if automatic_graphs_wanted(automatic_graphs) else NativeSession
        )
        session = session_class(
            lambda _: open_link(**wanted),
            token=None,
            timeout_seconds=CONNECT_TIMEOUT_SECONDS,
            transfer_domain="local",
        )
        self._use_runners(RunnerStack(session))

    def __repr__(self) -> str:
        return f"LocalDevice({self.backend!r})"

    def __str__(self) -> str:
        return f"local:{self.backend}"
