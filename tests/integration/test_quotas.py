"""Quotas of one session and of all sessions: excess is refused by name and sessions continue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, cast

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol import session_states
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.tensors import TensorSpec
from support.servers import UNFORKED, server
from support.waiting import PATIENCE_SECONDS


@contextlib.contextmanager
def limited(*flags: str) -> Iterator[br.RemoteDevice]:
    with server(*flags) as running, br.RemoteDevice(running.address) as device:
        yield device
        # The session continues after every refusal.
        assert br.ones((2,), device=device).tolist() == [1, 1]


def test_a_result_of_petabytes_is_refused_by_its_inferred_size() -> None:
    with limited() as device:
        column, row = (
            br.ones((30_000_000, 1), device=device),
            br.ones((1, 30_000_000), device=device),
        )
        with pytest.raises(
            br.QuotaExceeded, match=r"3,600,000,000,000,000 would be held"
        ) as caught:
            (column @ row).numpy()
        assert "Matmul" in caught.value.operation
        with pytest.raises(br.QuotaExceeded):
            br.zeros((2**40,), device=device).numpy()


@pytest.mark.parametrize("mode", ["constant", "replicate", "circular"])
def test_padding_by_gigabytes_is_refused_before_any_allocation(mode: str) -> None:
    with limited("--max-session-bytes", "1GB") as device:
        padded = br.pad(br.ones((2,), device=device), (10**12, 10**12), mode=mode)
        assert padded.shape == (2 * 10**12 + 2,)
        with pytest.raises(br.QuotaExceeded, match="would be held, 1,000,000,000 are allowed"):
            padded.numpy()


def test_a_session_over_its_bytes_gets_the_quota_and_both_numbers() -> None:
    with limited("--max-session-bytes", "1000") as device:
        first = br.ones((200,), device=device)
        with pytest.raises(br.QuotaExceeded, match=r"session bytes: 1,600 .* 1,000 are allowed"):
            br.ones((200,), device=device).numpy()
        del first
        device.sync()  # the batch that this sends frees dropped tensors
        assert br.ones((200,), device=device).sum().item() == 200


def test_a_tensor_over_the_quota_is_refused_by_every_way_of_creation() -> None:
    array = np.ones(3000, np.float32)
    with limited("--max-tensor-bytes", "10000") as device:
        refused = [
            br.ones((3000,), device=device),  # computed
            br.tensor(array, device=device),  # uploaded in a message
            br.tensor(np.ones(30_000, np.float32), device=device),  # uploaded in chunks
        ]
        for tensor in refused:
            with pytest.raises(br.QuotaExceeded, match=r"tensor bytes: .* 10,000 are allowed"):
                tensor.numpy()


def test_a_session_over_its_tensors_is_refused_by_name() -> None:
    with limited("--max-session-tensors", "5") as device:
        kept = [br.ones((2,), device=device) for _ in range(4)]
        with pytest.raises(br.QuotaExceeded, match=r"session tensors: 6 .* 5 are allowed"):
            (kept[0] + 1 + 2).numpy()  # two results, and possibly a tensor for the scalar
            more = [br.ones((2,), device=device) for _ in range(3)]
            br.read(more)
        del kept


@pytest.mark.parametrize("dialect", ["native", "burn-0.21", "burn-0.22"])
def test_a_program_whose_tensors_just_fit_is_not_refused(dialect: str) -> None:
    with (
        server("--max-session-tensors", "20") as running,
        br.RemoteDevice(running.address, dialect=dialect) as device,
    ):
        x = br.ones((4,), device=device)
        kept: list[br.Tensor | None] = [x + number for number in range(17)]
        device.sync()
        for step in range(100):  # tensors whose last use was sent before
            kept[step % 17] = None
            kept[step % 17] = x + step
        for _ in range(100):  # results that nobody uses
            x + 1
        assert [float((x + step)[0]) for step in range(20)] == [1 + step for step in range(20)]
        assert [float(one[0]) for one in kept if one is not None] == [1 + n for n in _LAST]


# The last step of the test above that made each of its tensors.
_LAST: Final = [*range(85, 100), 83, 84]


def test_a_session_with_more_failed_tensors_than_it_may_have_stays_usable() -> None:
    with limited("--max-session-tensors", "5") as device:
        kept = [br.ones((2,), device=device) for _ in range(5)]
        failed = [kept[0] + number for number in range(12)]
        for tensor in failed:
            with pytest.raises(br.QuotaExceeded, match=r"raise max_session_tensors"):
                tensor.numpy()
        assert br.read(kept)[4].tolist() == [1, 1]
        del failed, tensor, kept[1:]
        with pytest.raises(br.QuotaExceeded):  # of operations whose results nobody read
            device.sync()  # sends the drops
        assert (kept[0] + 1).tolist() == [2, 2]


def test_an_operation_over_its_cost_is_refused_before_it_starts() -> None:
    with limited("--max-operation-cost", "2000000") as device:
        x = br.ones((101, 100), device=device)
        with pytest.raises(
            br.QuotaExceeded, match=r"estimated 2,040,200 ns of one core, 2,000,000 are allowed"
        ) as caught:
            (x @ x.T).numpy()
        assert "Matmul" in caught.value.operation
        y = x[:100]
        assert (y @ y.T)[0, 0].item() == 100  # 2,000,000


def test_an_operation_over_its_time_fails_with_the_quota() -> None:
    with limited("--max-operation-seconds", "0.000001") as device:
        x = br.ones((600, 600), device=device)
        with pytest.raises(
            br.QuotaExceeded, match=r"operation time: it took .* seconds, 1e-06 are allowed"
        ):
            (x @ x).numpy()


def test_a_moved_tensor_over_the_targets_bytes_is_refused_before_it_is_fetched() -> None:
    with (
        server() as source,
        br.RemoteDevice(source.address) as a,
        limited("--max-session-bytes", "1000") as b,
    ):
        moved = br.ones((100_000,), device=a).to(b)
        with pytest.raises(br.QuotaExceeded, match="400,000 would be held, 1,000 are allowed"):
            moved.numpy()


def test_exposing_too_many_tensors_is_refused_and_the_others_arrive() -> None:
    with (
        limited("--max-session-transfers", "2") as a,
        server() as target,
        br.RemoteDevice(target.address) as b,
    ):
        x = br.ones((2,), device=a)
        for letter in (b"a", b"b", b"c"):
            a.session.expose(x.handle.id, x.handle.spec, letter * 32, 60)
        with pytest.raises(br.QuotaExceeded, match="3 would be exposed, 2 are allowed"):
            a.sync()
        handle = b.runners.fetch(b"a" * 32, a.address, TensorSpec((2,), br.float32))
        assert b.runners.read_tensor_async(handle).result(PATIENCE_SECONDS).shape == (2,)


def test_the_bytes_of_all_sessions_are_bounded() -> None:
    with server("--max-total-bytes", "10MB") as running:
        first = br.RemoteDevice(running.address)
        with br.RemoteDevice(running.address, dialect="native") as second:
            kept = br.ones((2_000_000,), device=first)
            first.sync()
            with pytest.raises(br.QuotaExceeded, match=r"bytes of all sessions: .*10,000,000 are"):
                br.ones((1_000_000,), device=second).numpy()
            assert kept.sum().item() == 2_000_000
            first.close()
            assert eventually_fits(second)


def eventually_fits(device: br.RemoteDevice) -> bool:
    """Return whether a session opens, retrying until the other session's end was noticed."""
    for _ in range(1000):
        try:
            br.ones((1_000_000,), device=device).numpy()
        except br.QuotaExceeded:
            continue
        return True
    return False


def test_a_session_over_the_limit_is_refused_and_the_others_continue() -> None:
    with server("--max-sessions", "1") as running, br.RemoteDevice(running.address) as device:
        with pytest.raises(br.HandshakeRefused, match="1 open sessions, its maximum"):
            br.RemoteDevice(running.address, dialect="native")
        device.sync()


def test_a_message_over_the_limit_ends_only_its_session() -> None:
    with (
        server("--max-message-bytes", "1MiB") as running,
        br.RemoteDevice(running.address) as good,
        br.RemoteDevice(running.address, dialect="native") as bad,
    ):
        assert isinstance(bad.session, NativeSession)
        for _ in range(2):  # the second error is the one that ended the session
            with pytest.raises(LimitExceeded, match=r"max_message_bytes.*allowed 1,048,576"):
                bad.session._connection.send(b"\x02" + bytes(2**21))
        with pytest.raises(LimitExceeded, match="max_message_bytes"):
            bad.sync()
        good.sync()


def test_a_client_that_ignores_the_limit_of_messages_loses_only_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The client resumes and sends the message again, each time after a longer pause.
    monkeypatch.setattr(session_states, "MAX_FRUITLESS_RESUMES", 5)
    with (
        server("--max-message-bytes", "1MiB") as running,
        br.RemoteDevice(running.address) as good,
        br.RemoteDevice(running.address, dialect="native") as bad,
    ):
        assert isinstance(bad.session, NativeSession)
        limits = cast("dict[str, int]", bad.session._connection.welcome.limits)
        assert limits.pop("message_bytes") == 2**20
        bad.session._connection.send(b"\x02" + bytes(2**21))
        with pytest.raises((ProtocolViolation, br.ConnectionLost)):
            bad.sync()
        good.sync()


def test_an_exposed_tensor_is_freed_when_it_expires() -> None:
    with (
        server("--transfer-expiry-seconds", "0.01", module=UNFORKED) as running,
        br.RemoteDevice(running.address) as device,
    ):
        before = running.resident_bytes
        x = br.ones((20_000_000,), device=device)
        device.session.expose(x.handle.id, x.handle.spec, b"t" * 32, 60)
        del x
        device.sync()
        # The server frees it without any request.
        for _ in range(100_000):
            if running.resident_bytes < before + 40_000_000:
                break
            device.sync()
        else:
            pytest.fail("the tensor is still held")
