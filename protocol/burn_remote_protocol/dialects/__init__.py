"""Encoding and decoding of messages: one module per dialect. No other package handles bytes."""
