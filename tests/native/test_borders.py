"""What a hostile guest, peer or client could make of trains."""

import fcntl
import os
from typing import Any

import pytest

from firmware.model.counters import Count
from firmware.model.qp import ERR
from firmware.native.library import loaded
from tests.native.test_trains import rails
from tests.scenario.paging import PRESENT, Region, faults, resume
from tests.scenario.world import CompletionQueue, End, World, pair
from tests.unit.fabric.bench import Bench
from vhca.vfio_user import dma
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.proto import DmaFlags
from vhca.wire.connectx.cmd import ModifyCqIn, Op
from vhca.wire.connectx.wqe import CtrlSegment, RaddrSegment, WqeOpcode
from vhca.wire.packet import Packet, Route

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")

HIGH = 0xFFFF_FFFF_FFFF_F000


class HighRecord(CompletionQueue):
    """Its doorbell record has an address that CREATE_CQ takes, and that needs 64 bits."""

    def __init__(self, world: World) -> None:
        super().__init__(world.b)
        self.cqn = world.b.make_cq(self.addr, 64 << 7, log_cq_size=7, dbr_addr=HIGH)


def test_a_peers_record_at_a_high_address_does_not_stop_the_card() -> None:
    """The far guest has the record of its CQ above 2**63; the near guest's card fails in a WRITE to it."""
    world, _, _ = rails()
    a, b = End(world.a), End(world.b, cq=HighRecord(world))
    a.connect(b)
    b.connect(a)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert [completion.good for completion in a.send_cq.poll()] == [True]


def test_an_own_record_at_a_high_address_does_not_stop_the_card() -> None:
    world, _, _ = rails()
    a, b = End(world.b, cq=HighRecord(world)), End(world.a)
    a.connect(b)
    b.connect(a)
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()


@pytest.mark.parametrize("of_far", [False, True])
def test_a_failed_completion_queue_takes_no_completions(of_far: bool) -> None:
    """Overrun by one queue pair, then polled: another queue pair with that queue must not complete there."""
    world, _, _ = rails()
    queue = CompletionQueue(world.b if of_far else world.a, log_size=1)

    def made() -> tuple[End, End]:
        a, b = End(world.a, cq=None if of_far else queue), End(world.b, cq=queue if of_far else None)
        a.connect(b)
        b.connect(a)
        return a, b

    (a, b), (c, d) = made(), made()
    for one, other in ((a, b), (c, d)):
        other.post_recv(other.buffer(8), 8)
        one.send(one.buffer(8), 8)
        world.settle()
        assert len(queue.poll()) == 1
    for _ in range(4):
        d.post_recv(d.buffer(8), 8)
        c.send(c.buffer(8), 8)
    world.settle()
    assert queue.cq.failed
    queue.poll()
    before = queue.cq.producer
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.settle()
    assert queue.cq.producer == before
    assert (b if of_far else a).qp.state == ERR


def test_a_queue_that_no_longer_ignores_overruns_fails() -> None:
    """MODIFY_CQ changes cqc.oi of a queue that trains use."""
    world, _, _ = rails()
    queue = CompletionQueue(world.a, log_size=1)
    queue.cqn = world.a.make_cq(queue.addr, 64 << 1, log_cq_size=1, dbr_addr=queue.dbr, oi=1)
    a, b = End(world.a, cq=queue), End(world.b)
    a.connect(b)
    b.connect(a)
    for _ in range(4):
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert not queue.cq.failed
    change = ModifyCqIn(cqn=queue.cqn, modify_field_select_resize_field_select=4)
    change.cq_context.oi = 0
    a.card.run(Op.MODIFY_CQ, change)
    assert not queue.cq.overrun_ignore
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    world.settle()
    assert queue.cq.failed


def test_a_way_with_packets_on_it_is_not_open_to_datagrams() -> None:
    """Datagrams that the engine in Python has sent are still on the cables: a train would overtake them."""
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    found = a.port.through(Route(b.lid, a.lid), Route(a.lid, b.lid))
    assert found is not None
    way, _ = found
    assert way.is_open(256, empty=True)
    a.port.send(Packet(Route(b.lid, a.lid), 3, 0, 7, 0, b"first"))
    assert not way.is_open(256, empty=True)
    # A connection knows that nothing of its own is there.
    assert way.is_open(256)


def test_spans_of_many_windows_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with 65535 windows that changes one of them before each train of a peer."""
    looked: list[Any] = []
    real = dma._address
    monkeypatch.setattr(dma, "_address", lambda memory: looked.append(0) or real(memory))  # type: ignore[func-returns-value]
    table = DmaTable()
    fd = os.memfd_create("guest", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, 1 << 12)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    for number in range(2000):
        table.map(number << 13, 1 << 12, 0, DmaFlags.READ | DmaFlags.WRITE, fd)
    table.spans()
    assert len(looked) <= 65
    table.unmap_all()
    os.close(fd)


@pytest.mark.parametrize(("address", "offset", "spans"), [(0x1000, 0x2000, 1), (0x1000, 0x40, 1), (0x1000, 0x28, 0)])
def test_what_is_aligned_otherwise_on_the_bus_is_not_reached_by_address(address: int, offset: int, spans: int) -> None:
    """A completion's last 8 bytes are stored as one word: aligned on the bus, it must be so in this process."""
    table = DmaTable()
    fd = os.memfd_create("guest", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, 1 << 14)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    table.map(address, 1 << 12, offset, DmaFlags.READ | DmaFlags.WRITE, fd)
    found = table.spans()
    assert len(found) == spans
    assert all((span.place - span.start) % 64 == 0 for span in found)
    table.write(address, b"by copies")
    assert table.read(address, 9) == b"by copies"
    table.unmap_all()
    os.close(fd)


def test_a_receive_that_was_taken_is_not_passed_over() -> None:
    """A SEND has taken a receive whose pages were missing; its sender starts anew and goes on where it was."""
    world, a, b = pair()
    region = Region(world.b, 1)
    b.post_recv(region.addr, 64, key=region.key)
    b.post_recv(b.buffer(64), 64)
    a.send(a.buffer(64), 64)
    world.settle()
    (fault,) = faults(world.b)
    assert b.qp.responder.recv is not None
    a.apply(Op.QP_2RST)
    region.set(PRESENT)
    assert resume(world.b, fault.token) == 0
    world.settle()
    psn = b.qp.responder.epsn
    a.sq_posted = 0
    a.write_record()
    a.to_init()
    a.to_rtr(b)
    a.to_rts(next_send_psn=psn)
    world.lay_rails()
    # The first request after a NAK goes in packets.
    a.read(a.buffer(64), 64, b.buffer(64), b.card.key)
    world.pass_time(10_000_000)
    a.send(a.buffer(64), 64)
    world.settle()
    assert [completion.counter for completion in b.recv_cq.poll()] == [0]


def test_held_events_count_solicited_completions_alone() -> None:
    """Armed for solicited completions and moderated: the others do not bring the event nearer."""
    events = []
    for laid in (False, True):
        world = World()
        world.rails = laid
        queue = CompletionQueue(world.b)
        queue.cq.max_count, queue.cq.period_us = 3, 1000
        a, b = End(world.a), End(world.b, cq=queue)
        a.connect(b)
        b.connect(a)
        queue.arm(solicited_only=True)
        for number in range(5):
            b.post_recv(b.buffer(8), 8)
            a.send(a.buffer(8), 8, se=int(number == 0), ring=number == 4)
        world.settle()
        events.append([event.event_type for event in world.b.new_events()])
    assert events[0] == events[1]


def test_blocks_that_cross_pages_of_a_list_are_read_as_they_lie() -> None:
    """A receive queue of 16 bytes in front: the blocks of the send queue are aligned to 16 bytes, not to 64."""
    world, _, _ = rails()
    place = world.a.alloc(3 * 4096)
    pages = [place, place + 8192, place + 4096]
    a, b = End(world.a, log_sq=7, log_rq=0, log_rq_stride=0, pages=pages), End(world.b)
    a.connect(b)
    b.connect(a)
    a.sq_addr = place + 16
    target, source = b.buffer(64), a.buffer(b"x" * 32)
    for number in range(63):
        a.write(source, 0, target, b.card.key, ring=number == 62)
        if number == 31:
            a.ring()
    world.settle()
    assert a.card.hca.count[Count.TRAIN_MESSAGES] in (0, 63)
    memory = world.a.memory
    segments = RaddrSegment(raddr=target, rkey=b.card.key).to_bytes() + a.sge(source, 16) + a.sge(source + 16, 16)
    wrong = a.sge(a.buffer(b"y" * 16), 16)
    control = CtrlSegment(wqe_index=63, opcode=WqeOpcode.RDMA_WRITE, qpn=a.qpn, ds=4, ce=2).to_bytes()
    whole = control + segments
    memory.write(pages[0] + 16 + 63 * 64, whole[:48])
    memory.write(pages[1], whole[48:])
    memory.write(pages[0] + 4096, wrong)
    a.sq_posted += 1
    a.ring()
    world.settle()
    assert b.peek(target, 32) == b"x" * 32
