"""Tables of names of other libraries, and of what a program writes here instead.

Each function has one name here, the array API's where the standard has one. ``advice`` looks the
names up for error messages.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AMBIGUOUS",
    "AMBIGUOUS_KEYWORDS",
    "CLARIFYING_KEYWORDS",
    "DEVICES",
    "DEVICE_ATTRIBUTES",
    "DISTRIBUTED",
    "FUNCTIONS",
    "GATHERED",
    "GROUP_ATTRIBUTES",
    "JAX_FUNCTIONS",
    "KEYWORDS",
    "METHODS",
    "NAMESPACES",
    "NUMPY_FUNCTIONS",
    "OPTIM",
    "OTHER_FUNCTIONS",
    "POSITIONAL",
    "PYTORCH_FUNCTIONS",
    "RANDOM",
    "RENAMED_KEYWORDS",
    "TREE",
]

# Advice that several names share.
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
_FACTOR: Final = (
    "burn_remote.optim.lr_scheduler.LambdaLR(optimizer, factor), where factor(count) multiplies "
    "the rate after count steps"
)
_MOMENTS: Final = "burn_remote.mean(x), and var(x, correction=1) or std(x, correction=1)"
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

# Functions and attributes of modules: foreign name -> what to write instead, by library.

# Names of NumPy, some of which are PyTorch's too.
NUMPY_FUNCTIONS: Final = {
    "absolute": "burn_remote.abs(x)",
    "append": "burn_remote.concat([x, y])",
    "apply_along_axis": "the function itself with axis=; functions accept any number of other axes",
    "arccos": "burn_remote.acos(x)",
    "arcsin": "burn_remote.asin(x)",
    "arctan": "burn_remote.atan(x)",
    "arctan2": "burn_remote.atan2(x, y)",
    "argpartition": "burn_remote.argsort(x), or x.argtopk(count) for the largest",
    "around": "burn_remote.round(x, decimals)",
    "array": "burn_remote.tensor(data)",
    "array2string": "numpy.array2string(x.numpy())",
    "atleast_1d": "x.reshape(1) of a 0-d tensor",
    "atleast_2d": "x.reshape(1, -1) of a vector",
    "average": "x.mean(axis=…), or (x * w).sum() / w.sum() with weights",
    "bartlett": "burn_remote.tensor(numpy.bartlett(count))",
    "blackman": "burn_remote.tensor(numpy.blackman(count))",
    "cbrt": "burn_remote.sign(x) * burn_remote.abs(x) ** (1 / 3)",
    "choice": "burn_remote.random.choice(x, shape, p=p)",
    "concatenate": "burn_remote.concat([x, y])",
    "cond": "s[..., 0] / s[..., -1] with s = burn_remote.linalg.svdvals(x)",
    "convolve": (
        "burn_remote.functional.conv1d(x[None, None], y.flip()[None, None], "
        "padding=y.size - 1)[0, 0]"
    ),
    "correlate": (
        "burn_remote.functional.conv1d(x[None, None], y[None, None], padding=0)[0, 0] for "
        "numpy's mode='valid'"
    ),
    "default_rng": "device.seed(number), and the functions of burn_remote.random",
    "deg2rad": "x * (burn_remote.pi / 180)",
    "degrees": "x * (180 / burn_remote.pi)",
    "delete": "x[mask] with a mask of the elements to keep",
    "digitize": "burn_remote.searchsorted(bins, x, side='right')",
    "dot": _MATMUL,
    "double": "burn_remote.float64",
    "ediff1d": "burn_remote.diff(x.flatten())",
    "fabs": "burn_remote.abs(x)",
    "fft2": "burn_remote.fft.fftn(x, axes=(-2, -1))",
    "fix": "burn_remote.trunc(x)",
    "flatnonzero": "burn_remote.nonzero(x.flatten())[0]",
    "float_power": "x.astype('float64') ** y",
    "fmax": (
        "burn_remote.where(burn_remote.isnan(x), y, "
        "burn_remote.where(burn_remote.isnan(y), x, burn_remote.maximum(x, y)))"
    ),
    "fmin": (
        "burn_remote.where(burn_remote.isnan(x), y, "
        "burn_remote.where(burn_remote.isnan(y), x, burn_remote.minimum(x, y)))"
    ),
    "fmod": "x - burn_remote.trunc(x / y) * y",
    "Generator": "device.seed(number)",
    "geomspace": "burn_remote.exp(burn_remote.linspace(math.log(start), math.log(stop), num))",
    "gradient": "(x[2:] - x[:-2]) / 2, and burn_remote.diff(x) at the ends",
    "half": "burn_remote.float16",
    "hamming": "burn_remote.tensor(numpy.hamming(count))",
    "hanning": "burn_remote.tensor(numpy.hanning(count))",
    "heaviside": "burn_remote.where(x == 0, value, burn_remote.astype(x > 0, x.dtype))",
    "identity": "burn_remote.eye(count)",
    "ifft2": "burn_remote.fft.ifftn(x, axes=(-2, -1))",
    "inner": "burn_remote.vecdot(x, y)",
    "insert": "burn_remote.concat([x[:place], values, x[place:]])",
    "invert": "burn_remote.bitwise_invert(x)",
    "iscomplexobj": "burn_remote.isdtype(x.dtype, 'complex floating')",
    "isrealobj": "not burn_remote.isdtype(x.dtype, 'complex floating')",
    "ix_": "x[numpy.ix_(rows, columns)]",
    "kaiser": "burn_remote.tensor(numpy.kaiser(count, beta))",
    "left_shift": "burn_remote.bitwise_left_shift(x, y)",
    "logspace": "10 ** burn_remote.linspace(start, stop, num)",
    "long": "burn_remote.int64",
    "mod": "burn_remote.remainder(x, y)",
    "multi_dot": "x @ y @ z, with the smaller products in parentheses",
    "nan_to_num": "burn_remote.where(burn_remote.isnan(x), 0, x)",
    "nanmedian": _NUMPY,
    "ndim": "x.ndim",
    "norm": (
        "burn_remote.linalg.norm(x); or burn_remote.vector_norm(x), "
        "burn_remote.linalg.matrix_norm(x)"
    ),
    "partition": "burn_remote.sort(x), or x.topk(count) for the largest",
    "power": "burn_remote.pow(x, y)",
    "promote_types": "burn_remote.result_type(x, y)",
    "put": "burn_remote.tensor(data, device=device)",
    "rad2deg": "x * (180 / burn_remote.pi)",
    "radians": "x * (burn_remote.pi / 180)",
    "rand": "burn_remote.random.uniform(shape)",
    "randint": "burn_remote.random.integers(low, high, shape)",
    "randn": "burn_remote.random.normal(shape)",
    "rfft2": "burn_remote.fft.rfftn(x, axes=(-2, -1))",
    "right_shift": "burn_remote.bitwise_right_shift(x, y)",
    "rint": "burn_remote.round(x)",
    "rollaxis": "burn_remote.moveaxis(x, source, destination)",
    "seed": "device.seed(number)",
    "shape": "x.shape",
    "shuffle": "x.take(burn_remote.random.permutation(count), axis=0)",
    "sinc": "burn_remote.where(x == 0, 1, burn_remote.sin(y) / y) with y = burn_remote.pi * x",
    "size": "x.size",
    "trapezoid": "((y[1:] + y[:-1]) / 2).sum() * dx",
    "tri": "burn_remote.tril(burn_remote.ones((rows, columns)))",
    "tril_indices": "x[numpy.tril_indices(count)]",
    "triu_indices": "x[numpy.triu_indices(count)]",
    "vander": "x[:, None] ** burn_remote.arange(count - 1, -1, -1)",
    "vdot": "burn_remote.vecdot(x.flatten(), y.flatten())",
}

# Names of PyTorch and safetensors.
PYTORCH_FUNCTIONS: Final = {
    "Adadelta": _NO_OPTIMIZER,
    "Adafactor": _NO_OPTIMIZER,
    "Adamax": _NO_OPTIMIZER,
    "addcdiv": "x + value * y / z",
    "addcmul": "x + value * y * z",
    "addmm": "x + y @ z",
    "addmv": "x + y @ z",
    "addr": "x + burn_remote.outer(y, z)",
    "adjoint": "x.mH",
    "aminmax": "burn_remote.min(x), burn_remote.max(x)",
    "amp": _PRECISION,
    "as_tensor": "burn_remote.tensor(data)",
    "autocast": _PRECISION,
    "baddbmm": "x + y @ z",
    "BatchNorm1d": _MODULES,
    "BatchNorm2d": _MODULES,
    "BCELoss": "burn_remote.functional.binary_cross_entropy(x, target)",
    "BCEWithLogitsLoss": "burn_remote.functional.binary_cross_entropy_with_logits(x, target)",
    "bmm": _MATMUL,
    "broadcast_tensors": "burn_remote.broadcast_arrays(x, y)",
    "bucketize": "burn_remote.searchsorted(boundaries, x)",
    "cartesian_prod": (
        "burn_remote.stack(burn_remote.meshgrid(x, y, indexing='ij'), axis=-1).reshape(-1, 2)"
    ),
    "cdist": "burn_remote.linalg.norm(x[:, None] - y[None], axis=-1)",
    "cholesky_inverse": "burn_remote.linalg.inv(x @ x.mT)",
    "cholesky_solve": "burn_remote.linalg.solve(y @ y.mT, x), where y is the factor",
    "clip_grad_norm_": "burn_remote.optim.clip_grad_norm_(params, max_norm)",
    "clip_grad_value_": "burn_remote.optim.clip_grad_value_(params, clip_value)",
    "Conv1d": "burn_remote.functional.conv1d(x, weight)",
    "Conv2d": "burn_remote.functional.conv2d(x, weight)",
    "CosineAnnealingWarmRestarts": _FACTOR,
    "cross_entropy": "burn_remote.functional.cross_entropy(x, labels)",
    "CrossEntropyLoss": "burn_remote.functional.cross_entropy(x, labels)",
    "cuda": "burn_remote.RemoteDevice(address)",
    "CyclicLR": _FACTOR,
    "DataLoader": (
        "a loop over slices of arrays, or PyTorch's DataLoader and burn_remote.tensor(batch)"
    ),
    "detect_anomaly": _NANS,
    "device_count": _DEVICES,
    "dist": "burn_remote.linalg.vector_norm(x - y)",
    "DistributedDataParallel": "burn_remote.DataParallel",
    "dropout": "burn_remote.functional.dropout(x)",
    "embedding": "burn_remote.functional.embedding(indices, weight)",
    "erfc": "1 - burn_remote.erf(x)",
    "float": "burn_remote.float32",
    "frac": "x - burn_remote.trunc(x)",
    "from_numpy": "burn_remote.tensor(array)",
    "Function": "burn_remote.custom_vjp(forward, backward)",
    "gelu": "burn_remote.functional.gelu(x)",
    "ger": "burn_remote.outer(x, y)",
    "get_default_device": "burn_remote.default_device()",
    "GradScaler": _PRECISION,
    "GRU": _RECURRENT,
    "gru_cell": _RECURRENT,
    "GRUCell": _RECURRENT,
    "hamming_window": "burn_remote.tensor(numpy.hamming(count + 1)[:-1])",
    "hann_window": "burn_remote.tensor(numpy.hanning(count + 1)[:-1])",
    "index_add": "x.update_along(axis, indices, values, update='add')",
    "index_copy": "x.update_along(axis, indices, values)",
    "inference_mode": "burn_remote.no_grad()",
    "int": "burn_remote.int32",
    "is_complex": "burn_remote.isdtype(x.dtype, 'complex floating')",
    "is_floating_point": "burn_remote.isdtype(x.dtype, 'real floating')",
    "is_grad_enabled": "x.requires_grad of a result",
    "is_tensor": "isinstance(x, burn_remote.Tensor)",
    "jacobian": _JACOBIAN,
    "layer_norm": "burn_remote.functional.layer_norm(x, shape)",
    "LBFGS": (
        "burn_remote.optim.Adam or SGD; LBFGS waits for the loss several times in each step, which "
        "costs as many round trips"
    ),
    "linear": "burn_remote.functional.linear(x, weight)",
    "load_file": _FILES,
    "logdet": "burn_remote.linalg.slogdet(x)[1]",
    "logit": "burn_remote.log(x / (1 - x))",
    "logsumexp": "m + (x - m).exp().sum(axis=…).log() with m = x.max(axis=…, keepdims=True)",
    "LSTM": _RECURRENT,
    "lstm_cell": _RECURRENT,
    "LSTMCell": _RECURRENT,
    "manual_seed": "device.seed(number)",
    "Module": _MODULES,
    "ModuleList": _MODULES,
    "movedim": "burn_remote.moveaxis(x, source, destination)",
    "MSELoss": "burn_remote.functional.mse_loss(x, target)",
    "msort": "burn_remote.sort(x, axis=0)",
    "multinomial": "burn_remote.random.choice(count, shape, p=p)",
    "Muon": _NO_OPTIMIZER,
    "NAdam": _NO_OPTIMIZER,
    "nn": "burn_remote.functional, with the names of torch.nn.functional",
    "Parameter": "x.requires_grad_()",
    "pinverse": "burn_remote.linalg.pinv(x)",
    "PolynomialLR": _FACTOR,
    "RAdam": _NO_OPTIMIZER,
    "rand_like": "burn_remote.random.uniform(x.shape, device=x.device)",
    "randint_like": "burn_remote.random.integers(low, high, x.shape, device=x.device)",
    "randn_like": "burn_remote.random.normal(x.shape, device=x.device)",
    "randperm": "burn_remote.random.permutation(count)",
    "ReduceLROnPlateau": (
        "group['lr'] *= 0.1 for each group of optimizer.param_groups, after reading the loss"
    ),
    "relu": "burn_remote.functional.relu(x)",
    "repeat_interleave": "x.repeat(count, axis=…)",
    "RNN": _RECURRENT,
    "Rprop": _NO_OPTIMIZER,
    "safe_open": _FILES,
    "save_file": _FILES,
    "scatter_reduce": "x.scatter(axis, indices, value, update='max')",
    "Sequential": _MODULES,
    "set_default_dtype": _FLOAT64,
    "set_detect_anomaly": _NANS,
    "set_grad_enabled": "burn_remote.no_grad() or burn_remote.enable_grad()",
    "sgn": "burn_remote.sign(x)",
    "sigmoid": "burn_remote.functional.sigmoid(x)",
    "softmax": "burn_remote.functional.softmax(x)",
    "solve_triangular": "burn_remote.linalg.solve(x, y)",
    "SparseAdam": _NO_OPTIMIZER,
    "std_mean": _MOMENTS,
    "synchronize": "device.sync()",
    "take_along_dim": "x.take_along_axis(indices, axis=…)",
    "tensor_split": "burn_remote.array_split(x, count)",
    "torch": "import burn_remote.torch",
    "trapz": "(x[1:] + x[:-1]).sum() / 2",
    "unflatten": "x.reshape(shape)",
    "upsample": "burn_remote.functional.interpolate(x, size)",
    "utils": "burn_remote.optim.clip_grad_norm_(params, max_norm), burn_remote.checkpoint(f)",
    "var_mean": _MOMENTS,
    "Variable": "x.requires_grad_()",
    "wait": "device.sync(), or x.numpy()",
    "xlogy": "burn_remote.where(x == 0, 0, x * burn_remote.log(y))",
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
}

# Names of JAX and optax, some of which are in torch.func too.
JAX_FUNCTIONS: Final = {
    "adam": "burn_remote.optim.Adam(lr=rate)",
    "adamw": "burn_remote.optim.AdamW(lr=rate)",
    "apply_updates": _UPDATE,
    "categorical": "burn_remote.random.choice(count, shape, p=p)",
    "clip_by_global_norm": "grads, norm = burn_remote.optim.clip_by_norm(grads, max_norm)",
    "config": f"{_FLOAT64}; burn_remote.set_default_device(device)",
    "custom_gradient": "burn_remote.custom_vjp(forward, backward)",
    "custom_jvp": "burn_remote.custom_vjp(forward, backward)",
    "default_backend": "burn_remote.default_device()",
    "device_get": "x.numpy(), or burn_remote.read([x, y])",
    "device_put": "burn_remote.tensor(data, device=device), x.to(device)",
    "disable_jit": "the function without burn_remote.compile",
    "enable_x64": _FLOAT64,
    "eval_shape": _SHAPES,
    "fold_in": "not needed; each call draws new numbers, and device.seed(number) repeats them",
    "fori_loop": _RECURRENT,
    "glorot_normal": "burn_remote.init.xavier_normal(shape)",
    "glorot_uniform": "burn_remote.init.xavier_uniform(shape)",
    "he_normal": "burn_remote.init.kaiming_normal(shape)",
    "he_uniform": "burn_remote.init.kaiming_uniform(shape)",
    "hessian": _JACOBIAN,
    "hvp": "burn_remote.jvp(burn_remote.grad(f), (x,), (v,))[1]",
    "io_callback": "a call outside of the compiled function, with the tensors that it returns",
    "jacfwd": _JACOBIAN,
    "jacrev": _JACOBIAN,
    "jit": "burn_remote.compile(f)",
    "key": "device.seed(number)",
    "lax": (
        "burn_remote itself, with the names of the array API; Python's loops, which "
        "burn_remote.compile unrolls, and burn_remote.where take the place of scan, fori_loop and "
        "cond"
    ),
    "local_devices": _DEVICES,
    "Mesh": _SEVERAL,
    "NamedSharding": _SEVERAL,
    "numpy": "import numpy, or x.numpy() for a tensor's elements",
    "one_hot": "burn_remote.functional.one_hot(labels, num_classes)",
    "pmap": _SEVERAL,
    "pmean": "group.all_reduce(tensors, 'mean') of a burn_remote.distributed.Group",
    "PRNGKey": "device.seed(number)",
    "psum": "group.all_reduce(tensors) of a burn_remote.distributed.Group",
    "pure_callback": "a call outside of the compiled function, with the tensors that it returns",
    "remat": "burn_remote.checkpoint(f)",
    "scan": _RECURRENT,
    "segment_sum": (
        "burn_remote.zeros(count, device=x.device).update_along(0, indices, x, update='add')"
    ),
    "sgd": "burn_remote.optim.SGD(lr=rate)",
    "ShapeDtypeStruct": "burn_remote.TensorSpec(shape, dtype)",
    "shard_map": _SEVERAL,
    "sharding": _SEVERAL,
    "stop_gradient": "x.detach()",
    "swish": "burn_remote.functional.silu(x)",
    "tree_leaves": "burn_remote.tree.leaves(tree)",
    "tree_map": "burn_remote.tree.map(function, tree)",
    "tree_util": "burn_remote.tree",
    "truncated_normal": "burn_remote.init.trunc_normal(shape)",
    "vmap": "not needed; functions broadcast and accept any leading axes",
}

# Names of Dask, Ray and clients of databases, and of families of functions.
OTHER_FUNCTIONS: Final = {
    "Client": _CONNECT,
    "close": "device.close()",
    "Cluster": _DEVICES,
    "connect": _CONNECT,
    "get": "x.numpy()",
    "kaiming": "burn_remote.init.kaiming_uniform, burn_remote.init.kaiming_normal",
    "LocalCluster": _DEVICES,
    "nodes": _DEVICES,
    "open": _CONNECT,
    "remote": (
        "burn_remote.RemoteDevice(address); functions run in this process, and their operations on "
        "the server"
    ),
    "Session": _CONNECT,
    "shutdown": "device.close()",
    "sync": "device.sync()",
    "xavier": "burn_remote.init.xavier_uniform, burn_remote.init.xavier_normal",
}

FUNCTIONS: Final = {
    **NUMPY_FUNCTIONS,
    **PYTORCH_FUNCTIONS,
    **JAX_FUNCTIONS,
    **OTHER_FUNCTIONS,
}

_HEALTH: Final = "device.sync(), which raises an error if the server is lost"
_METRICS: Final = "the metrics of the server, http://host:port/metrics"

# Attributes of devices: foreign name -> what to write instead.
DEVICE_ATTRIBUTES: Final = {
    "apply": _PROCESS,
    "arange": "burn_remote.arange(count, device=device)",
    "array": "device.tensor(data)",
    "asarray": "device.tensor(data)",
    "disconnect": "device.close()",
    "empty": "burn_remote.empty(shape, device=device)",
    "eye": "burn_remote.eye(count, device=device)",
    "flush": "device.sync()",
    "full": "burn_remote.full(shape, value, device=device)",
    "gather": "burn_remote.read([x, y]), for tensors of any devices",
    "health": _HEALTH,
    "host": "str(device)",
    "index": "str(device)",
    "is_alive": _HEALTH,
    "linspace": "burn_remote.linspace(start, stop, num, device=device)",
    "manual_seed": "device.seed(number)",
    "map": _PROCESS,
    "memory": _METRICS,
    "memory_allocated": _METRICS,
    "metrics": _METRICS,
    "name": "str(device)",
    "ones": "burn_remote.ones(shape, device=device)",
    "ping": _HEALTH,
    "port": "str(device)",
    "rand": "burn_remote.random.uniform(shape, device=device)",
    "randn": "burn_remote.random.normal(shape, device=device)",
    "random": "burn_remote.random.uniform(shape, device=device)",
    "run": _PROCESS,
    "scatter": "burn_remote.array_split(x, count), then part.to(device) for each device",
    "shutdown": "device.close()",
    "stats": "device.traffic, for this program; for the server, " + _METRICS,
    "status": _HEALTH,
    "submit": _PROCESS,
    "synchronize": "device.sync()",
    "type": "str(device)",
    "uri": "str(device)",
    "url": "str(device)",
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
    "all_gather": "group.all_gather([x, y])",
    "all_gather_into_tensor": "group.all_gather([x, y])",
    "all_reduce_coalesced": "group.all_reduce([[x, y], [z, w]]), with a list for each member",
    "all_to_all": "group.all_to_all([x, y])",
    "all_to_all_single": "group.all_to_all([x, y])",
    "barrier": _ONE_PROGRAM,
    "broadcast": "group.broadcast(x)",
    "destroy_process_group": "group.close()",
    "DistributedDataParallel": "burn_remote.DataParallel",
    "DistributedSampler": _NO_PROCESSES,
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
    "ProcessGroup": _GROUP,
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
    "H": "x.mH",
    "abs_": "x = x.abs(), for a parameter x.data = x.abs()",
    "add": "x + y",
    "add_": "x += y",
    "allclose": "burn_remote.allclose(x, y)",
    "amax": "x.max(axis=…)",
    "amin": "x.min(axis=…)",
    "append": "x = burn_remote.concat([x, y])",
    "argwhere": "burn_remote.argwhere(x)",
    "at": "x.set(index, value), or x.scatter(axis, indices, value, update='add') to add",
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
    "devices": "x.device",
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
    "fill_diagonal_": (
        "burn_remote.where(burn_remote.eye(n, dtype='bool', device=x.device), value, x)"
    ),
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
    "norm": "burn_remote.linalg.norm(x)",
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

# PyTorch's keywords for ``axis=`` and ``keepdims=``. A program that uses one of them probably
# expects what PyTorch's function returns. Where ours returns something else, such a call is
# refused, because it would give wrong numbers without an error: ``x.max(dim=1)[0]`` would be the
# first row's maximum.
AMBIGUOUS_KEYWORDS: Final = frozenset({"dim", "keepdim"})
_PAIR: Final = "returns values and indices in PyTorch; write axis= for the values alone"
_DIVISOR: Final = (
    "divides by n - 1 in PyTorch, and by n here; write axis= with correction=1 for PyTorch's "
    "numbers, with correction=0 for NumPy's"
)
# Function that returns something else in PyTorch -> the difference, and what to write.
AMBIGUOUS: Final = {
    "cummax": _PAIR,
    "cummin": _PAIR,
    "max": f"{_PAIR}, x.max_with_indices(axis) for both",
    "median": (
        f"{_PAIR}, where an even number of elements has the mean of the two in the middle; "
        "PyTorch takes the lower one"
    ),
    "min": f"{_PAIR}, x.min_with_indices(axis) for both",
    "sort": f"{_PAIR}, x.sort_with_indices(axis=…) for both",
    "split": (
        "takes the sizes of the parts in PyTorch; write axis= with the number of equal parts, "
        "or with the positions to split at"
    ),
    "std": _DIVISOR,
    "var": _DIVISOR,
}
# Those whose results are values and indices in PyTorch.
PAIRS: Final = frozenset(name for name, text in AMBIGUOUS.items() if text.startswith(_PAIR))
# With one of these keywords, the call of an ambiguous function has only one meaning.
CLARIFYING_KEYWORDS: Final = frozenset({"correction", "ddof"})

_ONE_WAY: Final = "not needed; there is only one way in which a function is computed and compiled"
_TLS: Final = "tls=, an ssl.SSLContext or the path of the authority's certificate, and wss://"

# Keyword arguments without an equivalent parameter: foreign name -> what to do.
KEYWORDS: Final = {
    "antialias": "functional.avg_pool2d(x, size) before the call, to make an image smaller",
    "auth": "token=, or $BURN_REMOTE_TOKEN",
    "backend": _ONE_WAY,
    "capturable": _ONE_TASK,
    "copy": _IMMUTABLE,
    "differentiable": "optimizer.update(params, grads, state), through which gradients pass",
    "donate_argnums": "not needed; a tensor is freed when the program drops it",
    "dtype": "x.astype(dtype)",
    "dynamic": "not needed; other shapes make another graph",
    "edgeitems": _ELEMENTS,
    "end_dim": "x.reshape(shape)",
    "foreach": _ONE_TASK,
    "fullgraph": "not needed; a function is recorded completely, or refused",
    "fused": _ONE_TASK,
    "host": "address='ws://host:3000'",
    "initial": "result + number for a sum, burn_remote.maximum(result, number) for a maximum",
    "inline": _ONE_WAY,
    "inplace": _RESULT,
    "learning_rate": "lr=",
    "linewidth": _ELEMENTS,
    "memory_format": _LAYOUT,
    "mode": _ONE_WAY,
    "non_blocking": "not needed; no call blocks",
    "only_inputs": "not needed; only inputs get gradients",
    "order": "no equivalent; elements are always in C order",
    "out": _RESULT,
    "padding_idx": (
        "not needed for the result; set this row of w.grad to 0 before each step of the optimizer"
    ),
    "password": "token=, or $BURN_REMOTE_TOKEN",
    "pin_memory": "not needed; the server pins memory itself",
    "port": "address='ws://host:3000'",
    "precision": _ELEMENTS,
    "reduce": _REDUCTION,
    "return_indices": "functional.max_pool2d_with_indices(x, size) and similar functions",
    "requires_grad": "x.requires_grad_()",
    "size_average": _REDUCTION,
    "ssl": _TLS,
    "start_dim": "x.reshape(shape)",
    "static_argnames": _STATIC,
    "static_argnums": _STATIC,
    "strict": "like=weights, which also compares shapes and dtypes",
    "suppress": _ELEMENTS,
    "verify": _TLS,
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
    "broadcast_to": "x.broadcast_to((2, 3))",
    "checkpoint": "checkpoint(function)(x)",
    "concat": "concat([x, y])",
    "empty": "empty((2, 3), dtype=…)",
    "expand_dims": "x.expand_dims((0, 1))",
    "flip": "x.flip((0, 1))",
    "normal": "normal((2, 3), mean=0.0, std=1.0)",
    "ones": "ones((2, 3), dtype=…)",
    "permute_dims": "x.permute_dims((1, 0))",
    "read": "read([x, y])",
    "RemoteDevice.__init__": "RemoteDevice('ws://host:3000'), with token= and tls= by keyword",
    "repeat": "x.tile((2, 1)) to repeat the whole tensor, x.repeat(2, axis=1) for each element",
    "roll": "x.roll((1, 2), axis=(0, 1))",
    "squeeze": "x.squeeze((0, 1))",
    "stack": "stack([x, y])",
    "tile": "x.tile((2, 2))",
    "uniform": "uniform((2, 3), low=0.0, high=1.0)",
    "zeros": "zeros((2, 3), dtype=…)",
}

# Device kinds of PyTorch and JAX -> our equivalent.
DEVICES: Final = {
    "cpu": "'local'",
    "cuda": "'ws://host:3000', for a server with a GPU",
    "gpu": "'ws://host:3000', for a server with a GPU",
    "mps": "'local'",
}
