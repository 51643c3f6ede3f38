"""The command line of an example."""

from __future__ import annotations

from collections.abc import Callable

import typer

import burn_remote as br

__all__ = ["run"]


def run(main: Callable[..., None]) -> None:
    """Run an example with the options of the command line, which are the parameters of ``main``.

    If no device can be opened with them, the program ends with the reason, without a traceback.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    try:
        app()
    except (
        br.ConnectionFailed,
        br.HandshakeRefused,
        br.UsageError,
        br.VersionMismatch,
    ) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
