"""Messages and runs of messages that are long: the window, half the circle of PSNs, 2 GiB."""

import pytest

from firmware.model.counters import Count
from firmware.transport import requester as requester_module
from tests.scenario.tools import FIRST, inject, large_region, sent, stall
from tests.scenario.world import ERR, RTS, ST_RC, ST_UC, End, World, pair
from tests.support.content import some_bytes
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode
from vhca.wire.packet import RC, READ_REQUEST, SEND, UC, WRITE

ONE_GIB = 1 << 30
TWO_GIB = 1 << 31
HALF = (1 << 22) - 1


@pytest.mark.parametrize("opcode", [WqeOpcode.RDMA_WRITE, WqeOpcode.SEND])
@pytest.mark.parametrize("size", [(2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20])
def test_an_unreliable_message_longer_than_any_window_is_sent(opcode: int, size: int) -> None:
    world, a, b = pair(ST_UC, World(32 << 20))
    content = some_bytes(size)
    target, behind = b.buffer(size), b.buffer(8)
    b.post_recv(target, size)
    if opcode == WqeOpcode.SEND:
        a.send(a.buffer(content), size)
    else:
        a.write(a.buffer(content), size, target, b.card.key)
    a.write(a.buffer(b"behind it"), 8, behind, b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]
    assert b.peek(target, size) == content
    assert b.peek(behind, 8) == b"behind i"


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_write_of_more_than_2_gib_is_refused(service: int) -> None:
    world, _, b = pair(service)
    size = TWO_GIB + 4096
    page, rkey = large_region(b, size)
    start = {"op": WRITE, "psn": FIRST, "service": RC if service == ST_RC else UC, "va": page, "rkey": rkey,
             "payload": b"x" * 1024, "end": False}  # fmt: skip
    inject(world, b, dma_length=TWO_GIB + 1, **start)
    assert b.peek(page, 1) == b"\0"
    if service == ST_RC:
        assert "syn=0x61" in world.ladder[-1]
        assert b.qp.state == ERR
    else:
        assert world.b.hca.count[Count.RX_DROP_UC_LENGTH] == 1
        assert b.qp.state == RTS


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_write_of_2_gib_begins(service: int) -> None:
    world, _, b = pair(service)
    page, rkey = large_region(b, TWO_GIB)
    inject(world, b, op=WRITE, psn=FIRST, service=RC if service == ST_RC else UC, va=page, rkey=rkey,
           payload=b"x" * 1024, end=False, dma_length=TWO_GIB)  # fmt: skip
    assert b.peek(page, 1) == b"x"
    assert b.qp.state == RTS


def test_a_read_of_more_than_2_gib_is_refused() -> None:
    world, _, b = pair()
    va, rkey = large_region(b, TWO_GIB + 4096)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=va, rkey=rkey, dma_length=TWO_GIB + 1)
    assert "syn=0x61" in world.ladder[-1]


def test_a_read_of_2_gib_begins() -> None:
    world, _, b = pair()
    world.settle()
    va, rkey = large_region(b, TWO_GIB)
    inject(world, b, op=READ_REQUEST, psn=FIRST, va=va, rkey=rkey, dma_length=TWO_GIB)
    assert world.b.turn()
    assert sent(world, "READ_RESP") > 0
    assert b.qp.state == RTS


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
@pytest.mark.parametrize("size", [1024, 1023])
def test_a_send_of_2_gib_is_taken(service: int, size: int) -> None:
    world, _, b = pair(service)
    page, key = large_region(b, TWO_GIB)
    b.post_recv(sges=[b.sge(page + at, ONE_GIB, key) for at in (0, ONE_GIB)])
    fields = {"op": SEND, "service": RC if service == ST_RC else UC}
    inject(world, b, psn=FIRST, payload=bytes(1024), end=False, **fields)
    # Past the door: two million packets would bring this about.
    b.qp.responder.offset = TWO_GIB - 1024
    inject(world, b, psn=FIRST + 1, payload=bytes(size), start=False, **fields)
    assert [(c.syndrome, c.size) for c in b.recv_cq.poll()] == [(0, TWO_GIB - 1024 + size)]


def long_pair() -> tuple[World, End, End]:
    """A pair that may send the longest messages in the smallest packets."""
    return pair(mtu=1)


def long_read(a: End, b: End, size: int) -> None:
    target, key = large_region(a, size)
    source, rkey = large_region(b, size)
    a.read(target, size, source, rkey, key=key)


@pytest.mark.parametrize(("packets", "starts"), [(HALF - 3, True), (HALF - 2, False)])
def test_no_more_than_half_the_circle_is_outstanding(
    packets: int, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A smaller circle: a message of 1 GiB and a window do not fill half of the real one.
    monkeypatch.setattr(requester_module, "MAX_PACKETS", HALF)
    world, a, b = long_pair()
    world.fault = lambda packet: []
    for _ in range(3):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    long_read(a, b, packets * 256)
    requester = a.qp.requester
    assert requester.max_psn - requester.una == (HALF if starts else 3)
    # What waits goes on when there is room.
    world.fault = None
    stall(world, a)
    while requester.una < FIRST + 3:
        assert world.deliver() or a.card.turn() or b.card.turn()
    while a.card.turn():
        pass
    assert requester.max_psn == FIRST + 3 + packets
    assert [c.syndrome for c in a.send_cq.poll()] == [0] * 3


@pytest.mark.parametrize("size", [0, ONE_GIB + 1])
def test_a_message_longer_than_announced_is_a_local_length_error(size: int) -> None:
    world, a, b = long_pair()
    target, key = large_region(a, TWO_GIB)
    source, rkey = large_region(b, TWO_GIB)
    # A byte count of 0 stands for 2 GiB.
    a.post(WqeOpcode.RDMA_READ, RaddrSegment(raddr=source, rkey=rkey).to_bytes() + a.sge(target, size, key))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_LENGTH_ERR]


def test_no_more_than_the_window_is_under_way_however_many_steps_pass() -> None:
    world, a, b = pair(world=World(32 << 20))
    size = 5 << 20
    a.write(a.buffer(size), size, b.buffer(size), b.card.key)
    for _ in range(10):
        world.now_ns += 10
        a.card.turn()
    assert sum(len(packet.payload) for _, packet in world.queue) == 2 << 20
