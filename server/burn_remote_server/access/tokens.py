"""Tokens that open a session, and the limits of each: reading them from files and variables.

A file of lines has ``name token`` in each, ``#`` begins a comment. A file whose name ends with
``.toml`` has ``name = "token"``, or a table of a token and limits that replace the server's.
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

# The settings that a token may replace.
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

# Sixteen random letters and digits are 95 bits, too many to guess.
MIN_CHARACTERS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class InvalidTokens(UsageError):
    """The tokens cannot be used; the text says where and why, and has none of them."""

    code = "invalid_tokens"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that opens sessions, who has it, and the settings that it replaces."""

    name: str
    secret: str = field(repr=False)
    limits: Mapping[str, Any] = field(default_factory=dict)


def read_tokens(settings: Settings) -> tuple[Token, ...]:
    """Return the tokens of the file and the variable. Raises ``InvalidTokens``."""
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
    """Return a token that is long enough and can be sent. Raises ``InvalidTokens``."""
    if not isinstance(secret, str) or not TOKEN_CHARACTERS.fullmatch(secret):
        raise InvalidTokens(f"{where}: a token has letters, digits and ._~+/-= only")
    if not MIN_CHARACTERS <= len(secret) <= MAX_TOKEN_CHARACTERS:
        raise InvalidTokens(
            f"{where}: a token has from {MIN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters, "
            f"this one has {len(secret)}; "
            'python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one'
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
        raise InvalidTokens(f"{path} has no tokens")
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
        raise InvalidTokens(f"{path} is not TOML: {error}") from error
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
            raise InvalidTokens(f"{where}: expected name:token, with commas between several")
        tokens.append(_token(f"{name} in {where}", name, secret, {}))
    return tokens


def _token(where: str, name: str, secret: object, limits: Mapping[str, Any]) -> Token:
    if not _NAME.fullmatch(name):
        raise InvalidTokens(f"{where}: a name has up to 64 letters, digits and ._- only")
    unknown = limits.keys() - LIMITS
    if unknown:
        raise InvalidTokens(
            f"{where}: a token has no {min(unknown)}; it may have {', '.join(sorted(LIMITS))}"
        )
    try:
        read = Settings(**limits)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidTokens(f"{where}: {first['loc'][0]}: {first['msg']}") from error
    values = {setting: getattr(read, setting) for setting in limits}
    return Token(name, checked_secret(where, secret), values)
