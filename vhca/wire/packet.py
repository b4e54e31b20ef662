"""A packet on the cable, or a burst: consecutive packets of one message that travel as one object.

Like the segmentation offload of an Ethernet stack, a burst is cut into MTU-sized packets only where somebody looks at
packets (capture, faults, a real boundary); see :func:`vhca.wire.ib.split`. A burst of one is a packet, so engines have
one code path. CRCs are not carried: `good` says that they would be right.

Field names are those of the IBTA headers (chapters 5, 7, 8 and 9 of volume 1).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

# Transport services: the upper three bits of the BTH opcode, in place.
RC: Final = 0x00
UC: Final = 0x20
RD: Final = 0x40
UD: Final = 0x60
XRC: Final = 0xA0
# In the range that is left to manufacturers: the dynamically connected transport. Its packets are our own.
DC: Final = 0xC0

# Operations, independent of service and of the place in a message.
SEND: Final = 0
WRITE: Final = 1
READ_REQUEST: Final = 2
READ_RESPONSE: Final = 3
ACKNOWLEDGE: Final = 4
ATOMIC_ACKNOWLEDGE: Final = 5
COMPARE_SWAP: Final = 6
FETCH_ADD: Final = 7

PERMISSIVE_LID: Final = 0xFFFF
MULTICAST_LID_FIRST: Final = 0xC000

MANAGEMENT_VL: Final = 15
DEFAULT_PKEY: Final = 0xFFFF
# Packet sequence numbers are numbers modulo 2**24.
PSN_MASK: Final = 0xFFFFFF


class Grh(NamedTuple):
    """Global route header; GIDs are 16 bytes, `hop_limit` and `tclass` 8 bits, `flow_label` 20 bits."""

    sgid: bytes
    dgid: bytes
    tclass: int = 0
    flow_label: int = 0
    hop_limit: int = 0


class Route(NamedTuple):
    """How a packet travels: its local route header and, with `grh`, a global one. Never changed: packets share it."""

    dlid: int
    slid: int
    sl: int = 0
    vl: int = 0
    grh: Grh | None = None

    @property
    def is_multicast(self) -> bool:
        """Whether the DLID addresses a group."""
        return MULTICAST_LID_FIRST <= self.dlid < PERMISSIVE_LID


@dataclass(slots=True)
class Packet:
    """What a packet says, from BTH on, and the `route` by which it travels.

    It stands for `count` consecutive packets of one message, first PSN `psn`, cut at `mtu` bytes. `start`/`end` tell
    whether the burst holds the first/last packet of its message. `payload` holds the data of all packets, without
    padding. Every packet but the message's last carries exactly `mtu` bytes. Extended headers are attributes of the
    message: RETH and atomic fields matter where `start` is set, immediate and IETH where `end` is set, AETH on
    acknowledgements and on the first and last packet of a READ response.
    """

    route: Route
    service: int
    op: int
    dest_qp: int
    psn: int
    payload: bytes = b""
    count: int = 1
    start: bool = True
    end: bool = True
    mtu: int = 256
    pkey: int = 0xFFFF
    solicited: bool = False
    ack_req: bool = False
    migration: bool = True
    becn: bool = False
    fecn: bool = False
    # RETH, and address and key of AtomicETH
    va: int = 0
    rkey: int = 0
    dma_length: int = 0
    # AtomicETH: for compare-and-swap `swap_add` is the new value
    swap_add: int = 0
    compare: int = 0
    # ImmDt / IETH (host integers), None if the header is absent
    immediate: int | None = None
    invalidate_rkey: int | None = None
    # AETH
    syndrome: int = 0
    msn: int = 0
    # AtomicAckETH
    original: int = 0
    # DETH
    qkey: int = 0
    src_qp: int = 0
    # XRCETH
    xrc_srqn: int = 0
    # DCETH, with `src_qp`: access key of the target, number of the connection and its first PSN
    dc_key: int = 0
    dc_connection: int = 0
    dc_psn: int = 0
    # False: ICRC or VCRC would not match (a bit was flipped on the way)
    good: bool = True
