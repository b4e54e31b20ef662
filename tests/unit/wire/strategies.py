"""Hypothesis strategies for packets that a wire can carry."""

from hypothesis import strategies as st

from vhca.wire.ib import MTUS_BYTES, mtu_for
from vhca.wire.opcodes import AETH, ATOMIC_ACK_ETH, ATOMIC_ETH, DETH, OPCODES, RETH, XRCETH, Opcode
from vhca.wire.packet import Grh, Packet, Route

u16 = st.integers(0, 0xFFFF)
u24 = st.integers(0, 0xFFFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 2**64 - 1)
gid = st.binary(min_size=16, max_size=16)
ROWS = [row for row in OPCODES if row is not None]
grhs = st.builds(
    Grh,
    gid,
    gid,
    tclass=st.integers(0, 255),
    flow_label=st.integers(0, 0xFFFFF),
    hop_limit=st.integers(0, 255),
)


@st.composite
def packets(draw: st.DrawFn, row: Opcode | None = None) -> Packet:
    row = row or draw(st.sampled_from(ROWS))
    payload = draw(st.binary(max_size=70)) if row.payload else b""
    packet = Packet(
        route=Route(
            draw(u16), draw(u16), sl=draw(st.integers(0, 15)), vl=draw(st.integers(0, 15)), grh=draw(st.none() | grhs)
        ),
        service=row.service,
        op=row.op,
        dest_qp=draw(u24),
        psn=draw(u24),
        payload=payload,
        start=row.start,
        end=row.end,
        mtu=mtu_for(len(payload)),
        pkey=draw(u16),
        solicited=draw(st.booleans()),
        ack_req=draw(st.booleans()),
        migration=draw(st.booleans()),
        becn=draw(st.booleans()),
        fecn=draw(st.booleans()),
        good=draw(st.booleans()),
    )
    if row.headers & (RETH | ATOMIC_ETH):
        packet.va, packet.rkey = draw(u64), draw(u32)
    if row.headers & RETH:
        packet.dma_length = draw(u32)
    if row.headers & ATOMIC_ETH:
        packet.swap_add, packet.compare = draw(u64), draw(u64)
    if row.headers & AETH:
        packet.syndrome, packet.msn = draw(st.integers(0, 255)), draw(u24)
    if row.headers & ATOMIC_ACK_ETH:
        packet.original = draw(u64)
    if row.headers & DETH:
        packet.qkey, packet.src_qp = draw(u32), draw(u24)
    if row.headers & XRCETH:
        packet.xrc_srqn = draw(u24)
    if row.immediate:
        packet.immediate = draw(u32)
    if row.invalidate:
        packet.invalidate_rkey = draw(u32)
    return packet


@st.composite
def bursts(draw: st.DrawFn) -> Packet:
    """A burst of 1..5 packets of a SEND, WRITE or READ response."""
    row = draw(st.sampled_from([r for r in ROWS if r.payload and r.service != 0x60]))
    mtu = draw(st.sampled_from(MTUS_BYTES[:2]))
    count = draw(st.integers(1, 5))
    tail = draw(st.integers(1, mtu)) if row.end else mtu
    packet = draw(packets(row))
    packet.mtu = mtu
    packet.count = count
    packet.payload = bytes((count - 1) * mtu + tail)
    return packet
