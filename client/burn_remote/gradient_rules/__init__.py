"""The gradient rules of the table of operations. Importing this package fills the table."""

from burn_remote.gradient_rules import (
    activation_rules,
    base_rules,
    complex_rules,
    convolution_rules,
    elementwise_rules,
    float_rules,
    index_update_rules,
    layer_rules,
    matrix_rules,
    numeric_rules,
    pooling_rules,
    sampling_rules,
    search_rules,
    session_rules,
)

__all__ = [
    "activation_rules",
    "base_rules",
    "complex_rules",
    "convolution_rules",
    "elementwise_rules",
    "float_rules",
    "index_update_rules",
    "layer_rules",
    "matrix_rules",
    "numeric_rules",
    "pooling_rules",
    "sampling_rules",
    "search_rules",
    "session_rules",
]
