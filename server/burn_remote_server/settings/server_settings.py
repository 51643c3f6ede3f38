"""What can be configured on a server, what is each setting's default, and why that one?

``Settings`` is a value: constructing it reads no file and no environment variable, so an in-process
server behaves the same everywhere. ``configuration_sources`` fills it in for the daemon.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
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

# Of the device's memory, when no number is given. More: the kernels' temporary results and the
# operating system no longer fit beside the tensors. Less: memory that nobody may use.
DEFAULT_MEMORY_SHARE: Final = 0.8


def _read_byte_size(value: object) -> object:
    """Turn ``"64MiB"`` into 67108864; anything but text is left to the field's own validation."""
    return parse_bytes(value) if isinstance(value, str) else value


def _split_names(value: object) -> object:
    """Turn ``"node-a, 10.0.0.0/8"`` into a tuple; anything but text is left to the field."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_read_byte_size), Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]


class Settings(BaseModel):
    """Everything that an operator can decide. Frozen; each description is also the flag's help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # -- where it listens ---------------------------------------------------------------------

    host: str = Field(
        DEFAULT_HOST,
        description="Interface to listen on. 0.0.0.0 lets the whole network in; the default only "
        "this machine.",
    )
    port: int = Field(
        DEFAULT_PORT,
        ge=0,
        le=65_535,
        description="TCP port for clients, peers, health and metrics. 0 takes any free one; the "
        "ready line says which.",
    )
    advertise_address: str | None = Field(
        None,
        description="Address at which other servers reach this one, such as ws://node-a:3000. "
        "Set it behind published ports or a proxy. Unset: host and port.",
    )

    tls_certificate: Path | None = Field(
        None,
        description="PEM file of this server's certificate and those that lead to its authority. "
        "With it clients write wss://. SIGHUP reads it again.",
    )
    tls_key: Path | None = Field(
        None,
        description="PEM file of the certificate's private key. Unset: it is in --tls-certificate.",
    )

    # -- who may connect ----------------------------------------------------------------------

    token_file: Path | None = Field(
        None,
        description="File of the tokens that open a session: lines of a name and a token, or TOML "
        "(*.toml) with limits for each. SIGHUP reads it again. Whoever listens on more than "
        "loopback needs tokens.",
    )
    tokens: SecretStr | None = Field(
        None,
        description="Tokens that open a session, each name:token, with commas between. No flag: "
        "every user of a machine sees the flags of its programs.",
    )
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of the authority whose certificates clients and peers must show, "
        "beside their token. Unset: they need none.",
    )
    peer: Names = Field(
        (),
        description="A server whose tensors may be fetched: its name, address, or network such as "
        "10.1.0.0/16, and the ports if not all, such as node-b:3000 or 10.1.0.0/16:3000-3010. May "
        "be given several times. Unset: the servers of this machine, on any port. Link-local "
        "addresses are never allowed.",
    )
    peer_token: SecretStr | None = Field(
        None,
        description="Token that servers prove to each other to fetch tensors; the same on all. It "
        "is never sent. No flag, like the tokens. Unset: this server fetches only from servers "
        "that need no token.",
    )
    peer_ca: Path | None = Field(
        None,
        description="PEM file of the authority that signed the certificates of wss:// peers. With "
        "it, ws:// peers are refused. Unset: the authorities that the system trusts.",
    )

    # -- what it computes on ------------------------------------------------------------------

    backend: str = Field(
        "numpy", description="Array library that computes: numpy (CPU) or cupy (NVIDIA GPU)."
    )
    device_count: int = Field(
        1,
        ge=1,
        le=1024,
        description="Devices that this process offers. The first is at ws://host:port, the others "
        "at ws://host:port/1, /2 …",
    )
    device_memory: Bytes | None = Field(
        None,
        description="Memory of each device that this server may use, such as 40GiB; the quotas "
        "start from it. Larger: less for other programs on the device. Smaller: OutOfMemory comes "
        "sooner. Unset: all of it.",
    )
    cuda_ipc: bool = Field(
        False,
        description="Lend tensors to servers of this host and user as GPU memory (CUDA IPC); both "
        "must have it on. With: such a server can read and write over what was lent to it or to "
        "another, for as long as it likes; other tensors it cannot. Without: moves between servers "
        "go through the host's memory.",
    )
    custom_operations: Names = Field(
        (),
        description="Python module with operations of your own, such as package.module; clients "
        "call them by name. May be given several times. The module is code that this server runs: "
        "docs/custom-operations.md shows one.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**64,
        description="Seed with which every session's random numbers start. Unset: each session "
        "draws its own. A client's device.seed() overrides it.",
    )
    inline_cost_limit: int = Field(
        100_000,
        ge=0,
        description="A batch of at most this estimated cost, in nanoseconds, runs on the event "
        "loop. Larger: one session's work delays the others' frames. Smaller: small programs pay a "
        "hand-over between threads, about 40 µs, per read. 0: none does.",
    )

    # -- what one session may use -------------------------------------------------------------

    max_session_bytes: Bytes | None = Field(
        None,
        description="Memory of one session's live tensors, such as 8GiB. Larger: one client can "
        "fill the device. Smaller: big models get QuotaExceeded. Unset: 80 % of the memory.",
    )
    max_session_tensors: Count = Field(
        1_000_000,
        description="Live tensors of one session. Larger: a client that forgets to drop holds more "
        "of the server's memory, some 500 bytes each. Smaller: long programs get QuotaExceeded.",
    )
    max_tensor_bytes: Bytes | None = Field(
        None,
        description="Size of one tensor, such as 2GiB. Larger: one operation can use up a "
        "session's whole quota. Smaller: big results get QuotaExceeded. Unset: what the session "
        "may hold.",
    )
    max_message_bytes: Annotated[Bytes, Field(ge=MIB)] = Field(
        64 * MIB,
        description="One message of the native protocol, at least 1MiB; payloads come in chunks "
        "of at most 1 MiB whatever this says. Larger: a client makes the server hold more at once. "
        "Smaller: big batches are refused.",
    )
    session_queue_batches: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        64,
        description="Batches of one session that wait for its worker; then its socket is no longer "
        "read. Larger: more memory and a longer drain. Smaller: the worker idles between frames.",
    )

    session_queue_bytes: Annotated[Bytes, Field(ge=MIB)] = Field(
        64 * MIB,
        description="Bytes of one session's frames that wait for its worker; then its socket is no "
        "longer read. Larger: one client makes the server hold more. Smaller: uploads wait more.",
    )
    max_session_transfers: Count = Field(
        16_384,
        description="Tensors that one session offers to others, and as many that it is fetching. "
        "Larger: a client that forgets its moves holds more memory. Smaller: programs that move "
        "many tensors at once get QuotaExceeded.",
    )
    max_operation_cost: Count | None = Field(
        None,
        description="Estimated cost of one operation in nanoseconds of one core (2 × rows × "
        "columns × inner for a product of matrices); an operation above it is refused before it "
        "starts. Larger: one operation may occupy a core for longer. Smaller: big operations get "
        "QuotaExceeded. Unset: only the memory of its tensors and its scratch bounds it.",
    )
    max_operation_seconds: Seconds = Field(
        300.0,
        description="An operation that took longer has failed: QuotaExceeded. Larger: one "
        "operation occupies a core for longer. Smaller: big operations fail on a busy machine.",
    )

    # -- what all sessions together may use ---------------------------------------------------

    max_total_bytes: Bytes | None = Field(
        None,
        description="Memory of all sessions' live tensors on one device, such as 60GiB. Larger: "
        "the device runs out of memory before anybody is told. Smaller: QuotaExceeded comes "
        "sooner. Unset: 80 % of the memory.",
    )
    max_connections: Count = Field(
        1024,
        description="Open connections of all kinds. Larger: more sockets and memory, some 100 KiB "
        "each. Smaller: peers and health checks are turned away sooner.",
    )
    max_connections_per_address: Count = Field(
        512,
        description="Open connections from one address. Larger: one machine can take all of them. "
        "Smaller: many programs of one machine are turned away.",
    )

    max_sessions: Count = Field(
        256,
        description="Open sessions; one more is refused. Larger: more worker threads. Smaller: "
        "clients are turned away sooner.",
    )

    transfer_checksum: bool = Field(
        True,
        description="Check each piece of a tensor that comes from a peer without TLS (XXH3). "
        "Without: faster by some 100 ms per GB, and what a network garbles is not noticed.",
    )

    # -- how long it waits --------------------------------------------------------------------

    handshake_timeout_seconds: Seconds = Field(
        10.0,
        description="A new connection says what it wants within this time. Larger: idle sockets "
        "are held longer. Smaller: slow networks cannot connect.",
    )
    heartbeat_seconds: Seconds = Field(
        30.0,
        description="Client and server ask each other for a sign of life this often, and give up "
        "who gave none for twice as long. Larger: a silent one is found later. Smaller: a program "
        "that is stopped for a while loses its connection.",
    )
    lease_seconds: Seconds = Field(
        60.0,
        description="A session whose connection broke is kept this long. Larger: a dead client's "
        "tensors stay longer. Smaller: a short network cut loses the session.",
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = Field(
        10.0,
        description="After SIGTERM, queued work may go on this long. Larger: stopping takes longer "
        "(give the container as much grace). Smaller: work is cut off.",
    )
    fetch_timeout_seconds: Seconds = Field(
        30.0,
        description="Fetching a tensor from another server may go without progress this long. "
        "Larger: a dead peer is found later. Smaller: a busy peer counts as dead.",
    )
    transfer_expiry_seconds: Seconds = Field(
        300.0,
        description="An exposed tensor that nobody fetches is freed after this time. Larger: "
        "forgotten moves hold memory. Smaller: a target with a long queue comes too late.",
    )

    # -- what it tells ------------------------------------------------------------------------

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least important message that is logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="How log lines look on standard error. auto: for reading on a terminal, JSON "
        "elsewhere.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(self, name) is not None and self.tls_certificate is None:
                raise ValueError(f"{name} goes with tls_certificate, which is not set")
        return self

    @field_validator("host", mode="after")
    @classmethod
    def _strip_brackets(cls, host: str) -> str:
        # [::1] is how one writes it in an address; sockets want ::1.
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
        """Return where other servers reach a device of this one, which listens on ``port``.

        On a wildcard host without an advertised address that is this machine's host name, which
        containers of one network can resolve.
        """
        if self.advertise_address is not None:
            return f"{self.advertise_address}/{device}" if device else self.advertise_address
        host = socket.gethostname() if is_wildcard(self.host) else self.host
        return websocket_address(host, port, device, secure=self.is_secure)

    @property
    def is_secure(self) -> bool:
        """Whether clients connect by TLS."""
        return self.tls_certificate is not None

    def session_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that one session may hold on a device with so much memory."""
        return self.max_session_bytes or int(memory_bytes * DEFAULT_MEMORY_SHARE)

    def tensor_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that one tensor may have on a device with so much memory."""
        allowed = self.session_bytes(memory_bytes)
        return min(self.max_tensor_bytes or allowed, allowed)

    def total_bytes(self, memory_bytes: int) -> int:
        """Return the bytes that all sessions together may hold on a device with so much memory."""
        return self.max_total_bytes or int(memory_bytes * DEFAULT_MEMORY_SHARE)

    def limited(self, limits: Mapping[str, Any]) -> Settings:
        """Return these settings with some limits replaced by those of a token."""
        return self.model_copy(update=dict(limits)) if limits else self
