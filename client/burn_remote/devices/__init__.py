"""Devices: how a program opens, shares, names and closes them, and which one it uses by default."""
