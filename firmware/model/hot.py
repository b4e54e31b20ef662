"""What every message reads and writes: the blocks of queue pairs, rings, completion queues and keys.

Classes elsewhere add to a block what only Python needs: references, lists, contexts.
"""

from dataclasses import field
from typing import Final

from firmware.model.block import I64, U8, U16, U32, U64, Flag, block
from firmware.model.ledger import HcaObject
from firmware.model.segment import BURST_BYTES
from vhca.wire.connectx.cqc import CqArmState
from vhca.wire.connectx.mkey import QPN_ANY, AccessMode
from vhca.wire.connectx.qpc import QpState

# The user index of a queue that has none: its completions carry the number of the queue pair alone.
ANY_USER_INDEX: Final = 0xFFFFFF
# The operation of a responder between two messages.
NO_MESSAGE: Final = -1


@block
class QpBlock(HcaObject):
    """A queue pair: `service` (qpc.st), `state` (qpc.state), and what the transitions set.

    `inline_receive` and `inline_read`: data up to so many bytes are put into the completion instead of memory, of
    receives; of READs and atomics. `turns`: the kinds of work for which it stands in the card's line
    (:mod:`firmware.model.turns`). `cq_lost`: the host knows that a completion could not be written. `exempt_from_pd`:
    the card's registration queue may use and change keys of every protection domain. `offloads`: its datagrams carry
    IP, of which the card knows headers and checksums.
    """

    service: U8 = field(kw_only=True)
    state: U8 = int(QpState.RST)
    port: U8 = 1
    turns: U8 = 0
    pd: U32 = 0
    remote_qpn: U32 = 0
    pkey_index: U16 = 0
    inline_receive: U16 = 0
    inline_read: U16 = 0
    q_key: U32 = 0
    remote_rights: U8 = 0
    min_rnr_nak: U8 = 0
    cq_lost: Flag = False
    exempt_from_pd: Flag = False
    offloads: Flag = False
    # How many rows of the life cycle it has been through.
    transitions: U32 = 0
    last_wqe_reported: Flag = False
    user_index: U32 = ANY_USER_INDEX


@block
class RequesterBlock:
    """Send side of a queue pair; PSNs are free running.

    `cursor` is the place in the list of WQEs under way of the one that is sent up to `send_psn`. `una` is the oldest
    PSN that is not acknowledged, `max_psn` the one behind the newest that was ever sent (a retry moves `send_psn`
    back). `reads` are READs and atomics outstanding. `since_ack_req`: packets since the last with AckReq.
    `burst_most` is the longest burst in bytes, `burst_bytes` that of the message at hand: less than usual if its memory
    is in many pieces. `pkey` and `egress` hold for the step under way. `connection` and `connection_psn` are number and
    first PSN of a DC initiator's connection. `paging`: a datagram that is to be sent waits for pages. `lso_done`: the
    data of a large send at the head of the queue that its segments have carried already, in bytes.
    """

    mtu: U32 = 256
    log_mtu: U8 = 8
    retry_count: U8 = 0
    rnr_retry: U8 = 0
    rnr_waiting: Flag = False
    paging: Flag = False
    egress: U8 = 0
    pkey: U16 = 0
    message_max: I64 = 1 << 30
    timeout_ns: I64 = 0
    next_psn: I64 = 0
    send_psn: I64 = 0
    una: I64 = 0
    max_psn: I64 = 0
    ssn: I64 = 0
    rewound_at: I64 = -1
    cursor: U32 = 0
    reads: U32 = 0
    read_limit: U32 = 1
    retries_left: U32 = 0
    rnr_left: U32 = 0
    since_ack_req: U32 = 0
    burst_most: U32 = BURST_BYTES
    burst_bytes: U32 = BURST_BYTES
    connection: U32 = 0
    connection_psn: U32 = 0
    lso_done: U32 = 0
    # How many WQEs under way the card's budget counts.
    charged: U32 = 0


@block
class ResponderBlock:
    """Receive side of a connected queue pair; PSNs are as on the wire.

    `op` is the operation of the message under way (-1: none), `offset` the bytes of it that arrived. With `refusing`
    the last reply ends the connection, and no request is taken any more. While pages are missing, `paging` is set if
    requests cannot be stored, `stalled` if replies cannot be sent.
    """

    mtu: U32 = 256
    epsn: U32 = 0
    msn: U32 = 0
    nak_sent: Flag = False
    established: Flag = False
    refusing: Flag = False
    paging: Flag = False
    stalled: Flag = False
    op: I64 = NO_MESSAGE
    offset: I64 = 0
    length: I64 = 0
    va: U64 = 0
    rkey: U32 = 0
    resource_limit: U32 = 1
    # Bytes that the card's budget counts for answers that are kept, and how many replies it counts.
    resource_bytes: I64 = 0
    charged: U32 = 0


@block
class SendRing:
    """Send queue: a ring of 64-byte basic blocks (BB); indexes are free running.

    `consumer` counts executed BBs, `producer` those that the host has posted. What is posted before `flush_end` was
    posted before the queue's last error, and is flushed. `linear` is the bus address of the ring, -1 if its pages are
    not contiguous; `dbr_addr` that of its doorbell record.
    """

    log_size: U8 = field(kw_only=True)
    dbr_addr: U64 = field(kw_only=True)
    linear: I64 = field(kw_only=True)
    producer: I64 = 0
    consumer: I64 = 0
    flush_end: I64 = 0


@block
class ReceiveRing:
    """Receive queue of one queue pair: a ring of strides; `consumer` counts WQEs taken. See :class:`SendRing`."""

    log_size: U8 = field(kw_only=True)
    log_stride: U8 = field(kw_only=True)
    dbr_addr: U64 = field(kw_only=True)
    linear: I64 = field(kw_only=True)
    consumer: I64 = 0
    # Receives before this index are being flushed.
    flush_end: I64 = 0


@block
class CqBlock(HcaObject):
    """Completion queue; free running indices, `cqe_bytes` is 64 or 128, `dbr_addr` the bus address of its record.

    A completion is the second half of a 128-byte entry; the first half is written with inline data only, or, if the
    queue is `padded`, always. `last_solicited` is the index of the last solicited completion (-1: none), `notified` the
    producer's index when the last event was sent: what is in front of it, the host has been told of. An event is held
    back until `max_count` completions are there, of which there are `held`, or the first is `period_us` old.
    `compressing`: completions that are alike are written together.
    """

    log_size: U8 = field(kw_only=True)
    cqe_bytes: U8 = field(kw_only=True)
    dbr_addr: U64 = field(kw_only=True)
    linear: I64 = -1
    padded: Flag = False
    compressing: Flag = False
    overrun_ignore: Flag = False
    failed: Flag = False
    arm_state: U8 = int(CqArmState.FIRED)
    uar: U32 = 0
    producer: I64 = 0
    consumer: I64 = 0
    last_solicited: I64 = -1
    notified: I64 = 0
    period_us: U32 = 0
    max_count: U32 = 0
    held: U32 = 0


@block
class MkeyBlock(HcaObject):
    """Memory key: who may do what with which addresses.

    `length` is in bytes, `capacity_octwords` the size of the translation table in 16-byte units. `qpn` is QPN_ANY or
    the one queue pair that may use the key (memory window of type 2). If it is `paged`, its page entries carry rights,
    and pages may be missing. `device_offset` is where a MEMIC key begins in BAR0.

    Of the translation, accesses have found out: how many page entries have been `looked_at`, whether there is nothing
    more to look at (`surveyed`), and then the bus address of the first byte if all pages are contiguous (`linear`), or
    -1.
    """

    variant: U8 = 0
    rights: U8 = 0
    mode: U8 = int(AccessMode.PA)
    log_page_size: U8 = 12
    length64: Flag = False
    paged: Flag = False
    free: Flag = False
    umr_enabled: Flag = False
    remote_invalidate: Flag = False
    surveyed: Flag = False
    pd: U32 = 0
    qpn: U32 = QPN_ANY
    start: U64 = 0
    length: U64 = 0
    linear: I64 = -1
    looked_at: I64 = 0
    capacity_octwords: I64 = 0
    device_offset: I64 = 0
