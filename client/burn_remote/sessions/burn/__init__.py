"""Sessions in Burn 0.21's dialect."""
