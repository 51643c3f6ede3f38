"""Sessions in the dialects of Burn 0.21 and 0.22."""
