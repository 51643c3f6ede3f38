"""The ``Tensor`` class and the functions on tensors: the array API and Burn's additions to it."""
