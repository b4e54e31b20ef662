"""Trains: runs of messages between two cards of one process that the engine in C executes at once, on both cards.

A train begins when nothing of the connection is on its way, and leaves it so; everything else (loss, paging, errors,
receives that are not posted, lists of keys) is for the engine in Python, which finds the WQE at hand untouched. Python
decides whether there may be a train, hands over the rings as they are, and takes over how far they have come.

Where other cards have work, too, a long train is run by a thread of the crew (`native/src/crew.c`), and the card's step
ends meanwhile: what comes of it is taken over in a step of its own, before anything else happens to the two cards.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from firmware.model import turns
from firmware.model.counters import (
    RX_BYTES,
    RX_PACKETS,
    RX_UD_BYTES,
    RX_UD_PACKETS,
    TRAIN_MESSAGES,
    TRAINS,
    TX_BYTES,
    TX_PACKETS,
    TX_UD_BYTES,
    TX_UD_PACKETS,
    Count,
    CountOf,
    Outcome,
    QCount,
)
from firmware.model.hca import Hca
from firmware.model.objects import CQ_FIRED, Cq, Mkey
from firmware.model.psn import PSN_MASK
from firmware.model.qp import ST_UC, ST_UD, Qp
from firmware.model.segment import SHARE_NS, TRAIN_NS
from firmware.native.declarations import MOVING_AT, RESULTS_AT, Stop, moving, results
from firmware.native.library import loaded
from firmware.queues import completions_written
from firmware.transport.completion import timestamp
from firmware.transport.conversation import (
    Conversation,
    Opened,
    is_listening,
    is_same,
    is_unchanged,
    may_go,
    open_connection,
    open_datagrams,
)
from vhca.hw.effects import Effects
from vhca.hw.hardware import Through
from vhca.wire.packet import Packet

# Keys that one train may ask for.
KEYS_PER_TRAIN: Final = 16
# Work requests that Python takes until a train has its next try.
ALONE: Final = 1
TOGETHER: Final = 1 << 10
# Where there is no way for a train, it is looked for again after so long.
PATIENCE_NS: Final = 1_000_000
# A train is worth another thread if the one before it had so many bytes, where a message counts as some.
WORTH_BYTES: Final = 1 << 18
MESSAGE_WORTH: Final = 1 << 10
# A train in the step of a doorbell: whatever comes by that socket waits for it.
AT_ONCE_NS: Final = 20_000
limits: Final = Struct("@2q")


def run(hca: Hca, qp: Qp) -> int:
    """Execute what is posted on a connection, as far as there can be a train: Stop, UNUSUAL if it is for Python."""
    known = qp.conversation
    if isinstance(known, Conversation) and not (known.alone or hca.out) and is_unchanged(known):
        known.taken = 0
        opened = known.opened
        far, far_qp = (opened.far(), opened.far_qp()) if opened is not None else (None, None)
        if opened is None or far is None or far_qp is None:
            return Stop.UNUSUAL
        if opened.through.is_open(qp.requester.mtu):
            return _trains(hca, qp, far, far_qp, opened, known, TRAIN_NS)
    conversation = _may_begin(hca, qp)
    if conversation is None:
        return Stop.UNUSUAL
    if conversation.opened is None or not is_same(hca, qp, conversation.opened):
        conversation.opened = open_connection(hca, qp, conversation)
    return _go(hca, qp, conversation)


def run_at_once(hca: Hca, qp: Qp) -> bool:
    """A short train in the step of the doorbell itself, where there were only trains before; True if that was all."""
    known = qp.conversation
    if not isinstance(known, Conversation) or known.alone or known.long or not is_unchanged(known):
        return False
    opened = known.opened
    far, far_qp = (opened.far(), opened.far_qp()) if opened is not None else (None, None)
    if opened is None or far is None or far_qp is None or not opened.through.is_open(qp.requester.mtu):
        return False
    known.taken = 0
    stop = _trains(hca, qp, far, far_qp, opened, known, AT_ONCE_NS)
    # What is unusual is for Python, in its turn, without another try before.
    known.alone = stop not in (Stop.EMPTY, Stop.BUDGET)
    return stop == Stop.EMPTY


def run_datagrams(hca: Hca, qp: Qp, vector: bytes, probe: Callable[[], Packet | None]) -> int:
    """As :func:`run`, for datagrams with an address vector, of which `probe` makes one without payload."""
    conversation = _may_begin(hca, qp)
    if conversation is None:
        return Stop.UNUSUAL
    if conversation.opened is None or conversation.vector != vector or not is_same(hca, qp, conversation.opened):
        packet = probe()
        conversation.opened = open_datagrams(hca, qp, conversation, vector, packet) if packet is not None else None
    return _go(hca, qp, conversation)


def _may_begin(hca: Hca, qp: Qp) -> Conversation | None:
    """The queue pair's conversation, if nothing of it is on its way."""
    requester = qp.requester
    if qp.conversation is not None:
        qp.conversation.taken = 0
    if hca.native is None or requester.pending or requester.rnr_waiting or requester.paging or hca.out:
        return None
    if qp.service != ST_UD and requester.una != requester.next_psn:
        return None
    conversation = qp.conversation
    if not isinstance(conversation, Conversation):
        conversation = qp.conversation = Conversation()
    if conversation.alone:
        conversation.alone = False
        return None
    return conversation if hca.now_ns >= conversation.try_at else None


def _go(hca: Hca, qp: Qp, conversation: Conversation) -> int:
    """Look whether there can be trains now; if so, run them."""
    opened = conversation.opened
    far, far_qp = (opened.far(), opened.far_qp()) if opened is not None else (None, None)
    if opened is None or far is None or far_qp is None:
        conversation.try_at = hca.now_ns + PATIENCE_NS
        return _for_python(hca, conversation, Outcome.NO_WAY, TOGETHER)
    if not is_listening(qp, far_qp):
        # It will be, once it has got what Python sends now.
        return _for_python(hca, conversation, Outcome.NOT_EXPECTED, ALONE)
    if not may_go(hca, qp, far, opened):
        return _for_python(hca, conversation, Outcome.NO_WAY, TOGETHER)
    conversation.near_changes = opened.near_card.changes
    conversation.far_changes = opened.far_card.changes
    conversation.key_changes = Mkey.changes
    return _trains(hca, qp, far, far_qp, opened, conversation, TRAIN_NS)


def _trains(hca: Hca, qp: Qp, far: Hca, far_qp: Qp, opened: Opened, conversation: Conversation, time_ns: int) -> int:
    """Trains until one is over that had all its keys."""
    for _ in range(KEYS_PER_TRAIN):
        if not _prepare(hca, qp, far, far_qp, conversation, time_ns):
            return _for_python(hca, conversation, Outcome.NO_WAY, TOGETHER)
        if conversation.long and _set_apart(hca, qp, far, far_qp, opened, conversation):
            # If more is left then, it is for another turn.
            return Stop.EMPTY
        loaded().lib.vhca_run_train(conversation.pointer, opened.near_card.card, opened.far_card.card)
        stop, outcome, moved = _take_over(hca, qp, far, far_qp, opened, conversation)
        if stop == Stop.MISSING:
            if _add_key(hca, far, opened, conversation):
                if moved:
                    # What one step may do is done, or nearly.
                    return Stop.BUDGET
                continue
            outcome = Outcome.KEY
        _note_end(hca, conversation, outcome, moved)
        return stop
    return _for_python(hca, conversation, Outcome.KEY, TOGETHER)


def _note_end(hca: Hca, conversation: Conversation, outcome: int, moved: int) -> None:
    """One that is unusual among others goes alone; where all are, they go together, with a try now and then."""
    if outcome > Outcome.MISSING:
        hca.count_of.add(CountOf.TRAIN_ENDS, outcome)
    conversation.most = ALONE if moved or outcome == Outcome.REGISTRATION else TOGETHER


def _set_apart(hca: Hca, qp: Qp, far: Hca, far_qp: Qp, opened: Opened, conversation: Conversation) -> bool:
    """Let another thread run the train, if other cards have something to do; it takes as long as theirs then."""
    through = opened.through
    apart = through.set_apart(lambda out: _finish(hca, qp, far, far_qp, opened, conversation, out), loaded().crew)
    if apart or through.parted:
        limits.pack_into(conversation.argument, RESULTS_AT - limits.size, SHARE_NS, True)
    if apart:
        hca.count[Count.TRAINS_APART] += 1
        conversation.job = loaded().lib.vhca_train_begin(
            conversation.pointer, opened.near_card.card, opened.far_card.card
        )
    return apart


def _finish(hca: Hca, qp: Qp, far: Hca, far_qp: Qp, opened: Opened, conversation: Conversation, out: Effects) -> None:
    """A train that was set apart is over, or is run now: go on in the card's next turn."""
    loaded().lib.vhca_train_end(conversation.job)
    hca.out = out
    stop, outcome, moved = _take_over(hca, qp, far, far_qp, opened, conversation)
    if stop == Stop.EMPTY:
        return
    hca.turns.add(turns.SEND, qp)
    if stop == Stop.MISSING:
        if _add_key(hca, far, opened, conversation):
            return
        outcome = Outcome.KEY
    _note_end(hca, conversation, outcome, moved)
    # What it has left is for Python, which has its turn without another try.
    conversation.alone = stop != Stop.BUDGET


def _for_python(hca: Hca, conversation: Conversation, outcome: Outcome, most: int) -> Stop:
    """There is no train; Python takes so many messages until the next try."""
    hca.count_of.add(CountOf.TRAIN_ENDS, outcome)
    conversation.most = most
    return Stop.UNUSUAL


def _add_key(hca: Hca, far: Hca, opened: Opened, conversation: Conversation) -> bool:
    """Give the engine in C the key that it lacked; False if it cannot have it."""
    _, _, key, of_far, *_ = results.unpack_from(conversation.argument, RESULTS_AT)
    return opened.far_card.add_key(far, key) if of_far else opened.near_card.add_key(hca, key)


# A train


def _prepare(hca: Hca, qp: Qp, far: Hca, far_qp: Qp, conversation: Conversation, time_ns: int) -> bool:
    """Write what a train begins with; False if a ring that it needs is not there."""
    argument = conversation.argument
    sq, send_cq = qp.sq, qp.send_cq
    if sq is None or send_cq is None or far_qp.recv_cq is None:
        return False
    rq, srq, recv_cq = far_qp.rq, far_qp.srq, far_qp.recv_cq
    if srq is not None:
        receives = srq.consumed, srq.next_index, srq.limit
    else:
        receives = (0 if rq is None else rq.consumer), 0, 0
    far.now_ns = hca.now_ns
    moving.pack_into(
        argument, MOVING_AT, timestamp(hca), timestamp(far), sq.consumer, qp.requester.next_psn, send_cq.producer,
        send_cq.consumer, *receives, recv_cq.producer, recv_cq.consumer, -1, -1, qp.requester.lso_done, time_ns, 0,
    )  # fmt: skip
    return True


def _take_over(
    hca: Hca, qp: Qp, far: Hca, far_qp: Qp, opened: Opened, conversation: Conversation
) -> tuple[int, int, int]:
    """Take over how far a train has come: why it ended (Stop, Outcome), and how many messages and packets have gone."""
    argument, through, sq, send_cq = conversation.argument, opened.through, qp.sq, qp.send_cq
    (
        stop, outcome, _, _, messages, waiting, packets, size, acks, _, answers, answer_bytes, writes, reads, atomics,
        near_cqes, far_cqes, near_events, far_events, words_out, words_back, nops,
        has_invalidated, invalidated,
    ) = results.unpack_from(argument, RESULTS_AT)  # fmt: skip
    conversation.long = loaded().crew > 0 and size + answer_bytes + (messages + packets) * MESSAGE_WORTH >= WORTH_BYTES
    if messages or packets:
        assert sq is not None
        assert send_cq is not None
        assert far_qp.recv_cq is not None
        rq, srq, recv_cq = far_qp.rq, far_qp.srq, far_qp.recv_cq
        (
            _, _, sq.consumer, psn, send_cq.producer, send_cq.consumer, taken, next_index, _,
            recv_cq.producer, recv_cq.consumer, near_solicited, far_solicited, qp.requester.lso_done, *_,
        ) = moving.unpack_from(argument, MOVING_AT)  # fmt: skip
        # Where a number can be an object that is there, no other one is made, and later looked for in memory.
        sq.producer = sq.consumer + waiting if waiting else sq.consumer
        if srq is not None:
            srq.consumed = taken & 0xFFFF
            if not srq.cyclic:
                srq.next_index = next_index
        elif rq is not None:
            rq.consumer = taken
        hca.count[TRAINS] += 1
        hca.count[TRAIN_MESSAGES] += messages
        _advance(qp, far_qp, psn, messages - nops)
        if has_invalidated:
            _invalidate(far, invalidated, far_qp)
        back = acks + answers
        _count(hca, far, far_qp, (packets, size, back, answer_bytes), (writes, reads, atomics))
        near_counters, far_counters = hca.ports[qp.port].counters, far.ports[far_qp.port].counters
        sl, back_sl = opened.levels
        near_counters.sent_many(packets, words_out, sl)
        far_counters.received_many(packets, words_out, sl, 0)
        far_counters.sent_many(back, words_back, back_sl)
        near_counters.received_many(back, words_back, back_sl, 0)
        through.passed(packets, words_out, back, words_back)
        if far_cqes:
            _tell(through, far, recv_cq, (far_cqes, far_events, far_solicited))
        if near_cqes:
            completions_written(hca, send_cq, near_cqes, near_events, near_solicited)
    return stop, outcome, messages + packets


def _advance(qp: Qp, far_qp: Qp, psn: int, messages: int) -> None:
    """Everything up to `psn` was sent, executed and acknowledged."""
    requester, responder = qp.requester, far_qp.responder
    if qp.service == ST_UD:
        requester.next_psn = psn
        return
    requester.next_psn = requester.send_psn = requester.una = requester.max_psn = psn
    requester.ssn += messages
    responder.epsn = psn if psn <= PSN_MASK else psn & PSN_MASK
    if qp.service == ST_UC:
        return
    requester.retries_left = requester.retry_count
    requester.rnr_left = requester.rnr_retry
    responder.msn = (responder.msn + messages) & PSN_MASK


def _invalidate(far: Hca, key: int, far_qp: Qp) -> None:
    """The last message has taken a key of the other card back, which C has checked."""
    mkey = far.mkeys.get(key >> 8)
    assert mkey is not None
    mkey.free = True
    if far.history is not None:
        by = f"SEND_INV of the peer of QP {far_qp.handle:#x}"
        far.history.key_changed(far.now_ns, mkey, mkey.variant, False, by)
    far.count[Count.REMOTE_INVALIDATES] += 1


def _count(hca: Hca, far: Hca, far_qp: Qp, moved: tuple[int, int, int, int], requests: tuple[int, int, int]) -> None:
    packets, size, back, answer_bytes = moved
    count, far_count = hca.count, far.count
    if far_qp.service == ST_UD:
        count[TX_UD_PACKETS] += packets
        count[TX_UD_BYTES] += size
        far_count[RX_UD_PACKETS] += packets
        far_count[RX_UD_BYTES] += size
        return
    count[TX_PACKETS] += packets
    far_count[RX_PACKETS] += packets
    if size:
        count[TX_BYTES] += size
        far_count[RX_BYTES] += size
    if back:
        count[RX_PACKETS] += back
        far_count[TX_PACKETS] += back
    if answer_bytes:
        count[RX_BYTES] += answer_bytes
        far_count[TX_BYTES] += answer_bytes
    if far_qp.counter is not None:
        values = far_qp.counter.values
        writes, reads, atomics = requests
        if writes:
            values[_WRITES] += writes
        if reads:
            values[_READS] += reads
        if atomics:
            values[_ATOMICS] += atomics


_WRITES: Final = QCount.RX_WRITE_REQUESTS
_READS: Final = QCount.RX_READ_REQUESTS
_ATOMICS: Final = QCount.RX_ATOMIC_REQUESTS


def _tell(through: Through, far: Hca, cq: Cq, written: tuple[int, int, int]) -> None:
    """Completions were written on the other card: its own step sends the event, if one is due."""
    if cq.arm_state == CQ_FIRED:
        completions_written(far, cq, *written)
        return

    def report(out: Effects) -> None:
        far.out = out
        completions_written(far, cq, *written)

    through.step(report)
