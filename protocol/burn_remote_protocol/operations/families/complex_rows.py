"""Extension rows: complex numbers, their parts, and conversions to and from real numbers.

Burn's operations that complex numbers have too are rows of the families ``Base``, ``Numeric`` and
``Float``; ``KINDS`` in ``operations/table.py`` lists them.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import tensor_in, tensor_out
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import COMPLEX
from burn_remote_protocol.operations.shape_rules.complex_rules import (
    combined,
    into_complex,
    part,
)
from burn_remote_protocol.operations.shape_rules.elementwise_rules import same
from burn_remote_protocol.operations.shared_fields import UNARY
from burn_remote_protocol.operations.vocabularies import EXTENSION

FROM_PARTS: Final = Row(
    "Complex",
    "FromParts",
    (tensor_in("real"), tensor_in("imaginary"), tensor_out("out")),
    combined,
    estimates.elementwise(4),
    EXTENSION,
)
INTO_COMPLEX: Final = Row(
    "Complex", "IntoComplex", UNARY, into_complex, estimates.elementwise(4), EXTENSION
)
REAL: Final = Row("Complex", "Real", UNARY, part, estimates.elementwise(3), EXTENSION)
IMAGINARY: Final = Row("Complex", "Imaginary", UNARY, part, estimates.elementwise(3), EXTENSION)
ABS: Final = Row("Complex", "Abs", UNARY, part, estimates.elementwise(15), EXTENSION)
ANGLE: Final = Row("Complex", "Angle", UNARY, part, estimates.elementwise(40, 16), EXTENSION)
CONJUGATE: Final = Row(
    "Complex", "Conjugate", UNARY, same(COMPLEX), estimates.elementwise(3), EXTENSION
)
# A product with -1 would make NaN of infinite parts.
NEGATIVE: Final = Row(
    "Complex", "Negative", UNARY, same(COMPLEX), estimates.elementwise(3), EXTENSION
)

ROWS: Final = (FROM_PARTS, INTO_COMPLEX, REAL, IMAGINARY, ABS, ANGLE, CONJUGATE, NEGATIVE)
