"""Under which names do programs use the dtypes? Under those of the array API standard."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FLEX32,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
)

__all__ = [
    "bfloat16",
    "bool",
    "flex32",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

float64: Final = F64
float32: Final = F32
flex32: Final = FLEX32
float16: Final = F16
bfloat16: Final = BF16
int64: Final = I64
int32: Final = I32
int16: Final = I16
int8: Final = I8
uint64: Final = U64
uint32: Final = U32
uint16: Final = U16
uint8: Final = U8
bool: Final = BOOL
