"""Which operations are there, what do they make, how do they cross the wire? Burn 0.21's IR."""
