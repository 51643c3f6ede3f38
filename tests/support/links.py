"""The conformance tests of ``BlockingLink``.

A test module subclasses ``BlockingLinkConformance`` and provides a pair of ends.
"""

from __future__ import annotations

import contextlib
import threading

import pytest

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, BlockingLink
from support.link_ends import SENDERS, SIZES, FarEnd, OpenPair, in_thread, pattern, send_all, take
from support.waiting import PATIENCE_SECONDS

__all__ = ["BlockingLinkConformance"]


class Exchange:
    """Frames arrive whole, once and in order."""

    @pytest.mark.parametrize("size", SIZES)
    def test_a_frame_of_any_size_arrives_unchanged_both_ways(
        self, pair: tuple[BlockingLink, FarEnd], size: int
    ) -> None:
        link, far = pair
        for frame in (pattern(size), b"what follows it"):
            sending = in_thread(link.send, frame)
            assert far.receive() == frame
            sending.result(PATIENCE_SECONDS)
            sending = in_thread(far.send, frame)
            assert take(link) == frame
            sending.result(PATIENCE_SECONDS)

    @pytest.mark.parametrize("size", SIZES)
    def test_parts_arrive_as_one_frame_both_ways(
        self, pair: tuple[BlockingLink, FarEnd], size: int
    ) -> None:
        link, far = pair
        payload = pattern(size)
        for head in (b"", b"head!", pattern(300)):
            sending = in_thread(link.send_parts, head, memoryview(payload))
            assert far.receive() == head + payload
            sending.result(PATIENCE_SECONDS)
            sending = in_thread(far.send_parts, head, memoryview(payload))
            assert take(link) == head + payload
            sending.result(PATIENCE_SECONDS)

    def test_a_payload_may_change_once_it_is_sent(self, pair: tuple[BlockingLink, FarEnd]) -> None:
        link, far = pair
        payload = bytearray(pattern(4096))
        link.send_parts(b"", memoryview(payload))
        payload[:] = bytes(4096)
        assert far.receive() == pattern(4096)

    def test_constant_payloads_arrive_in_order_between_other_frames(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        payload = memoryview(pattern(700_000))

        def send_all() -> None:
            for number in range(20):
                link.send_parts(b"%d" % number, payload, is_constant=True)
                link.send(b"after %d" % number)
                link.send_parts(b"again", payload, is_constant=True)

        sending = in_thread(send_all)
        for number in range(20):
            assert far.receive() == b"%d" % number + payload
            assert far.receive() == b"after %d" % number
            assert far.receive() == b"again" + payload
        sending.result(PATIENCE_SECONDS)

    def test_the_last_constant_payload_arrives_without_another_call(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        payload = memoryview(pattern(3_000_000))
        sending = in_thread(lambda: link.send_parts(b"last", payload, is_constant=True))
        assert far.receive() == b"last" + payload
        sending.result(PATIENCE_SECONDS)

    def test_a_frame_of_64_mib_arrives_unchanged_both_ways(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        frame = pattern(MAX_MESSAGE_BYTES)
        sending = in_thread(link.send, frame)
        assert far.receive() == frame
        sending.result(PATIENCE_SECONDS)
        sending = in_thread(far.send, frame)
        assert take(link) == frame
        sending.result(PATIENCE_SECONDS)

    def test_many_small_frames_arrive_in_order(self, pair: tuple[BlockingLink, FarEnd]) -> None:
        link, far = pair
        frames = [b"%d" % number for number in range(5000)]
        sending = in_thread(send_all, link, frames)
        assert [far.receive() for _ in frames] == frames
        sending.result(PATIENCE_SECONDS)
        back = in_thread(send_all, far, frames)
        assert [take(link) for _ in frames] == frames
        back.result(PATIENCE_SECONDS)

    def test_frames_sent_together_arrive_one_by_one(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        frames = [b"%d" % number * (number % 40) for number in range(3000)]
        frames += [pattern(300_000), b""]
        taken = [*frames]
        sending = in_thread(link.send_together, taken)
        assert [far.receive() for _ in frames] == frames
        sending.result(PATIENCE_SECONDS)
        assert taken == []
        link.close()
        with pytest.raises(ConnectionLost):
            link.send_together(frames)

    def test_frames_of_concurrent_senders_never_interleave(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        sizes = [1, 70_000, 300, 300_000, 17_000, 125]
        together = threading.Barrier(SENDERS)

        def send_all(sender: int) -> None:
            together.wait(PATIENCE_SECONDS)
            for number, size in enumerate(sizes):
                payload = bytes([sender]) * size
                link.send_parts(bytes([sender, number]), memoryview(payload))

        sending = [in_thread(send_all, sender) for sender in range(SENDERS)]
        numbers: dict[int, list[int]] = {sender: [] for sender in range(SENDERS)}
        for _ in range(SENDERS * len(sizes)):
            frame = far.receive()
            assert frame is not None
            sender, number = frame[0], frame[1]
            assert frame[2:] == bytes([sender]) * sizes[number]
            numbers[sender].append(number)
        assert all(order == list(range(len(sizes))) for order in numbers.values())
        for future in sending:
            future.result(PATIENCE_SECONDS)

    def test_both_ends_can_send_large_frames_at_once(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        frame = pattern(3 * 2**20)
        here = in_thread(send_all, link, [frame] * 4)
        there = in_thread(send_all, far, [frame] * 4)
        received_here = in_thread(lambda: [take(link) == frame for _ in range(4)])
        assert [far.receive() == frame for _ in range(4)] == [True] * 4
        assert received_here.result(PATIENCE_SECONDS) == [True] * 4
        here.result(PATIENCE_SECONDS)
        there.result(PATIENCE_SECONDS)

    @pytest.mark.parametrize("is_constant", [False, True])
    def test_a_full_link_blocks_its_sender_until_the_other_end_receives(
        self, pair: tuple[BlockingLink, FarEnd], is_constant: bool
    ) -> None:
        link, far = pair
        sent = threading.Semaphore(0)

        def send_all() -> None:
            for number in range(64):
                payload = memoryview(bytes(2**20))
                link.send_parts(b"%02d" % number, payload, is_constant=is_constant)
                sent.release()

        sending = in_thread(send_all)
        while sent.acquire(timeout=0.2):
            assert not sending.done(), "nothing bounds what the link holds"
        received = [far.receive() for _ in range(64)]
        assert [frame[:2] for frame in received if frame] == [b"%02d" % n for n in range(64)]
        sending.result(PATIENCE_SECONDS)


class Waiting:
    """Waiting consumes nothing and can be interrupted."""

    def test_receiving_returns_none_at_its_timeout_and_loses_no_frame(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        assert link.receive(0) is None
        assert link.receive(0.01) is None
        far.send(b"late")
        assert take(link) == b"late"

    def test_waiting_consumes_no_frame(self, pair: tuple[BlockingLink, FarEnd]) -> None:
        link, far = pair
        assert not link.wait_readable(0)
        assert not link.wait_readable(0.01)
        waiting = in_thread(link.wait_readable, PATIENCE_SECONDS)
        far.send(b"one")
        assert waiting.result(PATIENCE_SECONDS)
        assert link.wait_readable(PATIENCE_SECONDS)
        assert take(link) == b"one"
        assert not link.wait_readable(0)

    def test_waiting_detects_a_frame_that_arrived_with_an_earlier_one(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        for number in range(100):
            far.send(b"%d" % number)
        for number in range(100):
            assert link.wait_readable(PATIENCE_SECONDS)
            assert take(link) == b"%d" % number
        assert not link.wait_readable(0)

    def test_a_link_whose_frames_were_all_received_has_buffered_nothing(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        far.send(b"one")
        far.send(b"two")
        assert [take(link), take(link)] == [b"one", b"two"]
        assert not link.has_buffered()

    def test_a_link_has_ended_once_the_other_end_has_gone(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        assert not link.has_ended()
        far.vanish()
        assert link.wait_readable(PATIENCE_SECONDS)
        assert link.has_ended()

    def test_an_interrupt_releases_a_waiting_thread(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        waiting = in_thread(link.wait_readable, None)
        link.interrupt()
        assert waiting.result(PATIENCE_SECONDS) is False
        far.send(b"still works")
        assert take(link) == b"still works"

    def test_an_earlier_interrupt_releases_the_next_waiting_thread(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, _ = pair
        link.interrupt()
        assert in_thread(link.wait_readable, None).result(PATIENCE_SECONDS) is False


class Endings:
    """Every thread learns that a link has ended; frames that arrived before are delivered."""

    def test_the_other_end_closing_is_seen_after_the_frames_before_it(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        far.send(b"last words")
        closing = in_thread(far.close, 4001, "had enough")
        assert take(link) == b"last words"
        with pytest.raises(ConnectionLost, match=r"4001.*had enough"):
            link.receive(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
        assert link.closed
        assert link.wait_readable(PATIENCE_SECONDS)
        with pytest.raises(ConnectionLost, match=r"4001.*had enough"):
            link.receive(0)
        with pytest.raises(ConnectionLost):
            link.send(b"too late")

    def test_closing_is_seen_by_the_other_end_after_the_frames_before_it(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        link.send(pattern(300_000))
        closing = in_thread(link.close, 4002, "done here")
        assert far.receive() == pattern(300_000)
        with pytest.raises(ConnectionLost, match=r"4002.*done here"):
            far.receive()
        closing.result(PATIENCE_SECONDS)

    def test_a_closed_link_raises_connection_lost_and_may_be_closed_again(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, _ = pair
        assert not link.closed
        link.close()
        link.close()
        link.interrupt()
        assert link.closed
        assert link.wait_readable(PATIENCE_SECONDS) or link.wait_readable(0)
        for call in (lambda: link.send(b""), lambda: link.receive(None)):
            with pytest.raises(ConnectionLost, match="this program closed"):
                call()

    def test_closing_releases_threads_that_receive_or_wait(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, _ = pair
        receiving = in_thread(link.receive, None)
        waiting = in_thread(link.wait_readable, None)
        link.close()
        with pytest.raises(ConnectionLost):
            receiving.result(PATIENCE_SECONDS)
        waiting.result(PATIENCE_SECONDS)

    def test_closing_releases_a_thread_that_sends(self, pair: tuple[BlockingLink, FarEnd]) -> None:
        link, _ = pair
        progress = threading.Semaphore(0)

        def send_forever() -> None:
            while True:
                link.send(bytes(2**20))
                progress.release()

        sending = in_thread(send_forever)
        while progress.acquire(timeout=0.2):
            pass
        link.close()
        with pytest.raises(ConnectionLost):
            sending.result(PATIENCE_SECONDS)

    def test_a_vanished_peer_is_connection_lost_for_all_threads(
        self, pair: tuple[BlockingLink, FarEnd]
    ) -> None:
        link, far = pair
        receiving = in_thread(link.receive, None)
        far.vanish()
        with pytest.raises(ConnectionLost):
            receiving.result(PATIENCE_SECONDS)
        assert link.wait_readable(PATIENCE_SECONDS)
        with pytest.raises(ConnectionLost):
            for _ in range(100):
                link.send(bytes(2**20))

    def test_a_message_over_the_limit_is_refused_and_ends_the_link(
        self, open_pair: OpenPair
    ) -> None:
        link, far = open_pair(max_message_bytes=1000)
        far.send(bytes(1000))
        assert take(link) == bytes(1000)
        sending = in_thread(far.send, bytes(1001))
        with pytest.raises(LimitExceeded) as caught:
            link.receive(PATIENCE_SECONDS)
        assert (caught.value.seen, caught.value.allowed) == (1001, 1000)
        with contextlib.suppress(ConnectionLost):
            sending.result(PATIENCE_SECONDS)
        with pytest.raises(ConnectionLost, match="1009"):
            far.receive()
        with pytest.raises(ConnectionLost):
            link.send(b"")


class BlockingLinkConformance(Exchange, Waiting, Endings):
    """All conformance tests of ``BlockingLink``. Subclasses provide the fixture ``open_pair``."""

    @pytest.fixture
    def pair(self, open_pair: OpenPair) -> tuple[BlockingLink, FarEnd]:
        return open_pair()
