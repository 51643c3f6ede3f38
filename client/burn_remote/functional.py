"""Which functions do networks consist of? Those of ``torch.nn.functional``, under their names."""

from burn_remote.activations import relu

__all__ = ["relu"]
