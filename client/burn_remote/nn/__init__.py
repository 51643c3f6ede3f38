"""Layers and losses of neural networks; ``burn_remote.functional`` exports them."""
