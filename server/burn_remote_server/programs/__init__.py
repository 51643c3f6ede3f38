"""Operations that run together: graphs that a client defined, and runs fused from its stream."""
