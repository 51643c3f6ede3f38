"""The command line of ``burn-remote-server``.

Flags are passed on as text and validated together with environment variables and the configuration
file. So an invalid value gives the same error from any of these sources. After a user's mistake,
the command prints one sentence and exits with code 2.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Never

import typer
import typer.core
from pydantic import SecretStr

from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_server.settings.byte_sizes import format_bytes
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.settings.sources import (
    LoadedSettings,
    flag_name,
    load_settings,
)

__all__ = ["main"]

USAGE_EXIT_CODE: Final = 2

# Secrets have no flag, because every user of a machine can read the flags of its processes. These
# are the flags that a user may expect, and the advice how to pass the secret instead.
SECRETS: Final = {
    "--token": "set BURN_REMOTE_TOKENS to name:token, or give --token-file",
    "--tokens": "set BURN_REMOTE_TOKENS to name:token, or give --token-file",
    "--peer-token": "set BURN_REMOTE_PEER_TOKEN",
}

# Flags that take "true" or "false", and mean "true" without a value.
BOOLEAN_FLAGS: Final = frozenset({"--cuda-ipc", "--nccl", "--transfer-checksum"})
# Flags without a value, and their opposites. ``--fusion true`` and ``--fusion false`` are read as
# these, because the flags above are written so.
SWITCHES: Final = {
    "--fusion": "--no-fusion",
    "--compiled-kernels": "--no-compiled-kernels",
    "--tf32": "--no-tf32",
}

LISTENING: Final = "Listening"
ADMITTING: Final = "Access"
COMPUTING: Final = "Computation"
KERNELS: Final = "Kernels"  # a panel of its own: flags such as ``--no-fusion`` widen its columns
MOVING: Final = "Moves between servers"
SESSION_LIMITS: Final = "Limits of one session"
SERVER_LIMITS: Final = "Limits of all sessions together"
WAITING: Final = "Timeouts"
LOGGING: Final = "Logging"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    try:
        app(args=list(arguments), prog_name="burn-remote-server")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _flag(setting: str, panel: str, metavar: str) -> Any:
    """Return the option for a setting, with the setting's description as its help."""
    field = Settings.model_fields[setting]
    return typer.Option(
        flag_name(setting),
        help=_without_markup(f"{field.description} {_default_text(setting, field.default)}"),
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
    )


def _without_markup(text: str) -> str:
    """Escape brackets, which would be markup: ``burn-remote[iroh]``."""
    return text.rstrip().replace("[", r"\[")


def _switch(setting: str, panel: str) -> Any:
    """Return the option for a setting that is on or off: ``--fusion`` and ``--no-fusion``."""
    flag = flag_name(setting)
    option = _flag(setting, panel, "")
    # Typer uses the default of an annotated option as its first name.
    option.default = f"{flag}/--no-{flag.removeprefix('--')}"
    return option


def _default_text(setting: str, default: object) -> str:
    """Return the default for the help; empty if it is unset, which the description explains."""
    if default is None:
        return ""
    if default == ():
        return "Default: none."
    if isinstance(default, bool):
        return f"Default: {str(default).lower()}."
    if isinstance(default, int) and setting.endswith("_bytes"):
        default = format_bytes(default)
    return f"Default: {default:g}." if isinstance(default, float) else f"Default: {default}."


class _Command(typer.core.TyperCommand):
    """The command, which shows ``--help`` as a flag without a value, and refuses secrets.

    A flag of ``BOOLEAN_FLAGS`` may have no value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for argument in args:
            flag = argument.partition("=")[0]
            if flag in SECRETS:
                _refuse(
                    f"{flag} would show the token to every user of this machine; {SECRETS[flag]}"
                )
        return super().parse_args(ctx, _with_values(args))

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""  # otherwise, Typer shows --help <bool>
        return option


@app.command(
    cls=_Command,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Store the tensors of remote programs and compute with them.\n\n"
    "Each setting is a flag, an environment variable and an entry in the --config file, such as "
    "--drain-seconds, BURN_REMOTE_DRAIN_SECONDS and drain_seconds. A flag overrides the variable, "
    "and the variable overrides the file. A size is a number of bytes, or a text such as 64MiB.\n\n"
    "Tokens have no flag, because every user of a machine can see the flags of its processes: set "
    "BURN_REMOTE_TOKENS to the tokens of clients, as name:token pairs separated by commas, or give "
    "--token-file; set BURN_REMOTE_PEER_TOKEN to the token that your servers prove to each other.",
)
def command(
    context: typer.Context,
    host: Annotated[str | None, _flag("host", LISTENING, "HOST")] = None,
    port: Annotated[str | None, _flag("port", LISTENING, "PORT")] = None,
    advertise_address: Annotated[
        str | None, _flag("advertise_address", LISTENING, "ADDRESS")
    ] = None,
    iroh_port: Annotated[str | None, _flag("iroh_port", LISTENING, "PORT")] = None,
    iroh_key_file: Annotated[str | None, _flag("iroh_key_file", LISTENING, "FILE")] = None,
    iroh_relays: Annotated[str | None, _flag("iroh_relays", LISTENING, "RELAYS")] = None,
    tls_certificate: Annotated[str | None, _flag("tls_certificate", LISTENING, "FILE")] = None,
    tls_key: Annotated[str | None, _flag("tls_key", LISTENING, "FILE")] = None,
    token_file: Annotated[str | None, _flag("token_file", ADMITTING, "FILE")] = None,
    tls_client_ca: Annotated[str | None, _flag("tls_client_ca", ADMITTING, "FILE")] = None,
    peer: Annotated[list[str] | None, _flag("peer", ADMITTING, "HOST")] = None,
    peer_ca: Annotated[str | None, _flag("peer_ca", ADMITTING, "FILE")] = None,
    data_dir: Annotated[list[str] | None, _flag("data_dir", ADMITTING, "PATH")] = None,
    backend: Annotated[str | None, _flag("backend", COMPUTING, "NAME")] = None,
    device_count: Annotated[str | None, _flag("device_count", COMPUTING, "COUNT")] = None,
    device_memory: Annotated[str | None, _flag("device_memory", COMPUTING, "BYTES")] = None,
    fusion: Annotated[bool | None, _switch("fusion", KERNELS)] = None,
    compiled_kernels: Annotated[bool | None, _switch("compiled_kernels", KERNELS)] = None,
    tf32: Annotated[bool | None, _switch("tf32", KERNELS)] = None,
    custom_operations: Annotated[
        list[str] | None, _flag("custom_operations", COMPUTING, "MODULE")
    ] = None,
    seed: Annotated[str | None, _flag("seed", COMPUTING, "NUMBER")] = None,
    inline_cost_limit: Annotated[str | None, _flag("inline_cost_limit", COMPUTING, "COST")] = None,
    cuda_ipc: Annotated[str | None, _flag("cuda_ipc", MOVING, "true|false")] = None,
    transfer_checksum: Annotated[
        str | None, _flag("transfer_checksum", MOVING, "true|false")
    ] = None,
    nccl: Annotated[str | None, _flag("nccl", MOVING, "true|false")] = None,
    max_session_bytes: Annotated[
        str | None, _flag("max_session_bytes", SESSION_LIMITS, "BYTES")
    ] = None,
    max_session_tensors: Annotated[
        str | None, _flag("max_session_tensors", SESSION_LIMITS, "COUNT")
    ] = None,
    max_tensor_bytes: Annotated[
        str | None, _flag("max_tensor_bytes", SESSION_LIMITS, "BYTES")
    ] = None,
    max_message_bytes: Annotated[
        str | None, _flag("max_message_bytes", SESSION_LIMITS, "BYTES")
    ] = None,
    session_queue_batches: Annotated[
        str | None, _flag("session_queue_batches", SESSION_LIMITS, "COUNT")
    ] = None,
    session_queue_bytes: Annotated[
        str | None, _flag("session_queue_bytes", SESSION_LIMITS, "BYTES")
    ] = None,
    max_session_transfers: Annotated[
        str | None, _flag("max_session_transfers", SESSION_LIMITS, "COUNT")
    ] = None,
    max_operation_cost: Annotated[
        str | None, _flag("max_operation_cost", SESSION_LIMITS, "COST")
    ] = None,
    max_operation_seconds: Annotated[
        str | None, _flag("max_operation_seconds", SESSION_LIMITS, "SECONDS")
    ] = None,
    operation_lost_seconds: Annotated[
        str | None, _flag("operation_lost_seconds", SESSION_LIMITS, "SECONDS")
    ] = None,
    max_total_bytes: Annotated[str | None, _flag("max_total_bytes", SERVER_LIMITS, "BYTES")] = None,
    max_content_bytes: Annotated[
        str | None, _flag("max_content_bytes", SERVER_LIMITS, "BYTES")
    ] = None,
    max_connections: Annotated[str | None, _flag("max_connections", SERVER_LIMITS, "COUNT")] = None,
    max_connections_per_address: Annotated[
        str | None, _flag("max_connections_per_address", SERVER_LIMITS, "COUNT")
    ] = None,
    max_sessions: Annotated[str | None, _flag("max_sessions", SERVER_LIMITS, "COUNT")] = None,
    heartbeat_seconds: Annotated[str | None, _flag("heartbeat_seconds", WAITING, "SECONDS")] = None,
    handshake_timeout_seconds: Annotated[
        str | None, _flag("handshake_timeout_seconds", WAITING, "SECONDS")
    ] = None,
    lease_seconds: Annotated[str | None, _flag("lease_seconds", WAITING, "SECONDS")] = None,
    drain_seconds: Annotated[str | None, _flag("drain_seconds", WAITING, "SECONDS")] = None,
    fetch_timeout_seconds: Annotated[
        str | None, _flag("fetch_timeout_seconds", WAITING, "SECONDS")
    ] = None,
    transfer_expiry_seconds: Annotated[
        str | None, _flag("transfer_expiry_seconds", WAITING, "SECONDS")
    ] = None,
    content_seconds: Annotated[str | None, _flag("content_seconds", WAITING, "SECONDS")] = None,
    log_level: Annotated[str | None, _flag("log_level", LOGGING, "LEVEL")] = None,
    log_format: Annotated[str | None, _flag("log_format", LOGGING, "FORMAT")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with settings, named like their flags but with underscores: "
            "device_count = 2. The variable BURN_REMOTE_CONFIG names the file too.",
            metavar="FILE",
        ),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", metavar="", help="Print the effective settings as TOML, and exit."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            metavar="",
            help="Ask a running server for its health; exit with 0 if it is healthy, else with 1.",
        ),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --check: the server's address, such as ws://node-a:3000, if it differs "
            "from the configured one.",
            metavar="ADDRESS",
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version and exit.")
    ] = False,
) -> None:
    """Store the tensors of remote programs and compute with them."""
    if show_version:
        typer.echo(f"burn-remote-server {version('burn-remote')}")
        return
    if address is not None and not check:
        _refuse("--address works only with --check; a server listens on --host and --port")
    flags = {name: context.params.get(name) for name in Settings.model_fields}
    # Lists are empty, not None, if the flag was not given.
    lists = {"peer": peer, "data_dir": data_dir, "custom_operations": custom_operations}
    flags |= {name: given or None for name, given in lists.items()}
    try:
        loaded = load_settings(flags, os.environ, config)
    except BurnRemoteError as error:
        _refuse(str(error))
    if show_config:
        typer.echo(_format_settings(loaded))
        return
    from burn_remote_server.command_line.daemon import CannotStart, run

    try:
        run(loaded.settings)
    except CannotStart as error:
        _refuse(str(error))


def _with_values(args: Sequence[str]) -> list[str]:
    """Return the arguments with ``true`` after each boolean flag, and no value after a switch."""
    given: list[str] = []
    for argument, following in itertools.pairwise([*args, "-"]):
        if given and given[-1] in SWITCHES and argument in ("true", "false"):
            if argument == "false":
                given[-1] = SWITCHES[given[-1]]
            continue
        given.append(argument)
        if argument in BOOLEAN_FLAGS and following.startswith("-"):
            given.append("true")
    return given


def _format_settings(loaded: LoadedSettings) -> str:
    """Return the settings as TOML for ``--config``, each with its source."""
    lines = []
    for name, value in loaded.settings.model_dump().items():
        source = loaded.sources.get(name, "default")
        if value is None:  # TOML has no null
            lines.append(f"# {name} is unset")
        elif isinstance(value, SecretStr):
            lines.append(f"# {name} is set by {source}, and not shown")
        else:
            lines.append(f"{name} = {json.dumps(value, default=str)}  # {source}")
    return "\n".join(lines)


def _refuse(sentence: str) -> Never:
    typer.echo(f"burn-remote-server: {sentence}", err=True)
    raise typer.Exit(USAGE_EXIT_CODE)
