"""Collectives between servers: the ring of a group's members, its links and its schedule."""
