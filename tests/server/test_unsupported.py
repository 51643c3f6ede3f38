"""NumPy implements every variant of the IR, except those that the table marks as impossible."""

from __future__ import annotations

from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.families.session import CUSTOM, DROP, IMPOSSIBLE, INIT
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import CustomOperations, custom_operation
from support.recorded import golden


def is_supported(signature: Signature) -> bool:
    """Whether a session finds an implementation, even if that refuses the shapes."""
    names = {f"input{place}": "any" for place, _ in enumerate(signature.input_uses)}
    outputs = [f"output{place}" for place, _ in enumerate(signature.outputs)]
    custom = custom_operation(
        "custom_op", inputs=names, outputs=outputs or ["none"], shapes=lambda *_: signature.outputs
    )
    session = NumpyBackend().open_session(CustomOperations([custom(lambda xp, *arrays: arrays)]))
    try:
        session.bind(signature)
    except Unsupported:
        return False
    except Exception:  # any: the example's shapes do not fit the operation
        return True
    return True


def test_only_variants_marked_as_impossible_are_unsupported() -> None:
    supported: dict[Row, bool] = {}
    for line in golden("OperationIr"):
        signature = decode_operation(line.tuples).signature
        row = signature.row
        # A session performs these two itself.
        answers = row in (INIT, DROP) or is_supported(signature)
        supported[row] = supported.get(row, False) or answers
    burn = {row for row in TABLE.values() if row.lifetime.includes(Vocabulary.BURN_0_21)}
    assert supported.keys() == burn
    assert supported[CUSTOM]
    unsupported = {row for row, answers in supported.items() if not answers}
    assert unsupported == set(IMPOSSIBLE)


def test_impossible_variants_give_the_reason() -> None:
    assert all(len(reason.split()) > 5 for reason in IMPOSSIBLE.values())
