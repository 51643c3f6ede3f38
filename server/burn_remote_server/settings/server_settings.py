"""The settings of a server, with their defaults and the texts of ``--help``.

``Settings`` is a value: constructing it reads no file and no environment variable, so an in-process
server behaves the same everywhere. ``settings.sources`` reads them for the daemon.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from burn_remote_server.settings.byte_sizes import parse_bytes
from burn_remote_server.settings.listen_address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    is_wildcard,
    websocket_address,
)

__all__ = ["Settings"]

MIB: Final = 1024 * 1024

# The share of the device's memory that the default quotas allow. The rest is for the temporary
# results of kernels and for the operating system.
DEFAULT_MEMORY_SHARE: Final = 0.8

# By default, the contents of shared uploads take at most an eighth of the sessions' memory. They
# are freed when tensors need the memory.
CONTENT_DIVISOR: Final = 8


def _read_byte_size(value: object) -> object:
    """Convert ``"64MiB"`` to 67108864; return a value that is not text unchanged."""
    return parse_bytes(value) if isinstance(value, str) else value


def _check_unit(size: int) -> int:
    """Refuse a size below 1 MiB for a device: a number whose unit was forgotten."""
    if size < 1 << 20:
        raise ValueError(f"expected at least 1MiB; {size} are bytes: write {size}GiB for gibibytes")
    return size


def _split_names(value: object) -> object:
    """Convert ``"node-a, 10.0.0.0/8"`` to a tuple; return a value that is not text unchanged."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _lower_case(value: object) -> object:
    """Convert ``"INFO"`` to ``"info"``; return a value that is not text unchanged."""
    return value.lower() if isinstance(value, str) else value


LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower_case)]
Bytes = Annotated[int, BeforeValidator(_read_byte_size), Field(ge=1)]
BytesOrZero = Annotated[int, BeforeValidator(_read_byte_size), Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _split_paths(value: object) -> object:
    """Convert ``"/data:/models"`` to a tuple, as in PATH; other values stay unchanged."""
    return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_split_paths)]


class Settings(BaseModel):
    """All settings of a server. Frozen; the descriptions are also the texts of ``--help``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # -- listening ----------------------------------------------------------------------------

    host: str = Field(
        DEFAULT_HOST,
        description="Interface to listen on. 0.0.0.0 accepts connections from the whole network; "
        "the default accepts only connections from this machine.",
    )
    port: int = Field(
        DEFAULT_PORT,
        ge=0,
        le=65_535,
        description="TCP port for clients, peers, health and metrics. 0 takes any free port; the "
        "first line of output names it.",
    )
    advertise_address: str | None = Field(
        None,
        description="Address at which other servers reach this one, such as ws://node-a:3000. "
        "Set it behind published ports or a proxy. Unset: --host and --port.",
    )

    iroh_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="UDP port on which to accept connections over Iroh too, at --host. Clients use "
        "the address iroh://NODE-ID?addr=HOST:PORT that the first line of output names, with the "
        "public key of this server as its node id. 0 takes any free port. Needs "
        "burn-remote[iroh]. Unset: no connections over Iroh.",
    )
    iroh_key_file: Path | None = Field(
        None,
        description="File with this server's secret key for Iroh, 32 bytes; it is created if it "
        "does not exist. Whoever can read it can pose as this server. Unset: a new key, and so a "
        "new node id, at each start.",
    )
    iroh_relays: str = Field(
        "disabled",
        description="Relays through which clients reach this server over Iroh if they cannot "
        "connect directly, for example behind NAT: disabled, the https:// address of a relay, or "
        "public for the relays and the directory of n0, with which clients need only the node id. "
        "With relays, a server needs tokens.",
    )

    tls_certificate: Path | None = Field(
        None,
        description="PEM file with this server's certificate chain. With it, clients connect to "
        "wss:// addresses. SIGHUP reads the file again.",
    )
    tls_key: Path | None = Field(
        None,
        description="PEM file with the certificate's private key. Unset: the key is in "
        "--tls-certificate.",
    )

    # -- access -------------------------------------------------------------------------------

    token_file: Path | None = Field(
        None,
        description="File with the tokens of clients: each line has a name and a token; a *.toml "
        "file can also set limits for each token. SIGHUP reads the file again. A server that "
        "listens on more than loopback needs tokens.",
    )
    tokens: SecretStr | None = Field(
        None,
        description="Tokens of clients, as name:token pairs separated by commas. There is no "
        "flag, because every user of a machine can see the flags of its processes.",
    )
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of a certificate authority. Clients and peers must present a "
        "certificate that it signed, in addition to their token. Unset: they need no certificate.",
    )
    peer: Names = Field(
        (),
        description="A server whose tensors may be fetched: its name, address, or network such as "
        "10.1.0.0/16, optionally with ports, such as node-b:3000 or 10.1.0.0/16:3000-3010. May be "
        "given several times. Unset: the servers of this machine, on any port. Link-local "
        "addresses are never allowed.",
    )
    peer_token: SecretStr | None = Field(
        None,
        description="Token that servers prove to each other before they fetch tensors; set the "
        "same on all. It is never sent. There is no flag, as for client tokens. Unset: this server "
        "fetches only from servers that require no token.",
    )
    peer_ca: Path | None = Field(
        None,
        description="PEM file of the certificate authority that signed the certificates of wss:// "
        "peers. If set, ws:// peers are refused. Unset: the authorities that the system trusts.",
    )

    data_dir: Paths = Field(
        (),
        description="Directory whose files every client may load into tensors, and so read. "
        "Symbolic links in it are not followed. May be given several times; the variable has "
        "directories separated by colons. Unset: clients load no files of this server.",
    )

    # -- computation --------------------------------------------------------------------------

    backend: str = Field(
        "numpy", description="Array library that computes: numpy (CPU) or cupy (NVIDIA GPU)."
    )
    device_count: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of devices that this process offers. The first is at ws://host:port, "
        "the others at ws://host:port/1, /2 …",
    )
    device_memory: Annotated[Bytes, AfterValidator(_check_unit)] | None = Field(
        None,
        description="Memory of each device that this server may use, such as 40GiB. The default "
        "quotas are shares of it. Unset: all memory of the device.",
    )
    cuda_ipc: bool = Field(
        False,
        description="Exchange tensors with servers of this host and user as GPU memory (CUDA IPC). "
        "Both servers must set it. Such a server can read and change the memory that was lent to "
        "it or to another server, but no other tensors. Without it, moves between servers go "
        "through the host's memory.",
    )
    fusion: bool = Field(
        True,
        description="Fuse consecutive operations where that is faster; results keep the same bits. "
        "On a GPU: fused kernels and CUDA graphs. The page Graphs and fusion has the rules.",
    )
    compiled_kernels: bool = Field(
        True,
        description="Compile fused operations to machine code in a background thread, if the extra "
        "fusion is installed (llvmlite). Results keep the same bits.",
    )
    tf32: bool = Field(
        False,
        description="Let a GPU round the float32 operands of matrix products and convolutions to "
        "TF32, with 10 mantissa bits instead of 23: faster, but with errors of about 1e-3 instead "
        "of 1e-6. Needs the backend cupy and a GPU of compute capability 8.0 or more.",
    )
    custom_operations: Names = Field(
        (),
        description="Python module with your own operations, such as package.module; clients "
        "call them by name. May be given several times. This server runs the module's code; "
        "the page Custom operations has an example.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**64,
        description="Seed of every session's random numbers. A client's device.seed() overrides "
        "it. Unset: each session draws its own seed.",
    )
    inline_cost_limit: int = Field(
        100_000,
        ge=0,
        description="A batch of at most this estimated cost, in nanoseconds, runs on the event "
        "loop; other batches run on the session's thread. A larger limit lets one session delay "
        "the frames of others; a smaller one adds about 40 µs to each read of a small program. 0: "
        "all batches run on the session's thread.",
    )

    # -- limits of one session ----------------------------------------------------------------

    max_session_bytes: Bytes | None = Field(
        None,
        description="Memory of one session's live tensors, such as 8GiB; an operation that needs "
        "more fails with QuotaExceeded. Unset: 80 % of the memory.",
    )
    max_session_tensors: Count = Field(
        1_000_000,
        description="Live tensors of one session; one more fails with QuotaExceeded. Beyond the "
        "first 1,024, each counts 1,024 bytes in the session's memory besides its elements.",
    )
    max_tensor_bytes: Bytes | None = Field(
        None,
        description="Size of one tensor, such as 2GiB; a larger result fails with QuotaExceeded. "
        "Unset: the quota of the session.",
    )
    max_message_bytes: Annotated[Bytes, Field(ge=MIB)] = Field(
        64 * MIB,
        description="Size of one message of the native protocol, at least 1MiB; a larger message "
        "ends its session. It does not limit tensors, which arrive in chunks of 960 KiB "
        "to 3.75 MiB.",
    )
    session_queue_batches: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        64,
        description="Batches of one session that may wait for its thread; at the limit, the "
        "server stops reading the session's socket. More batches take more memory and lengthen "
        "draining; with fewer, the thread may wait for frames.",
    )

    session_queue_bytes: Annotated[Bytes, Field(ge=MIB)] = Field(
        64 * MIB,
        description="Bytes of one session's frames that may wait for its thread; at the limit, "
        "the server stops reading the session's socket.",
    )
    max_session_transfers: Count = Field(
        16_384,
        description="Tensors that one session exposes to other sessions and servers, and also "
        "tensors that it fetches at the same time; one more fails with QuotaExceeded.",
    )
    max_operation_cost: Count | None = Field(
        None,
        description="Estimated cost of one operation in nanoseconds of one core (for a product of "
        "matrices, 2 × rows × columns × inner dimension); an operation above it fails with "
        "QuotaExceeded before it starts. Unset: no limit on the cost; the memory quotas still "
        "limit an operation's size.",
    )
    max_operation_seconds: Seconds = Field(
        300.0,
        description="Duration of one operation; one that took longer fails with QuotaExceeded. "
        "On a busy machine, operations take longer.",
    )
    operation_lost_seconds: Seconds = Field(
        600.0,
        description="An operation that has not returned after this time, or twice "
        "max_operation_seconds if that is longer, counts as lost: its session ends with "
        "OperationLost. Its thread and its memory are only free once it returns.",
    )

    # -- limits of all sessions together ------------------------------------------------------

    max_total_bytes: Bytes | None = Field(
        None,
        description="Memory of all sessions' live tensors on one device, such as 60GiB; an "
        "operation that needs more fails with QuotaExceeded. The rest of the memory is for "
        "temporary results. Unset: 80 % of the memory.",
    )
    max_connections: Count = Field(
        1024,
        description="Open connections of all kinds, including peers and health checks. Each takes "
        "about 100 KiB.",
    )
    max_connections_per_address: Count = Field(
        512,
        description="Open connections from one address.",
    )

    max_sessions: Count = Field(
        256,
        description="Open sessions; further ones are refused. Each may use one thread.",
    )

    transfer_checksum: bool = Field(
        True,
        description="Check each frame of a peer without TLS by its checksum. false saves "
        "about 100 ms per GB, but leaves network errors undetected. The fetching server decides.",
    )

    nccl: bool = Field(
        False,
        description="Let groups of GPUs exchange tensors by NCCL. Its own connections, between the "
        "machines of a group, are neither encrypted nor authenticated.",
    )

    max_content_bytes: BytesOrZero | None = Field(
        None,
        description="Memory of a device for the contents of uploads that programs share between "
        "their sessions (share=True), such as 4GiB; 0 keeps none. They are freed, the least "
        "recently used first, when tensors need the memory. Unset: an eighth of max_total_bytes.",
    )

    # -- timeouts -----------------------------------------------------------------------------

    handshake_timeout_seconds: Seconds = Field(
        10.0,
        description="A new connection must complete its handshake within this time.",
    )
    heartbeat_seconds: Seconds = Field(
        30.0,
        description="Interval at which client and server ping each other. Each side closes a "
        "connection that was silent for twice this time, for example because a program is "
        "suspended.",
    )
    lease_seconds: Seconds = Field(
        60.0,
        description="How long a session whose connection broke is kept, so that its client can "
        "reconnect. The tensors of a crashed client also stay this long.",
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = Field(
        10.0,
        description="After SIGTERM, queued work may continue for this long. Give the process "
        "manager a longer timeout.",
    )
    fetch_timeout_seconds: Seconds = Field(
        30.0,
        description="A fetch of an exposed tensor fails after this time without progress, or after "
        "1.5 times this time if the other server sends nothing.",
    )
    transfer_expiry_seconds: Seconds = Field(
        300.0,
        description="An exposed tensor that nobody fetches is freed after this time. Allow for "
        "targets with long queues, which fetch late.",
    )

    content_seconds: Seconds = Field(
        3600.0,
        description="Elements of a shared upload are freed this long after their last use.",
    )

    # -- logging ------------------------------------------------------------------------------

    log_level: LogLevel = Field("info", description="Lowest level of messages that are logged.")
    log_format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="Format of log lines on standard error. auto: readable text on a terminal, "
        "JSON otherwise.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise ValueError(f"{name} needs tls_certificate, which is not set")
        return self

    @model_validator(mode="after")
    def _check_iroh(self) -> Self:
        for name, default in (("iroh_key_file", None), ("iroh_relays", "disabled")):
            if getattr(self, name) != default and self.iroh_port is None:
                raise ValueError(f"{name} needs iroh_port, which is not set")
        return self

    @field_validator("iroh_relays", mode="after")
    @classmethod
    def _check_relays(cls, relays: str) -> str:
        if relays not in ("disabled", "public") and not relays.startswith(("http://", "https://")):
            raise ValueError("expected disabled, public or an address such as https://relay.site")
        return relays

    @field_validator("host", mode="after")
    @classmethod
    def _strip_brackets(cls, host: str) -> str:
        # Addresses contain [::1], but sockets expect ::1.
        return host.strip().removeprefix("[").removesuffix("]")

    @field_validator("advertise_address", mode="after")
    @classmethod
    def _complete_address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        if "://" not in address:
            address = f"ws://{address}"
        scheme, _, rest = address.partition("://")
        if scheme not in ("ws", "wss") or not rest.split("/")[0]:
            raise ValueError("expected an address such as ws://node-a:3000")
        return address.rstrip("/")

    def peer_address(self, port: int, device: int = 0) -> str:
        """Return the address at which other servers reach a device of this server.

        ``port`` is the listening port. If the host is a wildcard and no address is advertised, the
        address contains this machine's host name, which containers in the same network can resolve.
        """
        if self.advertise_address is not None:
            return f"{self.advertise_address}/{device}" if device else self.advertise_address
        host = socket.gethostname() if is_wildcard(self.host) else self.host
        return websocket_address(host, port, device, secure=self.is_secure)

    @property
    def uses_relays(self) -> bool:
        """Whether clients of other networks reach this server through relays."""
        return self.iroh_port is not None and self.iroh_relays != "disabled"

    @property
    def peer_beat_seconds(self) -> float:
        """The interval of pings between servers; at least two pass before a fetch is given up."""
        return min(self.heartbeat_seconds, max(1.0, self.fetch_timeout_seconds / 2))

    @property
    def is_secure(self) -> bool:
        """Whether clients connect over TLS."""
        return self.tls_certificate is not None

    def session_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that one session may hold on a device with ``memory_bytes``."""
        return self.max_session_bytes or int(memory_bytes * DEFAULT_MEMORY_SHARE)

    def tensor_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that one tensor may have on a device with ``memory_bytes``."""
        allowed = self.session_bytes(memory_bytes)
        return min(self.max_tensor_bytes or allowed, allowed)

    def total_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that all sessions on a device with ``memory_bytes`` may hold."""
        return self.max_total_bytes or int(memory_bytes * DEFAULT_MEMORY_SHARE)

    def content_bytes(self, memory_bytes: int) -> int:
        """Return the limit on the contents of shared uploads of one device."""
        if self.max_content_bytes is not None:
            return self.max_content_bytes
        return self.total_bytes(memory_bytes) // CONTENT_DIVISOR

    def limited(self, limits: Mapping[str, Any]) -> Settings:
        """Return these settings with some limits replaced by those of a token."""
        return self.model_copy(update=dict(limits)) if limits else self
