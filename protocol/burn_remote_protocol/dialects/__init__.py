"""How messages become bytes: one module per dialect, and nothing else knows bytes."""
