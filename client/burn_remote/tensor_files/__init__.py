"""Files of named tensors: reading them to a device, and writing them."""
