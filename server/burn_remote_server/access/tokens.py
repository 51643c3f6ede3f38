"""Session tokens and their limits, read from a file and from an environment variable.

A text file has one ``name token`` pair per line; ``#`` begins a comment. A ``.toml`` file has
entries ``name = "token"``, or tables with a token and limits that override the server's settings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.links.addresses import MAX_TOKEN_CHARACTERS, TOKEN_CHARACTERS
from burn_remote_server.settings.server_settings import Settings

__all__ = ["LIMITS", "InvalidTokens", "Token", "read_tokens"]

# The settings that a token may override.
LIMITS: Final = frozenset(
    {
        "max_sessions",
        "max_session_bytes",
        "max_session_tensors",
        "max_session_transfers",
        "max_tensor_bytes",
        "max_operation_cost",
        "max_operation_seconds",
    }
)

# Sixteen random letters and digits carry 95 bits of entropy, too many to guess.
MIN_CHARACTERS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class InvalidTokens(UsageError):
    """Tokens that cannot be used. The message says where and why, and never contains a token."""

    code = "invalid_tokens"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that opens sessions, the name of its holder, and the settings it overrides."""

    name: str
    secret: str = field(repr=False)
    limits: Mapping[str, Any] = field(default_factory=dict)


def read_tokens(settings: Settings) -> tuple[Token, ...]:
    """Read all tokens from the file and the environment variable. Raises ``InvalidTokens``."""
    tokens: list[Token] = []
    if settings.token_file is not None:
        tokens += _read_file(settings.token_file)
    if settings.tokens is not None:
        tokens += _read_variable(settings.tokens.get_secret_value())
    names = [token.name for token in tokens]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidTokens(f"two tokens have the name {twice!r}; each needs its own")
    return tuple(tokens)


def checked_secret(where: str, secret: object) -> str:
    """Check the length and the characters of a token. Raises ``InvalidTokens``."""
    if not isinstance(secret, str) or not TOKEN_CHARACTERS.fullmatch(secret):
        raise InvalidTokens(f"{where}: a token may contain only letters, digits and ._~+/-=")
    if not MIN_CHARACTERS <= len(secret) <= MAX_TOKEN_CHARACTERS:
        raise InvalidTokens(
            f"{where}: a token must have {MIN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters, "
            f"but this one has {len(secret)}; generate one with "
            'python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return secret


def _read_file(path: Path) -> list[Token]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidTokens(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidTokens(f"{path} is not UTF-8 text") from error
    tokens = _read_toml(path, text) if path.suffix == ".toml" else _read_lines(path, text)
    if not tokens:
        raise InvalidTokens(f"{path} contains no tokens")
    return tokens


def _read_lines(path: Path, text: str) -> list[Token]:
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != 2:
            raise InvalidTokens(f"{where}: expected a name and a token")
        tokens.append(_token(where, words[0], words[1], {}))
    return tokens


def _read_toml(path: Path, text: str) -> list[Token]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidTokens(f"{path} is not valid TOML: {error}") from error
    tokens = []
    for name, entry in table.items():
        where = f"{name} in {path}"
        limits = dict(entry) if isinstance(entry, dict) else {"token": entry}
        tokens.append(_token(where, name, limits.pop("token", None), limits))
    return tokens


def _read_variable(text: str) -> list[Token]:
    entries: Iterable[str] = text.replace(",", " ").split()
    where = "BURN_REMOTE_TOKENS"
    tokens = []
    for entry in entries:
        name, colon, secret = entry.partition(":")
        if not colon:
            raise InvalidTokens(f"{where}: expected name:token entries, separated by commas")
        tokens.append(_token(f"{name} in {where}", name, secret, {}))
    return tokens


def _token(where: str, name: str, secret: object, limits: Mapping[str, Any]) -> Token:
    if not _NAME.fullmatch(name):
        raise InvalidTokens(
            f"{where}: a name must be 1 to 64 characters: letters, digits and ._- only"
        )
    unknown = limits.keys() - LIMITS
    if unknown:
        raise InvalidTokens(
            f"{where}: a token cannot set {min(unknown)!r}; it can set {', '.join(sorted(LIMITS))}"
        )
    try:
        read = Settings(**limits)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidTokens(f"{where}: {first['loc'][0]}: {first['msg']}") from error
    values = {setting: getattr(read, setting) for setting in limits}
    return Token(name, checked_secret(where, secret), values)
