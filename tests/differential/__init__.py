"""A differential fuzzer: random programs of burn_remote against a NumPy reference."""
