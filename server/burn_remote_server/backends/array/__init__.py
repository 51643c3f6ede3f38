"""A backend over any array module such as NumPy: one implementation of every operation."""

from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.session import ArraySession

__all__ = ["ArrayBackend", "ArraySession"]
