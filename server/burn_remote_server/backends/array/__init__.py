"""A backend over any array module such as NumPy: one implementation of every operation."""

from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.array.backend import ArrayBackend

__all__ = ["ArrayBackend", "ArraySession"]
