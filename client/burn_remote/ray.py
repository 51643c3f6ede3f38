"""Servers on the machines of a Ray cluster: ``burn-remote[ray]``.

Each server is a ``burn-remote-server`` process that a Ray actor starts and whose address the actor
reports. Ray places and restarts the servers. Programs connect to them directly, so Ray carries no
tensors. Nothing else in this package imports this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty
from types import TracebackType
from typing import Any, Final, Self

try:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'burn_remote.ray needs Ray, which is not installed: pip install "burn-remote[ray]"',
        name=error.name,
    ) from error

from burn_remote.devices.remote import RemoteDevice
from burn_remote_protocol.errors import ConnectionFailed, UsageError, shown
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = ["Servers"]

# The strategies of Ray's placement groups.
STRATEGIES: Final = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
# How long a server may continue its current work after it was told to stop.
STOP_SECONDS: Final = 15.0
# If a server does not start, the error quotes this many of the last lines of its output.
KEPT_LINES: Final = 20
PR_SET_PDEATHSIG: Final = 1  # from Linux' <sys/prctl.h>


class Servers:
    """``count`` servers in a Ray cluster: ``with Servers(4, gpus=1) as servers: …``.

    Each has ``cpus`` and ``gpus`` of its own, in one placement group with Ray's ``strategy``:
    ``"SPREAD"`` or ``"STRICT_SPREAD"`` over many machines, ``"PACK"`` or ``"STRICT_PACK"`` on few.
    With GPUs, servers run with ``--backend cupy`` and see only the GPUs that Ray assigned to them.
    ``flags`` are further options of ``burn-remote-server``. All machines need the same version of
    burn-remote.

    A server listens on the address of its machine and accepts clients with ``token``. It fetches
    tensors only from the machines of these servers; they authenticate each other with a random peer
    token. The connections are not encrypted unless ``flags`` name certificates, which
    ``connect(tls=…)`` then has to trust.

    The next ``addresses()`` restarts a server that has ended. Ray restarts an actor whose process
    or machine failed, at most ``max_restarts`` times (-1: without a limit). A restarted server has
    another address and no tensors. Raises ``UsageError`` for invalid arguments and without a Ray
    cluster. Warns at once if the machines of the cluster have no room for the servers. Raises
    ``ConnectionFailed`` if Ray cannot place them within ``timeout_seconds``, or if a server does
    not start.
    """

    def __init__(
        self,
        count: int,
        *,
        cpus: float = 1,
        gpus: float = 0,
        strategy: str = "SPREAD",
        flags: Sequence[str] = (),
        max_restarts: int = -1,
        timeout_seconds: float = 60.0,
    ) -> None:
        if not isinstance(count, int):
            raise UsageError(f"Servers takes the number of servers, not {shown(count)}")
        if isinstance(flags, str):
            raise UsageError(
                f"flags= is a tuple with one text for each word, not {shown(flags)}; write "
                f"flags={shown(tuple(flags.split()))}"
            )
        if count < 1:
            raise UsageError(f"Servers needs at least one server, not {count}")
        if strategy not in STRATEGIES:
            names = ", ".join(map(repr, STRATEGIES))
            raise UsageError(f"strategy must be one of {names}, not {shown(strategy)}")
        if not ray.is_initialized():
            raise UsageError(
                "there is no Ray cluster: call ray.init() or ray.init(address=…) first"
            )
        self.token: Final = secrets.token_urlsafe(32)
        self._environment: Final = {
            "BURN_REMOTE_TOKENS": f"ray:{self.token}",
            "BURN_REMOTE_PEER_TOKEN": secrets.token_urlsafe(32),
        }
        self._flags: Final = [*(("--backend", "cupy") if gpus else ()), *flags]
        self._seconds: Final = timeout_seconds
        resources = {"CPU": cpus, "GPU": gpus}
        bundle = {name: amount for name, amount in resources.items() if amount}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if (room := _room(bundle, machines, strategy)) < count:
            # Not an error: Ray may add machines to the cluster, or one may be about to join it.
            warnings.warn(
                f"the Ray cluster has room for {room:g} of {count} servers with {_listed(bundle)} "
                f"each (strategy {strategy!r}); its machines have "
                f"{' / '.join(map(_listed, machines))}; waiting up to {timeout_seconds:g} seconds "
                "for more machines",
                stacklevel=2,
            )
        self._group: Final = placement_group([bundle] * count, strategy=strategy)
        self._actors: list[Any] = []
        try:
            self._await_room(bundle, count)
            actor = ray.remote(_Server)
            self._actors += [
                actor.options(
                    num_cpus=cpus,
                    num_gpus=gpus,
                    max_restarts=max_restarts,
                    max_task_retries=max_restarts,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._group, placement_group_bundle_index=place
                    ),
                ).remote()
                for place in range(count)
            ]
            self.addresses()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{len(self._actors)} servers in a Ray cluster>"

    def addresses(self) -> list[str]:
        """Return the address of each server, such as ``ws://10.0.0.7:40123``, in a fixed order.

        Starts servers that do not run. Raises ``ConnectionFailed``, and ``UsageError`` after
        ``close``.
        """
        if not self._actors:
            raise UsageError("these servers were closed; make a new Servers object")
        hosts = self._results([actor.host.remote() for actor in self._actors])
        peers = [flag for host in sorted(set(hosts)) for flag in ("--peer", host)]
        given = ([*self._flags, *peers], self._environment, self._seconds)
        return self._results([actor.address.remote(*given) for actor in self._actors])

    def connect(self, **options: Any) -> list[RemoteDevice]:
        """Return a ``RemoteDevice`` for each server, with the token and other ``options``."""
        with contextlib.ExitStack() as opened:  # closes those that are open if one fails
            devices = [
                opened.enter_context(RemoteDevice(address, token=self.token, **options))
                for address in self.addresses()
            ]
            opened.pop_all()
        return devices

    def close(self) -> None:
        """Stop the servers and give their resources back. A second call does nothing."""
        actors, self._actors = self._actors, []
        stopping = [actor.stop.remote() for actor in actors]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_SECONDS)
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(self._group)

    def _await_room(self, bundle: dict[str, float], count: int) -> None:
        if not self._group.wait(self._seconds):
            raise ConnectionFailed(
                f"the Ray cluster has no room for {count} servers with {bundle} each within "
                f"{self._seconds:g} seconds; it has {ray.cluster_resources()}: ask for less, or "
                "add machines"
            )

    def _results(self, pending: list[Any]) -> list[str]:
        try:
            # Twice: Ray may first have to restart an actor.
            found: list[str] = ray.get(pending, timeout=2 * self._seconds)
        except ray.exceptions.RayTaskError as error:
            raise ConnectionFailed(f"a server in the Ray cluster failed: {error.cause}") from error
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise ConnectionFailed(
                f"an actor of the Ray cluster does not answer: {error}"
            ) from error
        return found


def _room(
    bundle: Mapping[str, float], machines: Iterable[Mapping[str, float]], strategy: str
) -> float:
    """Return how many servers fit into machines that run nothing else."""
    each = [
        min([machine.get(name, 0) // amount for name, amount in bundle.items()], default=math.inf)
        for machine in machines
    ]
    match strategy:
        case "STRICT_SPREAD":
            return sum(count >= 1 for count in each)
        case "STRICT_PACK":
            return max(each, default=0)
        case _:
            return sum(each)


def _listed(resources: Mapping[str, float]) -> str:
    """Return the processors and GPUs of a machine or a server, as ``4 CPU, 1 GPU``."""
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


class _Server:
    """The actor of one server: owns its process and reports its address."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    def host(self) -> str:
        """Return the address of this machine in the cluster."""
        return str(ray.util.get_node_ip_address())

    def address(self, flags: list[str], environment: dict[str, str], seconds: float) -> str:
        """Return the server's address; start it if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._address = self._start(flags, environment, seconds)
        return self._address

    def stop(self) -> None:
        """Drain the server and wait for its end, at most ``STOP_SECONDS``."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)

    def _start(self, flags: list[str], environment: dict[str, str], seconds: float) -> str:
        command = [sys.executable, "-m", "burn_remote_server", "--host", self.host(), "--port", "0"]
        self._process = process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
            preexec_fn=_end_with_parent(),
        )
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        found: TimedQueue[str] = TimedQueue()

        def read() -> None:
            assert process.stdout is not None  # started with a pipe
            for line in process.stdout:
                lines.append(line)
                for word in line.split():
                    if word.startswith(("ws://", "wss://")):
                        found.put(word)
            found.put("")

        threading.Thread(target=read, name="server-output", daemon=True).start()
        try:
            address = found.get(seconds)
        except Empty:
            address = ""
        if not address:
            process.kill()
            said = "".join(lines).strip() or "it printed nothing"
            raise RuntimeError(
                f"burn-remote-server on {self.host()} was not ready within {seconds:g} seconds, or "
                f"ended before: {said}"
            )
        return address


def _end_with_parent() -> Callable[[], None] | None:
    """Return a function for a new process to call, so that it ends when this actor ends.

    Returns ``None`` on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    # Loaded before the fork, because loading a library between fork and exec can deadlock.
    library = ctypes.CDLL(None)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
