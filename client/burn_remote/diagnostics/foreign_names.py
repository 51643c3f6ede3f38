"""Names of other libraries' functions, methods, arguments and devices, and our equivalents.

Each function has one name here, the array API's where the standard has one. An error message for
another library's name gives ours, and one for a misspelled name gives the most similar name.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final, NoReturn

import numpy as np

from burn_remote_protocol.dtypes import DType

__all__ = [
    "DEVICES",
    "DEVICE_ATTRIBUTES",
    "DISTRIBUTED",
    "FUNCTIONS",
    "GATHERED",
    "GROUP_ATTRIBUTES",
    "KEYWORDS",
    "METHODS",
    "NAMESPACES",
    "OPTIM",
    "POSITIONAL",
    "RANDOM",
    "RENAMED_KEYWORDS",
    "TREE",
    "attribute_advice",
    "device_advice",
    "device_attribute_advice",
    "group_attribute_advice",
    "missing_from",
    "numpy_equivalent",
    "similar_name",
]

_IMMUTABLE: Final = "tensors are immutable; use the tensor itself"
_RESULT: Final = "x = the result; functions return new tensors"
_NUMPY: Final = "numpy's function on x.numpy()"
_NUMPY_PAIR: Final = "numpy's function on x.numpy() and y.numpy()"
_LAYOUT: Final = "no equivalent; the memory layout of a device is not exposed"
_REDUCTION: Final = "reduction='mean', 'sum' or 'none', where the function has it"
_STATIC: Final = "not needed; a number that decides something makes another graph by itself"
_MATMUL: Final = "burn_remote.matmul(x, y)"
_FILES: Final = "burn_remote.save(path, tree), burn_remote.load(path)"

_CONNECT: Final = "burn_remote.RemoteDevice('ws://host:3000'), burn_remote.device('ws://host:3000')"

_ONE_TASK: Final = "not needed; a step is one task, whatever the number of parameters"
_JACOBIAN: Final = (
    "burn_remote.vjp(f, x) for one row at a time, burn_remote.jvp(f, (x,), (v,)) for one column"
)
_MODULES: Final = (
    "a function of nested containers of weights; burn_remote.functional has the layers, "
    "burn_remote.init the initial weights (docs/training.md)"
)
_NANS: Final = "x.isnan().any() of the loss and the gradients"
_PRECISION: Final = "x.astype(burn_remote.float16)"
_UPDATE: Final = (
    "optimizer.update(params, grads, state), which returns the new parameters and state"
)
_NO_OPTIMIZER: Final = "burn_remote.optim.Adam, AdamW, RMSprop, Adagrad or SGD"
_RECURRENT: Final = "a loop over the steps, for example inside burn_remote.compile(f)"

# Namespaces of torch.nn -> our namespace.
NAMESPACES: Final = {"functional": "burn_remote.functional", "init": "burn_remote.init"}

_SHAPES: Final = "f(x).shape and f(x).dtype, which are known without waiting for the device"
_SEVERAL: Final = (
    "burn_remote.DataParallel, for training; burn_remote.distributed.Group, for collectives"
)
_FLOAT64: Final = "dtype=burn_remote.float64 in each call; arrays keep their dtype"
_DEVICES: Final = "burn_remote.RemoteDevice(address) for each device that the program uses"
_PROCESS: Final = (
    "not needed; a program issues the operations itself, and the server runs them in order"
)

_ELEMENTS: Final = "numpy.set_printoptions, which formats the elements that are shown"

# Functions and attributes of modules: foreign name -> what to write instead.
FUNCTIONS: Final = {
    "append": "burn_remote.concat([x, y])",
    "apply_along_axis": "the function itself with axis=; functions accept any number of other axes",
    "around": "burn_remote.round(x, decimals)",
    "atleast_1d": "x.reshape(1) of a 0-d tensor",
    "atleast_2d": "x.reshape(1, -1) of a vector",
    "cbrt": "burn_remote.sign(x) * burn_remote.abs(x) ** (1 / 3)",
    "cond": "s[..., 0] / s[..., -1] with s = burn_remote.linalg.svdvals(x)",
    "correlate": (
        "burn_remote.functional.conv1d(x[None, None], y[None, None], padding=0)[0, 0] for "
        "numpy's mode='valid'"
    ),
    "deg2rad": "x * (burn_remote.pi / 180)",
    "degrees": "x * (180 / burn_remote.pi)",
    "delete": "x[mask] with a mask of the elements to keep",
    "float_power": "x.astype('float64') ** y",
    "fmod": "x - burn_remote.trunc(x / y) * y",
    "geomspace": "burn_remote.exp(burn_remote.linspace(math.log(start), math.log(stop), num))",
    "gradient": "(x[2:] - x[:-2]) / 2, and burn_remote.diff(x) at the ends",
    "heaviside": "burn_remote.where(x == 0, value, burn_remote.astype(x > 0, x.dtype))",
    "insert": "burn_remote.concat([x[:place], values, x[place:]])",
    "multi_dot": "x @ y @ z, with the smaller products in parentheses",
    "nanmedian": _NUMPY,
    "ndim": "x.ndim",
    "rad2deg": "x * (180 / burn_remote.pi)",
    "radians": "x * (burn_remote.pi / 180)",
    "rollaxis": "burn_remote.moveaxis(x, source, destination)",
    "shape": "x.shape",
    "sinc": "burn_remote.where(x == 0, 1, burn_remote.sin(y) / y) with y = burn_remote.pi * x",
    "size": "x.size",
    "trapezoid": "((y[1:] + y[:-1]) / 2).sum() * dx",
    "tri": "burn_remote.tril(burn_remote.ones((rows, columns)))",
    "vander": "x[:, None] ** burn_remote.arange(count - 1, -1, -1)",
    "vdot": "burn_remote.vecdot(x.flatten(), y.flatten())",
    **{
        f"{kind}Tensor": f"burn_remote.tensor(data, dtype=burn_remote.{dtype})"
        for kind, dtype in (
            ("Bool", "bool"),
            ("Byte", "uint8"),
            ("Double", "float64"),
            ("Float", "float32"),
            ("Half", "float16"),
            ("Int", "int32"),
            ("Long", "int64"),
            ("Short", "int16"),
        )
    },
    "Adadelta": _NO_OPTIMIZER,
    "DistributedDataParallel": "burn_remote.DataParallel",
    "Adafactor": _NO_OPTIMIZER,
    "Adamax": _NO_OPTIMIZER,
    "BCELoss": "burn_remote.functional.binary_cross_entropy(x, target)",
    "BCEWithLogitsLoss": "burn_remote.functional.binary_cross_entropy_with_logits(x, target)",
    "BatchNorm1d": _MODULES,
    "BatchNorm2d": _MODULES,
    "Conv1d": "burn_remote.functional.conv1d(x, weight)",
    "Conv2d": "burn_remote.functional.conv2d(x, weight)",
    "CrossEntropyLoss": "burn_remote.functional.cross_entropy(x, labels)",
    "Function": "burn_remote.custom_vjp(forward, backward)",
    "DataLoader": (
        "a loop over slices of arrays, or PyTorch's DataLoader and burn_remote.tensor(batch)"
    ),
    "GRU": _RECURRENT,
    "GRUCell": _RECURRENT,
    "Generator": "device.seed(number)",
    "GradScaler": _PRECISION,
    "LBFGS": (
        "burn_remote.optim.Adam or SGD; LBFGS waits for the loss several times in each step, which "
        "costs as many round trips"
    ),
    "LSTM": _RECURRENT,
    "LSTMCell": _RECURRENT,
    "RNN": _RECURRENT,
    "MSELoss": "burn_remote.functional.mse_loss(x, target)",
    "Module": _MODULES,
    "ModuleList": _MODULES,
    "Muon": _NO_OPTIMIZER,
    "NAdam": _NO_OPTIMIZER,
    "PRNGKey": "device.seed(number)",
    "average": "x.mean(axis=…), or (x * w).sum() / w.sum() with weights",
    "convolve": (
        "burn_remote.functional.conv1d(x[None, None], y.flip()[None, None], "
        "padding=y.size - 1)[0, 0]"
    ),
    "default_rng": "device.seed(number), and the functions of burn_remote.random",
    "inner": "burn_remote.vecdot(x, y)",
    "nan_to_num": "burn_remote.where(burn_remote.isnan(x), 0, x)",
    "norm": (
        "burn_remote.linalg.norm(x); or burn_remote.vector_norm(x), "
        "burn_remote.linalg.matrix_norm(x)"
    ),
    "set_default_dtype": _FLOAT64,
    "Parameter": "x.requires_grad_()",
    "RAdam": _NO_OPTIMIZER,
    "ReduceLROnPlateau": (
        "group['lr'] *= 0.1 for each group of optimizer.param_groups, after reading the loss"
    ),
    "Rprop": _NO_OPTIMIZER,
    "Sequential": _MODULES,
    "SparseAdam": _NO_OPTIMIZER,
    "Variable": "x.requires_grad_()",
    "absolute": "burn_remote.abs(x)",
    "adam": "burn_remote.optim.Adam(lr=rate)",
    "adamw": "burn_remote.optim.AdamW(lr=rate)",
    "amp": _PRECISION,
    "apply_updates": _UPDATE,
    "arccos": "burn_remote.acos(x)",
    "arcsin": "burn_remote.asin(x)",
    "arctan": "burn_remote.atan(x)",
    "arctan2": "burn_remote.atan2(x, y)",
    "array": "burn_remote.tensor(data)",
    "as_tensor": "burn_remote.tensor(data)",
    "autocast": _PRECISION,
    "bmm": _MATMUL,
    "choice": "burn_remote.random.choice(x, shape, p=p)",
    "clip_by_global_norm": "burn_remote.optim.clip_by_norm(grads, max_norm)",
    "clip_grad_norm_": "burn_remote.optim.clip_grad_norm_(params, max_norm)",
    "clip_grad_value_": "burn_remote.optim.clip_grad_value_(params, clip_value)",
    "concatenate": "burn_remote.concat([x, y])",
    "Client": _CONNECT,
    "Session": _CONNECT,
    "close": "device.close()",
    "connect": _CONNECT,
    "open": _CONNECT,
    "cross_entropy": "burn_remote.functional.cross_entropy(x, labels)",
    "cuda": "burn_remote.RemoteDevice(address)",
    "custom_gradient": "burn_remote.custom_vjp(forward, backward)",
    "custom_jvp": "burn_remote.custom_vjp(forward, backward)",
    "detect_anomaly": _NANS,
    "digitize": "burn_remote.searchsorted(bins, x, side='right')",
    "dot": _MATMUL,
    "device_get": "x.numpy(), or burn_remote.read([x, y])",
    "device_put": "burn_remote.tensor(data, device=device), x.to(device)",
    "double": "burn_remote.float64",
    "dropout": "burn_remote.functional.dropout(x)",
    "embedding": "burn_remote.functional.embedding(indices, weight)",
    "fft2": "burn_remote.fft.fftn(x, axes=(-2, -1))",
    "flatnonzero": "burn_remote.nonzero(x.flatten())[0]",
    "float": "burn_remote.float32",
    "from_numpy": "burn_remote.tensor(array)",
    "get": "x.numpy()",
    "get_default_device": "burn_remote.default_device()",
    "gelu": "burn_remote.functional.gelu(x)",
    "glorot_normal": "burn_remote.init.xavier_normal(shape)",
    "glorot_uniform": "burn_remote.init.xavier_uniform(shape)",
    "half": "burn_remote.float16",
    "he_normal": "burn_remote.init.kaiming_normal(shape)",
    "he_uniform": "burn_remote.init.kaiming_uniform(shape)",
    "hessian": _JACOBIAN,
    "hvp": "burn_remote.jvp(burn_remote.grad(f), (x,), (v,))[1]",
    "identity": "burn_remote.eye(count)",
    "ifft2": "burn_remote.fft.ifftn(x, axes=(-2, -1))",
    "inference_mode": "burn_remote.no_grad()",
    "int": "burn_remote.int32",
    "invert": "burn_remote.bitwise_invert(x)",
    "is_grad_enabled": "x.requires_grad of a result",
    "jacfwd": _JACOBIAN,
    "jacobian": _JACOBIAN,
    "jacrev": _JACOBIAN,
    "jit": "burn_remote.compile(f)",
    "key": "device.seed(number)",
    "lax": (
        "burn_remote itself, with the names of the array API; Python's loops, which "
        "burn_remote.compile unrolls, and burn_remote.where take the place of scan, fori_loop and "
        "cond"
    ),
    "layer_norm": "burn_remote.functional.layer_norm(x, shape)",
    "linear": "burn_remote.functional.linear(x, weight)",
    "load_file": _FILES,
    "logspace": "10 ** burn_remote.linspace(start, stop, num)",
    "logsumexp": "m + (x - m).exp().sum(axis=…).log() with m = x.max(axis=…, keepdims=True)",
    "remat": "burn_remote.checkpoint(f)",
    "safe_open": _FILES,
    "save_file": _FILES,
    "long": "burn_remote.int64",
    "manual_seed": "device.seed(number)",
    "mod": "burn_remote.remainder(x, y)",
    "nn": "burn_remote.functional, with the names of torch.nn.functional",
    "numpy": "import numpy, or x.numpy() for a tensor's elements",
    "one_hot": "burn_remote.functional.one_hot(labels, num_classes)",
    "pmap": _SEVERAL,
    "shard_map": _SEVERAL,
    "sharding": _SEVERAL,
    "Mesh": _SEVERAL,
    "NamedSharding": _SEVERAL,
    "Cluster": _DEVICES,
    "LocalCluster": _DEVICES,
    "nodes": _DEVICES,
    "local_devices": _DEVICES,
    "device_count": _DEVICES,
    "ShapeDtypeStruct": "burn_remote.TensorSpec(shape, dtype)",
    "eval_shape": _SHAPES,
    "enable_x64": _FLOAT64,
    "config": f"{_FLOAT64}; burn_remote.set_default_device(device)",
    "default_backend": "burn_remote.default_device()",
    "disable_jit": "the function without burn_remote.compile",
    "fold_in": "not needed; each call draws new numbers, and device.seed(number) repeats them",
    "io_callback": "a call outside of the compiled function, with the tensors that it returns",
    "pure_callback": "a call outside of the compiled function, with the tensors that it returns",
    "categorical": "burn_remote.random.choice(count, shape, p=p)",
    "truncated_normal": "burn_remote.init.trunc_normal(shape)",
    "pmean": "group.all_reduce(tensors, 'mean') of a burn_remote.distributed.Group",
    "power": "burn_remote.pow(x, y)",
    "promote_types": "burn_remote.result_type(x, y)",
    "psum": "group.all_reduce(tensors) of a burn_remote.distributed.Group",
    "put": "burn_remote.tensor(data, device=device)",
    "rand": "burn_remote.random.uniform(shape)",
    "randint": "burn_remote.random.integers(low, high, shape)",
    "randn": "burn_remote.random.normal(shape)",
    "randperm": "burn_remote.random.permutation(count)",
    "relu": "burn_remote.functional.relu(x)",
    "remote": (
        "burn_remote.RemoteDevice(address); functions run in this process, and their operations on "
        "the server"
    ),
    "rfft2": "burn_remote.fft.rfftn(x, axes=(-2, -1))",
    "seed": "device.seed(number)",
    "set_detect_anomaly": _NANS,
    "set_grad_enabled": "burn_remote.no_grad() or burn_remote.enable_grad()",
    "sgd": "burn_remote.optim.SGD(lr=rate)",
    "shuffle": "x.take(burn_remote.random.permutation(count), axis=0)",
    "sigmoid": "burn_remote.functional.sigmoid(x)",
    "shutdown": "device.close()",
    "softmax": "burn_remote.functional.softmax(x)",
    "stop_gradient": "x.detach()",
    "swish": "burn_remote.functional.silu(x)",
    "sync": "device.sync()",
    "synchronize": "device.sync()",
    "torch": "import burn_remote.torch",
    "tree_util": "burn_remote.tree",
    "tree_leaves": "burn_remote.tree.leaves(tree)",
    "tree_map": "burn_remote.tree.map(function, tree)",
    "kaiming": "burn_remote.init.kaiming_uniform, burn_remote.init.kaiming_normal",
    "utils": "burn_remote.optim.clip_grad_norm_(params, max_norm), burn_remote.checkpoint(f)",
    "xavier": "burn_remote.init.xavier_uniform, burn_remote.init.xavier_normal",
    "vmap": "not needed; functions broadcast and accept any leading axes",
    "wait": "device.sync(), or x.numpy()",
}

_HEALTH: Final = "device.sync(), which raises an error if the server is lost"
_METRICS: Final = "the metrics of the server, http://host:port/metrics"

# Attributes of devices: foreign name -> what to write instead.
DEVICE_ATTRIBUTES: Final = {
    "apply": _PROCESS,
    "map": _PROCESS,
    "run": _PROCESS,
    "submit": _PROCESS,
    "scatter": "burn_remote.array_split(x, count), then part.to(device) for each device",
    "gather": "burn_remote.read([x, y]), for tensors of any devices",
    "health": _HEALTH,
    "is_alive": _HEALTH,
    "ping": _HEALTH,
    "status": _HEALTH,
    "memory": _METRICS,
    "memory_allocated": _METRICS,
    "metrics": _METRICS,
    "stats": "device.traffic, for this program; for the server, " + _METRICS,
    "host": "str(device)",
    "port": "str(device)",
    "uri": "str(device)",
    "url": "str(device)",
    "arange": "burn_remote.arange(count, device=device)",
    "array": "device.tensor(data)",
    "asarray": "device.tensor(data)",
    "disconnect": "device.close()",
    "empty": "burn_remote.empty(shape, device=device)",
    "eye": "burn_remote.eye(count, device=device)",
    "flush": "device.sync()",
    "full": "burn_remote.full(shape, value, device=device)",
    "index": "str(device)",
    "linspace": "burn_remote.linspace(start, stop, num, device=device)",
    "manual_seed": "device.seed(number)",
    "name": "str(device)",
    "ones": "burn_remote.ones(shape, device=device)",
    "rand": "burn_remote.random.uniform(shape, device=device)",
    "randn": "burn_remote.random.normal(shape, device=device)",
    "random": "burn_remote.random.uniform(shape, device=device)",
    "shutdown": "device.close()",
    "synchronize": "device.sync()",
    "type": "str(device)",
    "wait": "device.sync()",
    "zeros": "burn_remote.zeros(shape, device=device)",
}

# Names of numpy.random: foreign name -> what to write instead. Devices draw uniform and normal
# numbers, from which the other distributions of burn_remote.random are computed.
RANDOM: Final = {
    "Generator": "device.seed(number), and the functions of burn_remote.random",
    **{
        name: f"burn_remote.tensor(numpy.random.default_rng(seed).{name}(…)); devices do not have "
        "this distribution"
        for name in (
            *("beta", "binomial", "chisquare", "dirichlet", "f", "gamma", "geometric"),
            *("hypergeometric", "logseries", "multinomial", "multivariate_normal"),
            *("negative_binomial", "poisson", "power", "standard_gamma", "standard_t"),
            *("triangular", "vonmises", "wald", "zipf"),
        )
    },
    "split": "not needed; each call draws new numbers, and device.seed(number) repeats them",
    "random": "burn_remote.random.uniform(shape)",
    "random_sample": "burn_remote.random.uniform(shape)",
    "standard_exponential": "burn_remote.random.exponential(shape)",
}

# Names of jax.tree and of optax that are names of other functions here: foreign name -> what to
# write instead.
TREE: Final = {
    "all": "all(burn_remote.tree.leaves(tree))",
    "flatten": "burn_remote.tree.leaves(tree)",
    "reduce": "functools.reduce(function, burn_remote.tree.leaves(tree))",
    "sum": "sum(burn_remote.tree.leaves(tree))",
}
OPTIM: Final = {
    "clip": "burn_remote.optim.clip_by_value(grads, limit)",
}

_GROUP: Final = "burn_remote.distributed.Group(devices), whose methods are the collectives"
_ALL_REDUCE: Final = "group.all_reduce([x, y]), with one tensor for each member"
_NO_PROCESSES: Final = (
    "not needed; one program issues the operations of all members, so processes have no ranks"
)
_ONE_PROGRAM: Final = "group.barrier(), or group.sync() to wait"

# Attributes of burn_remote.distributed: foreign name -> what to write instead.
DISTRIBUTED: Final = {
    "DistributedDataParallel": "burn_remote.DataParallel",
    "DistributedSampler": _NO_PROCESSES,
    "ProcessGroup": _GROUP,
    "all_gather": "group.all_gather([x, y])",
    "all_gather_into_tensor": "group.all_gather([x, y])",
    "all_reduce_coalesced": "group.all_reduce([[x, y], [z, w]]), with a list for each member",
    "all_to_all": "group.all_to_all([x, y])",
    "all_to_all_single": "group.all_to_all([x, y])",
    "barrier": _ONE_PROGRAM,
    "broadcast": "group.broadcast(x)",
    "destroy_process_group": "group.close()",
    "gather": "group.all_gather([x, y])",
    "get_backend": "group.engine",
    "get_rank": _NO_PROCESSES,
    "get_world_size": "group.size",
    "init_process_group": _GROUP,
    "irecv": "x.to(device)",
    "isend": "x.to(device)",
    "monitored_barrier": _ONE_PROGRAM,
    "new_group": _GROUP,
    "pmax": "group.all_reduce([x, y], 'max')",
    "pmean": "group.all_reduce([x, y], 'mean')",
    "pmin": "group.all_reduce([x, y], 'min')",
    "ppermute": "x.to(device) for each tensor",
    "psum": _ALL_REDUCE,
    "psum_scatter": "group.reduce_scatter([x, y])",
    "recv": "x.to(device)",
    "reduce": "group.reduce([x, y])",
    "reduce_scatter": "group.reduce_scatter([x, y])",
    "reduce_scatter_tensor": "group.reduce_scatter([x, y])",
    "scatter": "x.split(count), then part.to(device) for each",
    "send": "x.to(device)",
}

# Attributes of groups: foreign name -> what to write instead.
GROUP_ATTRIBUTES: Final = {
    "allgather": "group.all_gather(tensors)",
    "allreduce": "group.all_reduce(tensors)",
    "alltoall": "group.all_to_all(tensors)",
    "gather": "group.all_gather(tensors)",
    "pmax": "group.all_reduce(tensors, 'max')",
    "pmean": "group.all_reduce(tensors, 'mean')",
    "pmin": "group.all_reduce(tensors, 'min')",
    "psum": "group.all_reduce(tensors)",
    "psum_scatter": "group.reduce_scatter(tensors)",
    "ranks": "group.devices",
    "scatter": "burn_remote.array_split(x, group.size), then part.to(device) for each device",
    "send": "x.to(device)",
    "world_size": "group.size",
}

# Methods and attributes of arrays: foreign name -> what to write instead.
METHODS: Final = {
    "fill_diagonal_": (
        "burn_remote.where(burn_remote.eye(n, dtype='bool', device=x.device), value, x)"
    ),
    "norm": "burn_remote.linalg.norm(x)",
    "abs_": "x = x.abs(), for a parameter x.data = x.abs()",
    "add": "x + y",
    "add_": "x += y",
    "allclose": "burn_remote.allclose(x, y)",
    "append": "x = burn_remote.concat([x, y])",
    "amax": "x.max(axis=…)",
    "amin": "x.min(axis=…)",
    "argwhere": "burn_remote.argwhere(x)",
    "at": "x.set(index, value), or x.scatter(axis, indices, value, update='add') to add",
    "devices": "x.device",
    "bfloat16": "x.astype(burn_remote.bfloat16)",
    "bincount": "burn_remote.bincount(x)",
    "block_until_ready": "x.device.sync()",
    "bmm": "x @ y",
    "bool": "x.astype(burn_remote.bool)",
    "byte": "x.astype(burn_remote.uint8)",
    "chunk": "x.split(count)",
    "clamp_": "x = x.clip(low, high), for a parameter x.data = x.clip(low, high)",
    "clamp_max": "x.clip(max=…)",
    "clamp_min": "x.clip(min=…)",
    "compute": "x.numpy()",
    "concat": "burn_remote.concat([x, y])",
    "concatenate": "burn_remote.concat([x, y])",
    "contiguous": _IMMUTABLE,
    "copy": "x.clone()",
    "copy_": "x = y, for a parameter x.data = y",
    "cpu": "x.numpy() to read it, x.to(device) to move it",
    "cuda": "x.to(device)",
    "cumprod": "x.cumulative_prod(axis=…)",
    "cumsum": "x.cumulative_sum(axis=…)",
    "data_ptr": _LAYOUT,
    "det": "burn_remote.linalg.det(x)",
    "detach_": "x = x.detach()",
    "diag": "burn_remote.diag(x)",
    "diagonal": "burn_remote.linalg.diagonal(x)",
    "diff": "burn_remote.diff(x)",
    "dim": "x.ndim",
    "div": "x / y",
    "div_": "x /= y",
    "divide": "x / y",
    "dot": "x @ y",
    "double": "x.astype(burn_remote.float64)",
    "element_size": "x.dtype.itemsize",
    "eq": "x == y",
    "equal": "(x == y).all()",
    "exp_": "x = x.exp(), for a parameter x.data = x.exp()",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "fill": "burn_remote.full_like(x, value)",
    "fill_": "y = burn_remote.full_like(x, value), for a parameter x.data = y",
    "flags": _LAYOUT,
    "flat": "x.flatten()",
    "float": "x.astype(burn_remote.float32)",
    "ge": "x >= y",
    "get": "x.numpy()",
    "get_device": "x.device",
    "grad_fn": "x.is_leaf and x.requires_grad",
    "gt": "x > y",
    "half": "x.astype(burn_remote.float16)",
    "histc": "burn_remote.histogram(x, bins)[0]",
    "index_select": "x.take(indices, axis=…)",
    "indices": "x.max_with_indices(axis) and similar methods return values and indices",
    "inner": "x.detach()",
    "int": "x.astype(burn_remote.int32)",
    "inverse": "burn_remote.linalg.inv(x)",
    "is_contiguous": _LAYOUT,
    "is_cuda": "x.device",
    "is_require_grad": "x.requires_grad",
    "isclose": "burn_remote.isclose(x, y)",
    "itemsize": "x.dtype.itemsize",
    "le": "x <= y",
    "lerp": "x + (y - x) * share",
    "lerp_": "x += (y - x) * share",
    "logical_not": "burn_remote.logical_not(x)",
    "logsumexp": "m + (x - m).exp().sum(axis=…).log() with m = x.max(axis=…, keepdims=True)",
    "long": "x.astype(burn_remote.int64)",
    "lt": "x < y",
    "masked_fill_": "x.mask_fill(mask, value)",
    "masked_select": "burn_remote.boolean_mask(x, mask)",
    "matmul": "x @ y",
    "maximum": "burn_remote.maximum(x, y)",
    "median": "burn_remote.median(x), which averages the two elements in the middle",
    "minimum": "burn_remote.minimum(x, y)",
    "mm": "x @ y",
    "mul": "x * y",
    "mul_": "x *= y",
    "multiply": "x * y",
    "mv": "x @ y",
    "narrow": "x[:, start:end]",
    "ndimension": "x.ndim",
    "ne": "x != y",
    "neg": "-x",
    "nelement": "x.size",
    "new_ones": "burn_remote.ones(shape, dtype=x.dtype, device=x.device)",
    "new_tensor": "burn_remote.tensor(data, dtype=x.dtype, device=x.device)",
    "new_zeros": "burn_remote.zeros(shape, dtype=x.dtype, device=x.device)",
    "nonzero": "burn_remote.nonzero(x)",
    "normal_": (
        "y = burn_remote.random.normal(x.shape, device=x.device), for a parameter x.data = y"
    ),
    "numel": "x.size",
    "outer": "burn_remote.outer(x, y)",
    "persist": "not needed; the device computes without being asked",
    "pow": "x ** y",
    "ptp": "x.max() - x.min()",
    "quantile": "burn_remote.quantile(x, q)",
    "ravel": "x.flatten()",
    "relu_": "x = x.relu()",
    "require_grad": "x.requires_grad_()",
    "reshape_as": "x.reshape(y.shape)",
    "result": "x.numpy()",
    "scatter_": "x.scatter(axis, indices, value)",
    "scatter_add_": "x.scatter(axis, indices, value, update='add')",
    "searchsorted": "burn_remote.searchsorted(x, values)",
    "select": "x[:, place]",
    "short": "x.astype(burn_remote.int16)",
    "sigmoid_": "x = x.sigmoid()",
    "sqrt_": "x = x.sqrt()",
    "stack": "burn_remote.stack([x, y])",
    "storage": _LAYOUT,
    "stride": _LAYOUT,
    "strides": _LAYOUT,
    "sub": "x - y",
    "sub_": "x -= y",
    "subtract": "x - y",
    "swapdims": "x.swapaxes(0, 1)",
    "t": "x.T",
    "to_numpy": "x.numpy()",
    "tobytes": "x.numpy().tobytes()",
    "tofile": "x.numpy().tofile(file)",
    "trace": "burn_remote.linalg.trace(x)",
    "tril": "burn_remote.tril(x)",
    "triu": "burn_remote.triu(x)",
    "true_divide": "x / y",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unbind": "list(x)",
    "uniform_": (
        "y = burn_remote.random.uniform(x.shape, device=x.device), for a parameter x.data = y"
    ),
    "unique": "burn_remote.unique_values(x)",
    "values": "x.max_with_indices(axis) and similar methods return values and indices",
    "view_as": "x.reshape(y.shape)",
    "where": "burn_remote.where(condition, x, y)",
    "zero_": (
        "y = burn_remote.zeros_like(x), for a parameter x.data = y, for a gradient w.grad = None"
    ),
    "zero_grad": "x.grad = None, or zero_grad() of the optimizer",
}

# Keyword arguments: the foreign name, our parameter, and a remark that follows it in the message. A
# row applies if the function has our parameter. Keywords without a remark mean the same, and are
# accepted.
RENAMED_KEYWORDS: Final = (
    ("a", "x", ""),
    ("a_max", "max", ""),
    ("a_min", "min", ""),
    ("axes", "axis", ""),
    ("backend", "engine", ""),
    ("axis", "axes", ""),
    ("axis", "dim", ""),
    ("ddof", "correction", ""),
    ("descending", "largest", " (with the opposite meaning)"),
    ("diagonal", "k", ""),
    ("dim", "axes", ""),
    ("dim", "axis", ""),
    ("dim0", "axis1", ""),
    ("dim1", "axis2", ""),
    ("dims", "axes", ""),
    ("dims", "axis", ""),
    ("end", "stop", ""),
    ("fill_value", "value", ""),
    ("value", "fill_value", ""),
    ("index", "indices", ""),
    ("input", "x", ""),
    ("keepdim", "keepdims", ""),
    ("keepdims", "keepdim", ""),
    ("kind", "stable", "True or stable=False"),
    ("loc", "mean", ""),
    ("m", "columns", ""),
    ("map_location", "device", ""),
    ("multiples", "repetitions", ""),
    ("newshape", "shape", ""),
    ("other", "x2", ""),
    ("pad_width", "pad", " (one tuple, with the last axis first)"),
    ("reps", "repetitions", ""),
    ("scale", "std", ""),
    ("shifts", "shift", ""),
    ("size", "shape", ""),
    ("split_size_or_sections", "sections", " (the number of parts, or the positions to split at)"),
    ("src", "value", ""),
    ("steps", "num", ""),
    ("timeout", "connect_timeout_seconds", " (the time to connect, not to compute)"),
    ("timeout_seconds", "connect_timeout_seconds", " (the time to connect, not to compute)"),
    ("uri", "address", ""),
    ("url", "address", ""),
    ("unbiased", "correction", "0 for False, correction=1 for True"),
)

_ONE_WAY: Final = "not needed; there is only one way in which a function is computed and compiled"
_TLS: Final = "tls=, an ssl.SSLContext or the path of the authority's certificate, and wss://"

# Keyword arguments without an equivalent parameter: foreign name -> what to do.
KEYWORDS: Final = {
    "precision": _ELEMENTS,
    "linewidth": _ELEMENTS,
    "suppress": _ELEMENTS,
    "edgeitems": _ELEMENTS,
    "capturable": _ONE_TASK,
    "copy": _IMMUTABLE,
    "donate_argnums": "not needed; a tensor is freed when the program drops it",
    "differentiable": "optimizer.update(params, grads, state), through which gradients pass",
    "dtype": "x.astype(dtype)",
    "dynamic": "not needed; other shapes make another graph",
    "end_dim": "x.reshape(shape)",
    "foreach": _ONE_TASK,
    "fullgraph": "not needed; a function is recorded completely, or refused",
    "fused": _ONE_TASK,
    "initial": "result + number for a sum, burn_remote.maximum(result, number) for a maximum",
    "inplace": _RESULT,
    "learning_rate": "lr=",
    "memory_format": _LAYOUT,
    "mode": _ONE_WAY,
    "non_blocking": "not needed; no call blocks",
    "only_inputs": "not needed; only inputs get gradients",
    "order": "no equivalent; elements are always in C order",
    "out": _RESULT,
    "pin_memory": "not needed; the server pins memory itself",
    "reduce": _REDUCTION,
    "requires_grad": "x.requires_grad_()",
    "size_average": _REDUCTION,
    "start_dim": "x.reshape(shape)",
    "strict": "like=weights, which also compares shapes and dtypes",
    "static_argnames": _STATIC,
    "static_argnums": _STATIC,
    "auth": "token=, or $BURN_REMOTE_TOKEN",
    "password": "token=, or $BURN_REMOTE_TOKEN",
    "host": "address='ws://host:3000'",
    "port": "address='ws://host:3000'",
    "ssl": _TLS,
    "verify": _TLS,
    "backend": _ONE_WAY,
    "inline": _ONE_WAY,
    "weights_only": "not needed; no file is unpickled",
    "where": "burn_remote.where(mask, x, 0) as the argument",
}

# Functions whose last argument by position is a tuple of integers -> its place. They accept the
# integers without a tuple: zeros(2, 3), x.flip(0, 1).
GATHERED: Final = {
    "broadcast_to": 1,
    "empty": 0,
    "expand_dims": 1,
    "flip": 1,
    "ones": 0,
    "permute_dims": 1,
    "squeeze": 1,
    "tile": 1,
    "zeros": 0,
}

# Functions called with separate arguments instead of a tuple -> the correct call.
POSITIONAL: Final = {
    "RemoteDevice.__init__": "RemoteDevice('ws://host:3000'), with token= and tls= by keyword",
    "broadcast_to": "x.broadcast_to((2, 3))",
    "checkpoint": "checkpoint(function)(x)",
    "concat": "concat([x, y])",
    "empty": "empty((2, 3), dtype=…)",
    "normal": "normal((2, 3), mean=0.0, std=1.0)",
    "uniform": "uniform((2, 3), low=0.0, high=1.0)",
    "expand_dims": "x.expand_dims((0, 1))",
    "flip": "x.flip((0, 1))",
    "read": "read([x, y])",
    "ones": "ones((2, 3), dtype=…)",
    "permute_dims": "x.permute_dims((1, 0))",
    "repeat": "x.tile((2, 1)) to repeat the whole tensor, x.repeat(2, axis=1) for each element",
    "roll": "x.roll((1, 2), axis=(0, 1))",
    "squeeze": "x.squeeze((0, 1))",
    "stack": "stack([x, y])",
    "tile": "x.tile((2, 2))",
    "zeros": "zeros((2, 3), dtype=…)",
}

# Device kinds of PyTorch and JAX -> our equivalent.
DEVICES: Final = {
    "cpu": "'local'",
    "cuda": "'ws://host:3000', for a server with a GPU",
    "gpu": "'ws://host:3000', for a server with a GPU",
    "mps": "'local'",
}


# Names of dtypes, which are no devices either.
_DTYPES: Final = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    }
)

# How similar a name must be to be suggested, as a ratio of difflib: 0.6, its default, suggests
# "mean" for "name".
SIMILARITY: Final = 0.75


def attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a tensor of class ``owner``, or ``""``."""
    return _advice(name, dir(owner), METHODS)


def device_attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a device of class ``owner``, or ``""``."""
    return _advice(name, dir(owner), DEVICE_ATTRIBUTES)


def group_attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a group of class ``owner``, or ``""``."""
    return _advice(name, dir(owner), GROUP_ATTRIBUTES)


def numpy_equivalent(name: str) -> str | None:
    """Return the function of burn_remote that replaces a NumPy function, or ``None``."""
    package = sys.modules[__name__.partition(".")[0]]
    if name in package.__all__:
        return f"burn_remote.{name}(…)"
    instead = FUNCTIONS.get(name) or METHODS.get(name, "")
    return instead if instead.startswith(("burn_remote.", "x.")) else None


def similar_name(name: str, known: Collection[str]) -> str | None:
    """Return the most similar of the known names, or ``None`` if none is similar."""
    if name.startswith("_"):  # libraries look for protocols such as __array_interface__
        return None
    public = [one for one in known if not one.startswith("_")]
    found = difflib.get_close_matches(name, public, n=1, cutoff=SIMILARITY)
    return found[0] if found else None


def device_advice(device: object) -> str:
    """Return the advice for a value passed as a device: ``"; write …"``, or ``""``."""
    if _names_dtype(device):
        return "; x.astype(dtype) converts"
    if hasattr(device, "handle"):
        return "; x.to(y.device) moves x to the device of y"
    if not isinstance(device, str):
        return ""
    instead = DEVICES.get(device.partition(":")[0])
    return "" if instead is None else f"; write {instead}"


def _names_dtype(value: object) -> bool:
    """Return whether a value passed as a device is a dtype, or the name or class of one."""
    if isinstance(value, type):
        return issubclass(value, np.generic | int | float | complex)
    return isinstance(value, DType | np.dtype) or (isinstance(value, str) and value in _DTYPES)


def missing_from(
    module: str, own_names: Mapping[str, str] | None = None
) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which raises ``AttributeError`` with advice.

    ``own_names`` has foreign names of this module, which take precedence over the common tables.
    """

    def missing(name: str) -> NoReturn:
        functions = {**FUNCTIONS, **NAMESPACES, **(own_names or {})}
        found = functions.get(name) or _elsewhere(name, module) or METHODS.get(name)
        if found is None:
            text = _advice(name, _public_names(module), functions)
        else:
            text = f"; in burn_remote: {found}"
        raise AttributeError(f"module {module!r} has no attribute {name!r}{text}", name=name)

    return missing


# Modules of the package that are searched, in this order, for a name that another one lacks.
_SEARCHED: Final = tuple(
    "burn_remote" + suffix
    for suffix in (
        *("", ".functional", ".linalg", ".fft", ".random", ".optim", ".init"),
        *(".distributed", ".tree", ".autograd"),
    )
)


def _elsewhere(name: str, module: str) -> str | None:
    """Return the full name of what another module of the package has under a name."""
    places = (place for place in _SEARCHED if place != module)
    return next((f"{place}.{name}" for place in places if name in _public_names(place)), None)


def _public_names(module: str) -> Collection[str]:
    """Return the public names of a module; those of one that was not imported yet are unknown."""
    return vars(sys.modules[module]).get("__all__", ()) if module in sys.modules else ()


def _advice(name: str, ours: Collection[str], foreign: Mapping[str, str]) -> str:
    """Return our equivalent of a foreign name, or a similar name: ``"; …"``, else ``""``."""
    if name in foreign:
        return f"; in burn_remote: {foreign[name]}"
    similar = similar_name(name, ours) or similar_name(name, foreign)
    if similar is None:
        return ""
    instead = f" In burn_remote: {foreign[similar]}" if similar not in ours else ""
    return f"; did you mean {similar!r}?{instead}"
