"""The settings of a server: their names, defaults, sources and units."""
