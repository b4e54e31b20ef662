"""Whom a queue pair's trains are with: is there a way, does the other end fit, and is all of it still so?

What is found out once is kept with a stamp; what may change from one train to the next is asked each time.
"""

from typing import Any, Final, NamedTuple
from weakref import ref

from firmware.model.hca import Hca
from firmware.model.hot import ANY_USER_INDEX
from firmware.model.objects import Cq, Mkey, Srq
from firmware.model.port import Port
from firmware.model.psn import PSN_MASK
from firmware.model.qp import RTR, RTS, ST_RC, ST_UC, ST_UD, Qp, Shared
from firmware.model.queue_buffer import QueueBuffer
from firmware.model.rings import RecordlessSendQueue, RecvQueue
from firmware.model.segment import TRAIN_BYTE_BUDGET, TRAIN_WQE_BUDGET
from firmware.native.cards import NativeCard
from firmware.native.declarations import CONSTANT, LINE, RUNS, TRAIN_BYTES, constant
from firmware.native.library import loaded
from firmware.transport.completion import GRH_IN_BUFFER
from firmware.transport.port import (
    WIRE,
    accepts,
    egress,
    group_of,
    is_addressed,
    is_multicast,
    network_header,
    origin,
    pkey_at,
    route_over,
    stranger,
    way_back,
)
from vhca.hw.hardware import Through
from vhca.management.partitions import pkeys_match
from vhca.wire.connectx.wqe import BASIC_BLOCK_SIZE
from vhca.wire.packet import ACKNOWLEDGE, RC, UC, WRITE, Packet

_WIRE_SERVICE: Final = {ST_RC: RC, ST_UC: UC}


class Opened(NamedTuple):
    """The two ends of a connection, as they were found; the numbers tell whether they still are what they were."""

    through: Through
    # Nothing that is destroyed or reset is kept alive by the other card; page lists are read as long as their buffers
    # are there.
    far: ref[Hca]
    far_qp: ref[Qp]
    buffers: tuple[ref[QueueBuffer], ref[QueueBuffer]]
    near_card: NativeCard
    far_card: NativeCard
    transitions: tuple[int, int]
    versions: tuple[int, int, int]
    queues: tuple[int, int]
    # Service levels, there and back.
    levels: tuple[int, int]


class Conversation(Shared):
    """One direction of a connection: the argument of its trains, and whom it is with while there may be trains."""

    __slots__ = (
        "alone",
        "argument",
        "far_changes",
        "header",
        "job",
        "key_changes",
        "long",
        "near_changes",
        "opened",
        "pointer",
        "try_at",
        "vector",
    )

    def __init__(self) -> None:
        super().__init__()
        self.try_at = 0
        # Python has the WQE at hand, since the last train has left it.
        self.alone = False
        # The last train was a long one; what the crew calls the train that it has.
        self.long = False
        self.job = 0
        self.opened: Opened | None = None
        # How much had changed on both cards when everything was looked at, which was good.
        self.near_changes = self.far_changes = self.key_changes = -1
        # Of datagrams: the address vector that all of a train have, and their GRH.
        self.vector = b""
        self.header = b""
        ffi = loaded().ffi
        # An array is one piece of memory with its object.
        self.pointer: Any = ffi.new("struct train[1]")
        self.argument: Any = ffi.buffer(self.pointer)


def is_unchanged(conversation: Conversation) -> bool:
    """Tell whether there were only trains on both cards since everything was looked at."""
    opened = conversation.opened
    # The other program first: what was set apart there is taken over then.
    if opened is None or getattr(opened.through.firmware, "hca", None) is not opened.far():
        return False
    near, far = opened.near_card, opened.far_card
    return (
        conversation.near_changes == near.changes
        and conversation.far_changes == far.changes
        and conversation.key_changes == Mkey.changes
        and near.is_mapped
        and far.is_mapped
    )


def is_same(hca: Hca, qp: Qp, opened: Opened) -> bool:
    """Tell whether both ends are still there, and as they were."""
    through, to, to_qp, buffers, _, _, transitions, versions, queues, _ = opened
    far = to()
    far_qp = to_qp()
    present: object = getattr(through.firmware, "hca", None)
    if far is None or far_qp is None or present is not far or hca.is_looked_at or far.is_looked_at:
        return False
    # A queue pair that is destroyed goes through a last transition.
    if transitions[0] != qp.transitions or transitions[1] != far_qp.transitions:
        return False
    send_cq, recv_cq = qp.send_cq, far_qp.recv_cq
    return (
        send_cq is not None
        and recv_cq is not None
        and buffers[0]() is send_cq.buffer
        and buffers[1]() is recv_cq.buffer
        and queues[0] == _form_of(send_cq)
        and queues[1] == _form_of(recv_cq)
        and versions[0] == hca.ports[qp.port].version
        and versions[1] == far.ports[far_qp.port].version
        and versions[2] == far.clears
    )


def may_go(hca: Hca, qp: Qp, far: Hca, opened: Opened) -> bool:
    """Tell whether the way is open at this moment, and bring what C knows of both cards up to date.

    Of a reliable connection nothing is under way, but what is not acknowledged may be, and must not be overtaken.
    """
    return (
        opened.through.is_open(qp.requester.mtu, empty=qp.service != ST_RC)
        and opened.near_card.refresh(hca)
        and opened.far_card.refresh(far)
    )


def is_listening(qp: Qp, far_qp: Qp) -> bool:
    """Tell whether the receive side expects the next message, and nothing else keeps it busy."""
    responder = far_qp.responder
    if far_qp.service == ST_UD:
        return not (responder.held or responder.paging)
    return (
        # Without acknowledgements, a message may have any number.
        (responder.epsn == qp.requester.next_psn & PSN_MASK or qp.service == ST_UC)
        and responder.op < 0
        and not (responder.nak_sent or responder.refusing or responder.paging or responder.stalled)
        and not (responder.replies or responder.held or far_qp.backlog or responder.recv)
        and (far_qp.state == RTS or responder.established)
    )


def _form_of(cq: Cq) -> int:
    """What commands, and other queue pairs, can change about a completion queue, beside its buffer."""
    return cq.log_size << 2 | cq.overrun_ignore << 1 | cq.failed


def open_connection(hca: Hca, qp: Qp, conversation: Conversation) -> Opened | None:
    """Look for the other end of a connection, and note what holds from now on; None if there can be no trains."""
    port, path = hca.ports[qp.port], qp.path
    if path is None:
        return None
    service = _WIRE_SERVICE[qp.service]
    probe = Packet(route_over(port, path), service, WRITE, qp.remote_qpn, 0, pkey=pkey_at(port, qp.pkey_index))
    found = _other_end(hca, qp, probe, qp.service) if egress(port, probe.route) == WIRE else None
    if found is None:
        return None
    through, far, far_qp, far_port = found
    far_path = far_qp.path
    if far_path is None or far_qp.remote_qpn != qp.handle or far_qp.responder.mtu != qp.requester.mtu:
        return None
    far_pkey = pkey_at(far_port, far_qp.pkey_index)
    back = Packet(route_over(far_port, far_path), service, ACKNOWLEDGE, qp.handle, 0, pkey=far_pkey)
    if egress(far_port, back.route) != WIRE:
        return None
    if stranger(far_port, far_path, far_pkey, probe) is not None or stranger(port, path, probe.pkey, back) is not None:
        return None
    answers = way_back(probe.route, back.route)
    if far_pkey != probe.pkey or answers != way_back(probe.route):
        # Switches may let one direction pass only: of a limited member, or on another lane.
        way = hca.through(qp.port, probe.route, answers, (probe.pkey, far_pkey))
        if way is None:
            return None
        through = way
    more = {"source_qpn": qp.handle, "is_unreliable": qp.service == ST_UC}
    return _note(hca, qp, conversation, probe, through, far, far_qp, more, back)


def open_datagrams(hca: Hca, qp: Qp, conversation: Conversation, vector: bytes, probe: Packet) -> Opened | None:
    """As :func:`open_connection`, for datagrams with an address vector, of which `probe` is one without payload."""
    if egress(hca.ports[qp.port], probe.route) != WIRE or is_multicast(probe):
        return None
    found = _other_end(hca, qp, probe, ST_UD)
    if found is None:
        return None
    through, far, far_qp, far_port = found
    if (
        not accepts(far_port, probe)
        or not is_addressed(far_port, probe)
        or probe.qkey != far_qp.q_key
        or not pkeys_match(probe.pkey, pkey_at(far_port, far_qp.pkey_index))
    ):
        return None
    conversation.vector, conversation.header = vector, network_header(probe)
    more = {
        "is_datagram": 1,
        "address_vector": _address(vector),
        "global_header": _address(conversation.header) if conversation.header else 0,
        "grh_in_cqe": GRH_IN_BUFFER if conversation.header else 0,
        "source_qpn": probe.src_qp,
        "pkey": probe.pkey,
        "near_offloads": qp.offloads,
        "far_offloads": far_qp.offloads,
    }
    return _note(hca, qp, conversation, probe, through, far, far_qp, more)


def _other_end(hca: Hca, qp: Qp, probe: Packet, service: int) -> tuple[Through, Hca, Qp, Port] | None:
    """The way of `probe` and the queue pair that it is for, if both ends are of the usual kind."""
    through = hca.through(qp.port, probe.route, way_back(probe.route), (probe.pkey, probe.pkey))
    far = getattr(through.firmware, "hca", None) if through is not None else None
    if through is None or not isinstance(far, Hca) or far.native is None or not _is_common(qp.send_cq):
        return None
    if hca.is_looked_at or far.is_looked_at:
        return None  # C does not tell what it does, and asks nobody
    far_qp = far.qps.get(probe.dest_qp)
    if far_qp is None or far_qp.service != service or far_qp.state not in (RTR, RTS) or far_qp.port != through.port:
        return None
    far_port = far.ports[through.port]
    return (through, far, far_qp, far_port) if far_port.active and _is_common(far_qp.recv_cq) else None


def _is_common(cq: Cq | None) -> bool:
    """Tell whether the engine in C can complete there."""
    return cq is not None and not (cq.failed or cq.padded or cq.compressing)


def _note(
    hca: Hca,
    qp: Qp,
    conversation: Conversation,
    probe: Packet,
    through: Through,
    far: Hca,
    far_qp: Qp,
    more: dict[str, int],
    back: Packet | None = None,
) -> Opened | None:
    """Fill in the part of the argument that stays, from both ends and from `more`; `back` is what answers are like."""
    requester, sq, send_cq, recv_cq = qp.requester, qp.sq, qp.send_cq, far_qp.recv_cq
    if sq is None or isinstance(sq, RecordlessSendQueue) or send_cq is None or recv_cq is None:
        return None
    if sq.base % BASIC_BLOCK_SIZE:
        # Behind a tiny receive queue: blocks may cross pages.
        return None
    rq, srq = receives_of(far_qp), far_qp.srq
    slid, path_bits, sl = origin(far.ports[through.port], probe)
    values = {
        "near_qpn": qp.handle,
        "near_pd": qp.pd,
        "near_user": _user(qp),
        "log_mtu": requester.log_mtu,
        "message_max": requester.message_max,
        "has_grh": bool(group_of(probe)),
        "inline_read": qp.inline_read,
        **_ring("sq", sq.buffer, sq.base, sq.log_size, sq.dbr_addr),
        **_ring("scq", send_cq.buffer, 0, send_cq.log_size, send_cq.dbr_addr),
        "scq_bytes": send_cq.cqe_bytes,
        "scq_ignores": send_cq.overrun_ignore,
        "far_qpn": far_qp.handle,
        "far_pd": far_qp.pd,
        "far_user": _user(far_qp, srq),
        "far_rights": far_qp.remote_rights,
        "inline_receive": far_qp.inline_receive,
        "slid": slid,
        "path_bits": path_bits,
        "sl": sl,
        "has_rq": rq is not None,
        "rq_log_stride": rq.log_stride if rq is not None else 0,
        "rq_pd": far_qp.pd,
        **_ring("rcq", recv_cq.buffer, 0, recv_cq.log_size, recv_cq.dbr_addr),
        "rcq_bytes": recv_cq.cqe_bytes,
        "rcq_ignores": recv_cq.overrun_ignore,
        "wqe_budget": TRAIN_WQE_BUDGET,
        "byte_budget": TRAIN_BYTE_BUDGET,
    }
    if rq is not None:
        values |= _ring("rq", rq.buffer, 0, rq.log_size, rq.dbr_addr)
    if srq is not None:
        values |= {"rq_is_list": not srq.cyclic, "rq_head": srq.head_bytes, "rq_pd": srq.pd}
    values |= more
    constant.pack_into(conversation.argument, 0, *(_signed(values.get(name, 0)) for name in CONSTANT))
    buffers = ref(send_cq.buffer), ref(recv_cq.buffer)
    opened = Opened(
        through,
        ref(far),
        ref(far_qp),
        buffers,
        hca.native,
        far.native,
        (qp.transitions, far_qp.transitions),
        (hca.ports[qp.port].version, far.ports[far_qp.port].version, far.clears),
        (_form_of(send_cq), _form_of(recv_cq)),
        (sl, origin(hca.ports[qp.port], back)[2] if back is not None else 0),
    )
    _note_lines(qp, far_qp, conversation, opened)
    return opened


def _note_lines(qp: Qp, far_qp: Qp, conversation: Conversation, opened: Opened) -> None:
    """Note what a train reads, so that it can be asked for all at once.

    With thousands of connections it is in no cache, and waiting for one after the other takes longer than the train.
    What only :func:`is_same` and :func:`is_listening` read is not among it.
    """
    start = int(loaded().ffi.cast("uintptr_t", conversation.pointer))
    runs = [(start, TRAIN_BYTES)]
    for item in (qp.requester, qp.sq, far_qp.responder, qp, conversation, far_qp, far_qp.rq, opened.through):
        if item is not None:
            runs.append((id(item), type(item).__basicsize__))
    runs.append((id(opened), object.__basicsize__ + (len(opened) + 1) * 8))
    # Of these, the first words tell all.
    for small in (qp.requester.pending, qp.requester.mtu, qp.handle, conversation.argument, opened.far_qp):
        runs.append((id(small), 32))
    words = [at & -LINE | (at + size - 1 & -LINE) - (at & -LINE) >> 6 for at, size in runs]
    opened.near_card.note(qp.handle, words + [0] * (RUNS - len(words)))


def receives_of(qp: Qp) -> RecvQueue | Srq | None:
    """Where the receives of a queue pair come from."""
    return qp.rq if qp.srq is None else qp.srq


def _signed(value: int) -> int:
    """A number of 64 bits as the argument has it; C takes addresses as they are."""
    return value - (1 << 64) if value >> 63 else value


def _address(kept: bytes | bytearray) -> int:
    """Where bytes are, for as long as somebody keeps them."""
    ffi = loaded().ffi
    return int(ffi.cast("intptr_t", ffi.from_buffer(kept)))


def _ring(name: str, buffer: QueueBuffer, base: int, log_size: int, record: int) -> dict[str, int]:
    """Where a ring is, in the words of the argument."""
    place = buffer.place(base)
    listed = place.addr < 0
    return {
        f"{name}_addr": max(place.addr, 0),
        f"{name}_offset": place.offset,
        # The list is the buffer's, which is there as long as this is used.
        f"{name}_list": _address(place.pages) if listed else 0,
        f"{name}_pages": len(place.pages) >> 3 if listed else 0,
        f"{name}_log_page": place.log_page,
        f"{name}_log": log_size,
        f"{name}_record": record,
    }


def _user(qp: Qp, srq: Srq | None = None) -> int:
    """What completions of a queue pair, or of a shared receive queue that serves it, name it by."""
    if qp.user_index != ANY_USER_INDEX:
        return qp.user_index
    return 0 if srq is None else srq.handle
