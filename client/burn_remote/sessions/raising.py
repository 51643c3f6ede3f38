"""Raising one stored error several times."""

from __future__ import annotations

from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["fresh"]


def fresh(error: BurnRemoteError) -> BurnRemoteError:
    """Return a copy of an error, so that each raise has its own traceback."""
    # Not by calling the class: some constructors take keywords that ``args`` lacks.
    again = error.__class__.__new__(error.__class__, *error.args)
    again.__dict__.update(error.__dict__)
    again.__cause__ = error.__cause__
    return again
