"""The queue machinery: work queues are fetched from host memory, completion and event queues are written to it.

All producer and consumer indices are kept free running in Python integers and cut to the width of the wire where they
meet it. A WQE is copied out of guest memory once; what is checked is what is used. An entry goes out as an
`EntryWrite`, so the host never sees its ownership bit before its content.
"""

import struct
from collections.abc import Sequence
from typing import Final

from firmware.model.counters import CQES, EQES, INTERRUPTS, Count, CountOf
from firmware.model.hca import Hca
from firmware.model.lists import FEW_ENTRIES, ReceiveList, Sge
from firmware.model.objects import CQ_ARMED, CQ_ARMED_SOLICITED, CQ_FIRED, INDEX_MASK, Cq, Eq, Session, Srq
from firmware.model.qp import RST, Qp
from firmware.model.rings import RecvWqe
from firmware.model.timers import Timer, TimerKind
from vhca.hw.effects import DmaWrite, EntryWrite, RaiseIrq, Told
from vhca.hw.hardware import Tamper
from vhca.hw.memory import DmaError
from vhca.wire.connectx.cqe import MINI_CQES, Cqe64, CqeFormat, CqeOpcode, MiniCqe
from vhca.wire.connectx.eqe import CompData, CqErrorData, CqErrorSyndrome, Eqe, EventType, QpSrqData
from vhca.wire.connectx.wqe import DataSegment, NextSegment

EVENT_COMPLETION: Final = int(EventType.COMP)
EVENT_CQ_ERROR: Final = int(EventType.CQ_ERROR)
EVENT_SRQ_LIMIT: Final = int(EventType.SRQ_RQ_LIMIT)

CQ_SYNDROME_OVERRUN: Final = int(CqErrorSyndrome.OVERRUN)

# A receive list ends at the stride's end or at a segment of 0 bytes with this key.
TERMINATOR_LKEY: Final = 0x100

_BE32 = struct.Struct(">I")
_data_segments = DataSegment.iterator("byte_count", "lkey", "addr")
_next = NextSegment.unpacker("next_wqe_index")
# Completions that a session holds at most, and for how long it holds the first.
MOST_IN_SESSION: Final = 64
SESSION_NS: Final = 16_000
_BYTE_COUNT_AT: Final = 0x2C
_QPN_AT: Final = 0x38
_COUNTER_AT: Final = 0x3C
# The last byte of completions: of a receive without anything special, but for the owner; of titles.
_PLAIN_RECEIVE: Final = Cqe64(opcode=CqeOpcode.RESP_SEND).to_bytes()[-1]
_COMPRESSED: Final = Cqe64(inline_format=CqeFormat.COMPRESSED).to_bytes()[-1]
_mini = MiniCqe.packer("result", "byte_cnt")
_byte_count = Cqe64.unpacker("byte_cnt")
_counter = Cqe64.unpacker("wqe_counter")
_eqe = Eqe.packer("event_type", "event_sub_type", "event_data", "owner")
_completion = CompData.packer("cqn")
_cq_error = CqErrorData.packer("cqn", "syndrome")
_limit_event = QpSrqData.packer("queue_type", "qp_srq_n")


def parse_scatter_list(raw: bytes, start: int) -> Sequence[Sge]:
    """Data segments of a receive WQE up to its terminator."""
    segments: list[Sge] = []
    end = start
    for length, lkey, addr in _data_segments(raw[start : len(raw) & ~15]):
        if length == 0 and lkey == TERMINATOR_LKEY:
            break
        end += DataSegment.SIZE
        if length & 0x7FFFFFFF:
            segments.append((addr, length & 0x7FFFFFFF, lkey))
    return segments if len(segments) <= FEW_ENTRIES else ReceiveList(raw[start:end])


def take_receive(hca: Hca, qp: Qp) -> RecvWqe | None:
    """Take the next receive WQE of `qp` (own queue or SRQ); None if none is posted (RNR). Raises DmaError."""
    if qp.srq is not None:
        return take_shared_receive(hca, qp.srq)
    rq = qp.rq
    if rq is None or qp.state == RST or not rq.waiting(hca.memory):
        return None
    slot = rq.consumer & ((1 << rq.log_size) - 1)
    stride = 1 << rq.log_stride
    raw = rq.buffer.read(hca.memory, slot << rq.log_stride, stride)
    wqe = RecvWqe(rq.consumer & 0xFFFF, parse_scatter_list(raw, 0), None)
    rq.consumer += 1
    if hca.watched:
        _tell(hca, qp.handle, wqe)
    return wqe


def shared_waiting(hca: Hca, srq: Srq) -> int:
    """Read the doorbell record of an SRQ: how many posted WQEs have not been taken. Raises DmaError."""
    posted: int = _BE32.unpack(hca.memory.read(srq.dbr_addr, 4))[0] & 0xFFFF
    return (posted - srq.consumed) & 0xFFFF


def check_limit(hca: Hca, srq: Srq, left: int) -> None:
    """Report, once, that fewer WQEs are left than an armed limit asks for (10.2.9.3)."""
    if left < srq.limit:
        srq.limit = 0
        post_event(hca, EVENT_SRQ_LIMIT, 0, _limit_event(0, srq.handle))


def take_shared_receive(hca: Hca, srq: Srq) -> RecvWqe | None:
    """Take the next WQE of an SRQ, follow its link, and report the limit event when it is due. Raises DmaError."""
    memory = hca.memory
    available = shared_waiting(hca, srq)
    if not available or srq.failed:
        return None
    mask = (1 << srq.log_size) - 1
    index = srq.consumed if srq.cyclic else srq.next_index
    raw = srq.buffer.read(memory, (index & mask) << srq.log_stride, 1 << srq.log_stride)
    if not srq.cyclic:
        srq.next_index = _next(raw)[0] & mask
    srq.consumed = (srq.consumed + 1) & 0xFFFF
    check_limit(hca, srq, available - 1)
    wqe = RecvWqe(index, parse_scatter_list(raw, srq.head_bytes), srq)
    if hca.watched:
        _tell(hca, srq.handle, wqe)
    return wqe


def _tell(hca: Hca, queue: int, wqe: RecvWqe) -> None:
    """Say that a receive is taken, of a QP's own queue or of an SRQ."""
    room = sum(size for _, size, _ in wqe.segments)
    hca.out.append(Told("receive", queue, wqe.wqe_counter, size=room, shared=wqe.srq is not None))


def post_event(hca: Hca, event_type: int, sub_type: int, data: bytes) -> None:
    """Send an event to every EQ that asked for its type; `data` are the 28 bytes of its form."""
    bit = 1 << event_type
    delivered = False
    for eq in hca.eqs:
        if eq.event_mask & bit:
            write_eqe(hca, eq, event_type, sub_type, data)
            delivered = True
    if not delivered:
        hca.count_of.add(CountOf.EVENT_UNCLAIMED, event_type)


def write_eqe(hca: Hca, eq: Eq, event_type: int, sub_type: int, data: bytes, *, genuine: bool = False) -> bool:
    """Append one EQE and raise the vector if the EQ is armed; False if a full EQ drops it, counted."""
    if hca.tamper is not None and not genuine:
        return _tampered_events(hca, hca.tamper, eq, (event_type, sub_type, data))
    if eq.producer - eq.consumer >= 1 << eq.log_size:
        eq.dropped += 1
        hca.count[Count.EQ_OVERRUN] += 1
        return False
    entry = _eqe(event_type, sub_type, data, eq.producer >> eq.log_size & 1)
    hca.out.append(EntryWrite(eq.buffer.addr((eq.producer & ((1 << eq.log_size) - 1)) << 6), entry))
    if hca.watched:
        hca.out.append(Told("event", eq.handle, eq.producer, data=entry))
    eq.producer += 1
    hca.count[EQES] += 1
    if eq.armed:
        eq.armed = False
        hca.count[INTERRUPTS] += 1
        hca.out.append(RaiseIrq(eq.vector))
    return True


def _tampered_events(hca: Hca, tamper: Tamper, eq: Eq, event: tuple[int, int, bytes]) -> bool:
    """Append what somebody makes of an EQE; for the card it was sent, whatever came of it."""
    for changed in tamper.events(eq.handle, *event):
        write_eqe(hca, eq, *changed, genuine=True)
    return True


def _tampered_completions(hca: Hca, tamper: Tamper, cq: Cq, cqe: bytearray, solicited: bool) -> bool:
    """Append what somebody makes of a CQE; for the card it was written, whatever came of it."""
    written = True
    for changed, counts in tamper.completions(cq.handle, cqe, solicited):
        written = write_cqe(hca, cq, changed, counts, genuine=True) and written
    return written


def eq_doorbell(hca: Hca, eq: Eq, consumer_index: int, arm: bool) -> None:
    """The host moved its consumer index (24 bit); armed with entries waiting, the vector fires at once."""
    # The new index lies between the old one and the producer; anything else is a guest's mistake and is ignored.
    consumer = eq.consumer + ((consumer_index - eq.consumer) & INDEX_MASK)
    if consumer > eq.producer:
        hca.count[Count.EQ_DOORBELL_INVALID] += 1
        return
    eq.consumer = consumer
    if arm:
        if eq.producer > consumer:
            eq.armed = False
            hca.count[INTERRUPTS] += 1
            hca.out.append(RaiseIrq(eq.vector))
        else:
            eq.armed = True


def write_cqe(hca: Hca, cq: Cq, cqe: bytearray, solicited: bool, *, genuine: bool = False) -> bool:
    """Append a CQE (owner bit is set here) and report the completion if the CQ is armed for it.

    It has 64 bytes, or 128 if inline data are in front of it (queues of 128-byte entries only).

    `solicited`: bit for "solicited event" or an error; `genuine`: nobody changes it any more. Returns False if the CQ
    is dead or overran.
    """
    if cq.failed:
        hca.count[Count.CQES_LOST] += 1
        return False
    if hca.tamper is not None and not genuine:
        return _tampered_completions(hca, hca.tamper, cq, cqe, solicited)
    if cq.session is not None and _hold(hca, cq, cq.session, cqe, solicited):
        return True
    index = cq.producer
    size = 1 << cq.log_size
    if index - cq.consumer >= size and not cq.overrun_ignore:
        refresh_consumer(hca, cq)
        if index - cq.consumer >= size:
            fail_cq(hca, cq, CQ_SYNDROME_OVERRUN)
            return False
    write_cqe_entry(hca, cq, cqe)
    hca.count[CQES] += 1
    if solicited:
        cq.last_solicited = index
    if cq.arm_state != CQ_FIRED and (solicited or cq.arm_state == CQ_ARMED):
        if cq.max_count > 1 and cq.period_us:
            _moderate(hca, cq)
        else:
            _fire(hca, cq)
    return True


def completions_written(hca: Hca, cq: Cq, count: int, solicited: int, last_solicited: int) -> None:
    """`count` completions were written by another engine, `solicited` of them solicited, the last at that index."""
    hca.count[CQES] += count
    if solicited:
        cq.last_solicited = last_solicited
    events = count if cq.arm_state == CQ_ARMED else solicited
    if cq.arm_state != CQ_FIRED and events:
        if cq.max_count > 1 and cq.period_us:
            _moderate(hca, cq, events)
        else:
            _fire(hca, cq)


def _hold(hca: Hca, cq: Cq, session: Session, cqe: bytearray, solicited: bool) -> bool:
    """Keep a completion that others may be like; False if it goes out alone, behind those that were kept."""
    count = len(session.minis) // MiniCqe.SIZE
    if count and (count == MOST_IN_SESSION or not _alike(session.title, cqe, count)):
        end_session(hca, cq)
        count = 0
    size = 1 << cq.log_size
    if cq.producer + count - cq.consumer >= size:
        refresh_consumer(hca, cq)
    if solicited or cqe[-1] & ~1 != _PLAIN_RECEIVE or cq.producer + count - cq.consumer >= size:
        end_session(hca, cq)
        return False
    if not count:
        session.title = bytes(cqe)
        if session.timer is None:
            session.timer = Timer(TimerKind.COMPRESSION, cq)
        hca.timers.arm(session.timer, hca.now_ns + SESSION_NS)
    # Neither hash nor checksum: packets of InfiniBand have none of those.
    session.minis += _mini(0, _byte_count(cqe)[0])
    return True


def _alike(title: bytes, cqe: bytearray, count: int) -> bool:
    """Tell whether a completion is the title's in all but length and time, and its WQE `count` behind the title's."""
    return (
        title[:_BYTE_COUNT_AT] == cqe[:_BYTE_COUNT_AT]
        and title[_QPN_AT:_COUNTER_AT] == cqe[_QPN_AT:_COUNTER_AT]
        and (_counter(title)[0] + count - _counter(cqe)[0]) & 0xFFFF == 0
        and title[-1] == cqe[-1]
    )


def end_session(hca: Hca, cq: Cq) -> None:
    """Write what a compressing queue has kept, and report it."""
    session = cq.session
    if session is None or not session.minis:
        return
    assert session.timer is not None
    hca.timers.cancel(session.timer)
    title, minis = bytearray(session.title), bytes(session.minis)
    session.minis.clear()
    count, first = len(minis) // MiniCqe.SIZE, cq.producer
    if count > 1:
        mask = (1 << cq.log_size) - 1
        for begin in range(0, count, MINI_CQES):
            array = minis[begin * MiniCqe.SIZE :][: MINI_CQES * MiniCqe.SIZE].ljust(64, b"\0")
            hca.out.append(DmaWrite(cq.buffer.addr(((first + (begin or 1)) & mask) << 6), array))
        title[_BYTE_COUNT_AT : _BYTE_COUNT_AT + 4] = count.to_bytes(4, "big")
        title[-1] |= _COMPRESSED
        hca.count[Count.COMPRESSED_SESSIONS] += 1
    write_cqe_entry(hca, cq, title)
    cq.producer = first + count
    completions_written(hca, cq, count, 0, -1)


def write_cqe_entry(hca: Hca, cq: Cq, cqe: bytearray) -> None:
    """Put one CQE at the producer index with its owner bit, and nothing else."""
    index = cq.producer
    front = b""
    if cq.cqe_bytes != 64:
        if len(cqe) == 128:
            front, cqe = bytes(cqe[:64]), cqe[64:]
        elif cq.padded:
            front = bytes(64)
    cqe[0x3F] = (cqe[0x3F] & 0xFE) | (index >> cq.log_size & 1)
    slot = index & ((1 << cq.log_size) - 1)
    if front:
        hca.out.append(DmaWrite(cq.buffer.addr(slot << 7), front))
    # An entry of 128 bytes may begin at the end of a page: only its second half, which is aligned, is written.
    addr = cq.buffer.addr(slot << 6 if cq.cqe_bytes == 64 else slot << 7 | 64)
    hca.out.append(EntryWrite(addr, bytes(cqe)))
    if hca.watched:
        hca.out.append(Told("completion", cq.handle, index, data=bytes(cqe)))
    cq.producer = index + 1


def cq_doorbell(hca: Hca, cq: Cq, consumer_index: int, solicited: bool) -> None:
    """Arm doorbell: fires at once if there is a matching CQE that neither the host nor an event of this queue knows of.

    The host knows those in front of the index that it gives; an event knows those that were there when it was sent, and
    whoever takes an event polls. So an arm between event and poll is quiet, and nothing that came after the event is.

    Every index is one behind the producer, however far: software that polls a queue itself may always arm with the
    index of a library that never moves, and an arm that were ignored would be a wake-up that never comes.
    """
    end_session(hca, cq)
    consumer = cq.producer - ((cq.producer - consumer_index) & INDEX_MASK)
    if consumer > cq.consumer:
        cq.consumer = consumer
    # A request for the next completion is not narrowed to solicited ones; it may be widened (C11-31, C11-32).
    if cq.arm_state != CQ_ARMED:
        cq.arm_state = CQ_ARMED_SOLICITED if solicited else CQ_ARMED
    last = cq.producer - 1 if cq.arm_state == CQ_ARMED else cq.last_solicited
    if last >= max(consumer, cq.notified):
        _fire(hca, cq)


def fail_cq(hca: Hca, cq: Cq, syndrome: int) -> None:
    """Take a CQ out of service and tell the host (EQE 0x04)."""
    cq.failed = True
    hca.count[Count.CQ_ERRORS] += 1
    post_event(hca, EVENT_CQ_ERROR, 0, _cq_error(cq.handle, syndrome))


def _moderate(hca: Hca, cq: Cq, count: int = 1) -> None:
    """Hold the event back until so many completions are there, or the first of them has waited long enough."""
    first = not cq.held
    cq.held += count
    if cq.held >= cq.max_count:
        _fire(hca, cq)
    elif first:
        if cq.moderation is None:
            cq.moderation = Timer(TimerKind.MODERATION, cq)
        hca.timers.arm(cq.moderation, hca.now_ns + cq.period_us * 1000)


def held_long_enough(hca: Hca, cq: Cq) -> None:
    """The period of a moderated queue is over."""
    if cq.held:
        _fire(hca, cq)


def drop_held_event(hca: Hca, cq: Cq) -> None:
    """Forget an event that is held back (its queue reports, or ends)."""
    cq.held = 0
    if cq.moderation is not None:
        hca.timers.cancel(cq.moderation)


def _fire(hca: Hca, cq: Cq) -> None:
    if cq.held:
        drop_held_event(hca, cq)
    cq.arm_state = CQ_FIRED
    if write_eqe(hca, cq.eq, EVENT_COMPLETION, 0, _completion(cq.handle)):
        cq.notified = cq.producer


def refresh_consumer(hca: Hca, cq: Cq) -> None:
    """Read how far the host has come from the CQ's doorbell record; nonsense is ignored."""
    try:
        record = _BE32.unpack(hca.memory.read(cq.dbr_addr, 4))[0] & INDEX_MASK
    except DmaError:
        hca.count[Count.DMA_READ_ERRORS] += 1
        return
    consumer = cq.consumer + ((record - cq.consumer) & INDEX_MASK)
    if consumer <= cq.producer:
        cq.consumer = consumer
