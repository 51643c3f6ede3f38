"""What is a function, of a module or a device, called here that others call otherwise?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from burn_remote.tensors.other_names import advice

__all__ = ["FUNCTIONS", "OF_DEVICES", "device_attribute_advice", "missing_from"]

_GRADIENTS: Final = "gradients are computed by burn_remote.gradients"
_MATMUL: Final = "burn_remote.matmul(x, y)"
_FILES: Final = "numpy.save(file, x.numpy()), burn_remote.tensor(numpy.load(file))"
_COMPARED: Final = "numpy's function, of x.numpy() and y.numpy()"

# The name that was typed, of whichever module -> what to write instead.
FUNCTIONS: Final = {
    "absolute": "burn_remote.abs(x)",
    "allclose": _COMPARED,
    "arccos": "burn_remote.acos(x)",
    "arcsin": "burn_remote.asin(x)",
    "arctan": "burn_remote.atan(x)",
    "arctan2": "burn_remote.atan2(x, y)",
    "array": "burn_remote.tensor(data)",
    "array_equal": _COMPARED,
    "as_tensor": "burn_remote.tensor(data)",
    "bmm": _MATMUL,
    "cat": "burn_remote.concat([x, y])",
    "choice": "burn_remote.random.integers(0, count, shape), for places",
    "concatenate": "burn_remote.concat([x, y])",
    "cross_entropy": "burn_remote.functional.cross_entropy(x, labels)",
    "cuda": "burn_remote.RemoteDevice(address)",
    "dot": _MATMUL,
    "double": "burn_remote.float64",
    "dropout": "burn_remote.functional.dropout(x)",
    "einsum": "burn_remote.tensordot(x, y), burn_remote.matmul(x, y)",
    "embedding": "burn_remote.functional.embedding(places, weight)",
    "fft": "burn_remote.functional.rfft(x)",
    "float": "burn_remote.float32",
    "from_numpy": "burn_remote.tensor(array)",
    "gelu": "burn_remote.functional.gelu(x)",
    "half": "burn_remote.float16",
    "hstack": "burn_remote.concat([x, y], axis=1), of one axis: burn_remote.concat([x, y])",
    "identity": "burn_remote.eye(count)",
    "int": "burn_remote.int32",
    "invert": "burn_remote.bitwise_invert(x)",
    "isclose": _COMPARED,
    "jit": "nothing: operations are sent in batches as they are called",
    "layer_norm": "burn_remote.functional.layer_norm(x, shape)",
    "linear": "burn_remote.functional.linear(x, weight)",
    "load": _FILES,
    "long": "burn_remote.int64",
    "manual_seed": "device.seed(number)",
    "mod": "burn_remote.remainder(x, y)",
    "newaxis": "None",
    "nn": "burn_remote.functional, with the names of torch.nn.functional",
    "no_grad": _GRADIENTS,
    "norm": "burn_remote.vector_norm(x)",
    "numpy": "import numpy, or x.numpy() for a tensor's elements",
    "one_hot": "burn_remote.functional.one_hot(labels, num_classes)",
    "optim": "parameter - rate * gradient; gradients are computed by burn_remote.gradients",
    "permute": "burn_remote.permute_dims(x, axes)",
    "power": "burn_remote.pow(x, y)",
    "rand": "burn_remote.random.uniform(shape)",
    "randint": "burn_remote.random.integers(low, high, shape)",
    "randn": "burn_remote.random.normal(shape)",
    "randperm": "burn_remote.random.permutation(count)",
    "relu": "burn_remote.functional.relu(x)",
    "save": _FILES,
    "seed": "device.seed(number)",
    "set_default_device": "device=… at each tensor, or $BURN_REMOTE_ADDRESS",
    "shuffle": "x.take(burn_remote.random.permutation(count), axis=0)",
    "sigmoid": "burn_remote.functional.sigmoid(x)",
    "softmax": "burn_remote.functional.softmax(x)",
    "unsqueeze": "burn_remote.expand_dims(x, axis)",
    "vmap": "functions broadcast, and take any axes before those that they need",
    "vstack": "burn_remote.concat([x, y], axis=0), of one axis: burn_remote.stack([x, y])",
}

# The name that was typed of a device -> what to write instead.
OF_DEVICES: Final = {
    "arange": "burn_remote.arange(count, device=device)",
    "array": "device.tensor(data)",
    "asarray": "device.tensor(data)",
    "empty": "burn_remote.empty(shape, device=device)",
    "eye": "burn_remote.eye(count, device=device)",
    "full": "burn_remote.full(shape, value, device=device)",
    "index": "str(device)",
    "linspace": "burn_remote.linspace(start, stop, num, device=device)",
    "manual_seed": "device.seed(number)",
    "name": "str(device)",
    "ones": "burn_remote.ones(shape, device=device)",
    "rand": "burn_remote.random.uniform(shape, device=device)",
    "randn": "burn_remote.random.normal(shape, device=device)",
    "random": "burn_remote.random.uniform(shape, device=device)",
    "synchronize": "device.sync()",
    "type": "str(device)",
    "zeros": "burn_remote.zeros(shape, device=device)",
}


def device_attribute_advice(name: str) -> str:
    """Return how the error of a device's missing attribute goes on."""
    instead = OF_DEVICES.get(name)
    return f"; here: {instead}" if instead else ""


def missing_from(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``: it knows what to write for some names, and has none."""

    def missing(name: str) -> NoReturn:
        instead = FUNCTIONS.get(name)
        text = f"; here: {instead}" if instead else advice(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{text}", name=name)

    return missing
