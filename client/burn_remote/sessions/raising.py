"""Raising one stored error several times."""

from __future__ import annotations

from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["fresh"]


def fresh(error: BurnRemoteError) -> BurnRemoteError:
    """Return an error like this one: each raise gets a traceback of its own."""
    # Not by calling the class: some take keywords that are no arguments of the exception.
    again = error.__class__.__new__(error.__class__, *error.args)
    again.__dict__.update(error.__dict__)
    again.__cause__ = error.__cause__
    return again
