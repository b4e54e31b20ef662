"""Whatever a guest posts and whatever a peer sends: an error or a counted drop, never an exception or a hang."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmware.model.qp import ERR
from firmware.transport.attributes import live_context
from firmware.transport.lifecycle import TRANSITIONS, find
from tests.packets import packet_of
from tests.scenario.world import BASE, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UC, ST_UD, ST_XRC, End, World
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.connectx.wqe import CtrlSegment, WqeOpcode
from vhca.wire.packet import Grh

SERVICES = [ST_RC, ST_UC, ST_UD, ST_XRC, ST_QP0, ST_QP1, ST_REG_UMR]
COMMANDS = sorted({row.cause for row in TRANSITIONS if isinstance(row.cause, Op)})
RELAXED = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])

address = st.one_of(st.integers(BASE, BASE + (1 << 20)), st.integers(0, (1 << 64) - 1))
word = st.one_of(st.integers(0, 0x3FFF), st.integers(0, (1 << 32) - 1), st.sampled_from([0x80000010, 0x1000000]))


def ends(service: int) -> tuple[World, End, End]:
    world = World(1 << 20)
    a, b = End(world.a, service), End(world.b, service)
    for end, peer in ((a, b), (b, a)):
        end.to_init()
        if service in (ST_RC, ST_UC, ST_XRC):
            end.to_rtr(peer)
        else:
            end.to_rtr()
        end.to_rts(path_ack_timeout=1)
        for _ in range(3):
            end.post_recv(end.buffer(2048), 2048)
    return world, a, b


@RELAXED
@given(
    st.sampled_from(SERVICES),
    st.lists(
        st.tuples(
            st.sampled_from([*WqeOpcode, 0x55]),
            st.integers(0, 20),
            st.lists(st.tuples(word, word, address), max_size=6),
            st.integers(0, 255),
            word,
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_any_wqe_ends_in_a_completion_or_an_error(
    service: int, wqes: list[tuple[int, int, list[tuple[int, int, int]], int, int]]
) -> None:
    world, a, _ = ends(service)
    for opcode, units, segments, flags, imm in wqes:
        body = b"".join(
            one.to_bytes(4, "big") + (a.card.key if two & 1 else two).to_bytes(4, "big") + addr.to_bytes(8, "big")
            for one, two, addr in segments
        )
        ctrl = CtrlSegment(wqe_index=a.sq_posted & 0xFFFF, opcode=opcode, qpn=a.qpn, ds=units or 1 + len(segments),
                           fm=flags >> 5, ce=2, imm=imm).to_bytes()  # fmt: skip
        wqe = ctrl + body
        a.post_raw(wqe + bytes(-len(wqe) % 64))
    world.pass_time(400_000_000)
    assert a.qp.state in (3, 4, ERR)
    assert a.qp.sq is not None
    assert a.qp.sq.consumer == a.sq_posted or a.qp.state == 3
    assert not a.qp.requester.pending or a.qp.state == 3


@RELAXED
@given(st.sampled_from(SERVICES), st.binary(max_size=300), st.integers(1, 0xFFFF))
def test_any_bytes_in_the_send_ring(service: int, content: bytes, posted: int) -> None:
    world, a, _ = ends(service)
    a.post_raw(content + bytes(-len(content) % 64), ring=False)
    a.sq_posted = posted
    a.ring()
    world.pass_time(400_000_000)
    assert a.qp.state in (3, 4, ERR)


packets: st.SearchStrategy[dict[str, object]] = st.builds(
    dict,
    op=st.integers(0, 8),
    psn=st.one_of(st.integers(0xFFFFEC, 0xFFFFFF), st.integers(0, 0xFFFFFF), st.integers(0, 20)),
    payload=st.one_of(st.binary(max_size=60), st.sampled_from([bytes(1024), bytes(2048), bytes(256), bytes(5000)])),
    count=st.integers(1, 4),
    start=st.booleans(),
    end=st.booleans(),
    mtu=st.sampled_from([256, 1024, 1024, 1024, 4096]),
    va=address,
    dma_length=st.one_of(st.integers(0, 5000), st.integers(0, (1 << 32) - 1)),
    swap_add=st.integers(0, (1 << 64) - 1),
    compare=st.integers(0, (1 << 64) - 1),
    immediate=st.one_of(st.none(), st.integers(0, (1 << 32) - 1)),
    invalidate_rkey=st.one_of(st.none(), st.integers(0, (1 << 32) - 1)),
    syndrome=st.one_of(st.sampled_from([0, 0x1F, 0x20, 0x3F, 0x60, 0x61, 0x62, 0x63]), st.integers(0, 255)),
    msn=st.integers(0, 0xFFFFFF),
    original=st.integers(0, (1 << 64) - 1),
    qkey=st.sampled_from([0x1234, 0x80010000, 0]),
    src_qp=st.integers(0, 0xFFFFFF),
    xrc_srqn=st.integers(0, 3),
    ack_req=st.booleans(),
    solicited=st.booleans(),
    grh=st.one_of(st.none(), st.just(Grh(bytes(16), bytes(16)))),
    vl=st.sampled_from([0, 15]),
)


@RELAXED
@given(
    st.sampled_from(SERVICES),
    st.lists(st.tuples(packets, st.booleans(), st.sampled_from([None, 0, 1, 0xFFFFFF, 0x999])), min_size=1, max_size=8),
    st.booleans(),
)
def test_any_packet(service: int, arriving: list[tuple[dict[str, object], bool, int | None]], busy: bool) -> None:
    world, a, b = ends(service)
    wire_service = {ST_RC: 0, ST_UC: 0x20, ST_XRC: 0xA0}.get(service, 0x60)
    if busy and service == ST_RC:
        world.fault = lambda packet: []
        b.write(b.buffer(3000), 3000, a.buffer(3000), a.card.key)
        b.read(b.buffer(3000), 3000, a.buffer(3000), a.card.key)
        world.fault = None
    for fields, own_key, qpn in arriving:
        addressed = {"dlid": 2, "slid": 1, "service": wire_service, "dest_qp": b.qpn if qpn is None else qpn}
        packet = packet_of(**addressed, rkey=b.card.key if own_key else 0x1234, **fields)
        world.wire(world.a, packet)
    world.pass_time(400_000_000)
    assert b.qp.state in (3, 4, ERR)
    assert a.qp.state in (3, 4, ERR)


@RELAXED
@given(
    st.sampled_from(SERVICES),
    st.lists(
        st.tuples(st.sampled_from(COMMANDS), st.integers(0, (1 << 32) - 1), st.binary(min_size=232, max_size=232)),
        min_size=1,
        max_size=8,
    ),
)
def test_any_transition_with_any_context(service: int, commands: list[tuple[Op, int, bytes]]) -> None:
    world = World(1 << 20)
    end = End(world.a, service)
    for op, mask, raw in commands:
        before = end.qp.state
        status = world.a.modify_qp(op, end.qpn, mask, Qpc.from_bytes(raw))[0]
        assert status in (0, 0x03, 0x05, 0x10)
        if status:
            assert end.qp.state == before
            assert end.qp.refusal
        else:
            row = find(before, op, service)
            assert row is not None
            assert end.qp.state == row.target
        assert live_context(end.qp).state == end.qp.state
    world.pass_time(10_000_000)
