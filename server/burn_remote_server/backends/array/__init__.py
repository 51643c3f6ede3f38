"""One implementation of every operation, written against an array module such as NumPy."""

from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.array.session import ArraySession

__all__ = ["ArrayBackend", "ArraySession"]
