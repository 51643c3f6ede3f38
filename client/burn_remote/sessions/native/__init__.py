"""Sessions in the native dialect."""
