"""Transfers of tensors between servers: the fetching and the sending side."""
