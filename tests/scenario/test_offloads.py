"""Offloads for IP over InfiniBand: checksums, and large sends that the card cuts into segments."""

from random import Random

import pytest

from firmware.model.capabilities import LOG_MAX_LSO
from firmware.model.counters import RX_UD_PACKETS, TX_UD_PACKETS, Count
from firmware.model.qp import SQER
from firmware.model.rings import SendQueue
from tests.scenario.paging import PAGE, PRESENT, Region, answer, faults
from tests.scenario.world import ST_RC, ST_UD, End, SharedQueue, World
from tests.support.commands import CommandFailed
from tests.support.content import some_bytes
from tests.support.ip import TCP, UDP, Ip, ip_packet
from vhca.hw.memory import DmaError
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqe import Cqe64, CqeSyndrome
from vhca.wire.connectx.qpc import ServiceType
from vhca.wire.connectx.srq import WqType
from vhca.wire.connectx.wqe import DatagramSegment, EthSegment, WqeOpcode
from vhca.wire.ipoib import with_checksums

NEITHER, L3, L4, BOTH = (0, 0), (1, 0), (0, 1), (1, 1)


def offload_pair(near: bool = True, far: bool = True) -> tuple[World, End, End]:
    world = World()
    a, b = (End(card, ST_UD, ulp_stateless_offload_mode=int(has)) for card, has in ((world.a, near), (world.b, far)))
    a.connect(b, mtu=5)
    b.connect(a, mtu=5)
    return world, a, b


def address(end: End) -> bytes:
    return DatagramSegment(q_key=0x1234, ext=1, dqpn=end.qpn, rlid=end.card.port.lid).to_bytes()


def ethernet(header: bytes = b"", mss: int = 0, checksums: tuple[int, int] = NEITHER) -> bytes:
    """Pad and Ethernet segment, with headers of an LSO; `checksums` of IP, and of TCP or UDP, to be filled in."""
    l3, l4 = checksums
    first = header[:2].ljust(2, b"\0")
    start = EthSegment(l3_csum=l3, l4_csum=l4, mss=mss, inline_hdr_sz=len(header), inline_hdr_start=first).to_bytes()
    rest = header[2:]
    return bytes(16) + start + rest + bytes(-len(rest) % 16)


def send(a: End, b: End, content: bytes, checksums: tuple[int, int]) -> None:
    a.post(WqeOpcode.SEND, address(b) + ethernet(checksums=checksums) + a.sge(a.buffer(content), len(content)))


def large_send(a: End, b: End, header: bytes, content: bytes, mss: int) -> None:
    """Data in two pieces, the first of an odd length."""
    addr, cut = a.buffer(content), len(content) // 2 | 1
    pieces = a.sge(addr, cut) + (a.sge(addr + cut, len(content) - cut) if len(content) > cut else b"")
    a.post(WqeOpcode.LSO, address(b) + ethernet(header, mss, BOTH) + pieces)


class Receiver:
    """Buffers for datagrams, and what has come into them."""

    def __init__(self, end: End, count: int, size: int = 4096 + 40) -> None:
        self.end = end
        self.places = [end.buffer(size) for _ in range(count)]
        for place in self.places:
            end.post_recv(place, size)
        self.seen = 0

    def packets(self) -> list[tuple[bytes, int, int]]:
        """Payload of what has come, and whether the completion calls checksums of IP and TCP or UDP good."""
        found = []
        for got in self.end.recv_cq.poll():
            assert got.good
            cqe = Cqe64.from_bytes(self.end.recv_cq.raw(self.seen))
            found.append((self.end.peek(self.places[self.seen] + 40, got.size - 40), cqe.l3_ok, cqe.l4_ok))
            self.seen += 1
        return found


@pytest.mark.parametrize("version", [4, 6])
def test_a_large_send_arrives_in_segments(version: int) -> None:
    world, a, b = offload_pair()
    random = Random(version)
    ip = Ip(random, version=version, protocol=TCP)
    header, content = ip_packet(random, ip, b""), some_bytes(10_001)
    receiver = Receiver(b, 12)
    large_send(a, b, header, content, 1000)
    world.settle()
    assert [done.good for done in a.send_cq.poll()] == [True]
    packets = receiver.packets()
    assert [len(packet) - len(header) for packet, _, _ in packets] == [1000] * 10 + [1]
    assert b"".join(packet[len(header) :] for packet, _, _ in packets) == content
    first = ip.tcp(header).sequence
    for number, (packet, l3, l4) in enumerate(packets):
        assert ip.holds(packet)
        assert (l3, l4) == (1, 1)
        assert ip.tcp(packet).sequence == (first + number * 1000) % (1 << 32)
    assert a.qp.requester.lso_done == 0
    assert world.a.hca.count[TX_UD_PACKETS] == world.b.hca.count[RX_UD_PACKETS] == 11


def test_a_long_large_send_takes_several_turns_and_others_have_theirs() -> None:
    world, a, b = offload_pair()
    random = Random(1)
    header, content = ip_packet(random, Ip(random, protocol=TCP), b""), some_bytes(300)
    other, far = End(world.a, ST_UD), End(world.b, ST_UD)
    other.connect(far)
    far.connect(other)
    target = far.buffer(140)
    far.post_recv(target, 140)
    large_send(a, b, header, content, 1)
    other.datagram(other.buffer(b"x" * 100), 100, world.b.port.lid, far.qpn)
    # All but the turns that are left: the second queue pair's datagram has gone before the large send is through.
    world.a.turn()
    world.a.turn()
    assert 0 < a.qp.requester.lso_done < 300
    assert len(other.send_cq.poll()) == 1
    world.settle()
    assert a.qp.requester.lso_done == 0
    assert [done.good for done in a.send_cq.poll()] == [True]
    assert world.a.hca.count[TX_UD_PACKETS] == 301


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("checksums", [NEITHER, L3, L4, BOTH])
def test_checksums_are_filled_in_where_the_request_asks_for_it(protocol: int, checksums: tuple[int, int]) -> None:
    world, a, b = offload_pair()
    random = Random(protocol)
    ip = Ip(random, version=4, protocol=protocol)
    packet = ip_packet(random, ip, some_bytes(333))
    receiver = Receiver(b, 1)
    send(a, b, packet, checksums)
    world.settle()
    ((got, l3, l4),) = receiver.packets()
    assert (l3, l4) == checksums
    assert ip.holds(got) == (checksums == BOTH)
    if checksums == NEITHER:
        assert got == packet


def test_a_receiver_without_offloads_gets_right_bytes_and_no_word_of_them() -> None:
    world, a, b = offload_pair(far=False)
    random = Random(5)
    ip = Ip(random, protocol=UDP)
    receiver = Receiver(b, 1)
    send(a, b, ip_packet(random, ip, some_bytes(99)), BOTH)
    world.settle()
    ((got, l3, l4),) = receiver.packets()
    assert ip.holds(got)
    assert (l3, l4) == (0, 0)


@pytest.mark.parametrize("right", [True, False])
def test_what_comes_from_elsewhere_is_checked(right: bool) -> None:
    world, a, b = offload_pair(near=False)
    random = Random(6)
    ip = Ip(random, version=4, protocol=TCP)
    packet = ip_packet(random, ip, some_bytes(500))
    if right:
        packet = with_checksums(packet, True, True)
    receiver = Receiver(b, 2)
    a.datagram(a.buffer(packet), len(packet), world.b.port.lid, b.qpn)
    a.datagram(a.buffer(b"no IP"), 5, world.b.port.lid, b.qpn)
    world.settle()
    (first, second) = receiver.packets()
    assert first == (packet, int(right), int(right))
    assert second == (b"no IP", 0, 0)


def test_segments_without_a_receive_are_dropped_and_the_rest_goes_on() -> None:
    world, a, b = offload_pair()
    random = Random(7)
    header, content = ip_packet(random, Ip(random, protocol=TCP), b""), some_bytes(9 * 512)
    receiver = Receiver(b, 4)
    large_send(a, b, header, content, 512)
    world.settle()
    assert [packet[len(header) :] for packet, _, _ in receiver.packets()] == [
        content[at : at + 512] for at in range(0, 4 * 512, 512)
    ]
    assert world.b.hca.count[Count.RX_DROP_NO_RECEIVE] == 5
    assert [done.good for done in a.send_cq.poll()] == [True]


TCP_HEADER = ip_packet(Random(8), Ip(Random(8), version=4, protocol=TCP), b"")


@pytest.mark.parametrize(
    ("segments", "syndrome"),
    [
        # No Ethernet segment.
        (b"", CqeSyndrome.LOCAL_QP_OP_ERR),
        (bytes(16), CqeSyndrome.LOCAL_QP_OP_ERR),
        (ethernet(TCP_HEADER, mss=0), CqeSyndrome.LOCAL_QP_OP_ERR),
        # No headers, headers of something else, and some that end behind the WQE.
        (ethernet(mss=100), CqeSyndrome.LOCAL_QP_OP_ERR),
        (ethernet(bytes(60), mss=100), CqeSyndrome.LOCAL_QP_OP_ERR),
        (ethernet(TCP_HEADER[:-4], mss=100), CqeSyndrome.LOCAL_QP_OP_ERR),
        (ethernet(TCP_HEADER + bytes(4), mss=100), CqeSyndrome.LOCAL_QP_OP_ERR),
        (bytes(16) + EthSegment(mss=100, inline_hdr_sz=200).to_bytes(), CqeSyndrome.LOCAL_QP_OP_ERR),
        # A segment longer than the MTU.
        (ethernet(TCP_HEADER, mss=4096), CqeSyndrome.LOCAL_LENGTH_ERR),
    ],
)
def test_a_malformed_large_send_ends_the_send_queue(segments: bytes, syndrome: int) -> None:
    world, a, b = offload_pair()
    receiver = Receiver(b, 1)
    data = a.sge(a.buffer(5000), 5000) if segments else b""
    a.post(WqeOpcode.LSO, address(b) + segments + data)
    world.settle()
    (done,) = a.send_cq.poll()
    assert done.syndrome == syndrome
    assert a.qp.state == SQER
    assert a.qp.requester.lso_done == 0
    assert receiver.packets() == []


def test_a_large_send_has_data_and_an_end() -> None:
    for size, syndrome in ((0, CqeSyndrome.LOCAL_QP_OP_ERR), ((1 << LOG_MAX_LSO) + 1, CqeSyndrome.LOCAL_LENGTH_ERR)):
        world, a, b = offload_pair()
        data = a.sge(a.buffer(64), size) if size else b""
        a.post(WqeOpcode.LSO, address(b) + ethernet(TCP_HEADER, mss=100) + data)
        world.settle()
        (done,) = a.send_cq.poll()
        assert done.syndrome == syndrome


def test_headers_in_a_plain_send_are_refused() -> None:
    world, a, b = offload_pair()
    a.post(WqeOpcode.SEND, address(b) + ethernet(TCP_HEADER) + a.sge(a.buffer(10), 10))
    world.settle()
    (done,) = a.send_cq.poll()
    assert done.syndrome == CqeSyndrome.LOCAL_QP_OP_ERR


def test_a_queue_pair_without_offloads_has_no_large_sends() -> None:
    world, a, b = offload_pair(near=False)
    large_send(a, b, TCP_HEADER, some_bytes(100), 50)
    world.settle()
    (done,) = a.send_cq.poll()
    assert done.syndrome == CqeSyndrome.LOCAL_QP_OP_ERR


def test_a_key_that_fails_midway_ends_the_send_queue_behind_what_has_gone() -> None:
    world, a, b = offload_pair()
    receiver = Receiver(b, 8)
    addr = a.buffer(some_bytes(1000))
    pieces = a.sge(addr, 1000) + a.sge(addr, 1000, 0x1234)
    a.post(WqeOpcode.LSO, address(b) + ethernet(TCP_HEADER, 400, BOTH) + pieces)
    world.settle()
    (done,) = a.send_cq.poll()
    assert done.syndrome == CqeSyndrome.LOCAL_PROT_ERR
    assert a.qp.state == SQER
    assert a.qp.requester.lso_done == 0
    # Those before the one at fault may have gone.
    assert len(receiver.packets()) in (0, 2)


def test_a_host_that_changes_a_large_send_under_way_gets_an_error() -> None:
    world, a, b = offload_pair()
    large_send(a, b, TCP_HEADER, some_bytes(300), 1)
    world.a.turn()
    assert a.qp.requester.lso_done
    a.card.memory.write(a.sq_addr + 3, bytes((WqeOpcode.SEND,)))
    # The headers are refused in a SEND; without them it would be a datagram.
    a.card.memory.write(a.sq_addr + 64 + 16, bytes(16))
    world.settle()
    (done,) = a.send_cq.poll()
    assert done.syndrome == CqeSyndrome.LOCAL_QP_OP_ERR
    assert a.qp.requester.lso_done == 0


def test_a_large_send_after_one_that_was_flushed_begins_at_its_beginning() -> None:
    world, a, b = offload_pair()
    large_send(a, b, TCP_HEADER, some_bytes(300), 1)
    world.a.turn()
    assert a.qp.requester.lso_done
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SendQueue, "refresh", lost)
        world.a.turn()
    assert a.qp.state == SQER
    a.ring()
    world.settle()
    assert [done.syndrome for done in a.send_cq.poll()] == [CqeSyndrome.WR_FLUSH_ERR]
    assert a.apply(Op.SQERR2RTS_QP) == 0
    world.settle()
    receiver, content = Receiver(b, 4), some_bytes(400)
    large_send(a, b, TCP_HEADER, content, 100)
    world.settle()
    assert [done.good for done in a.send_cq.poll()] == [True]
    assert b"".join(packet[len(TCP_HEADER) :] for packet, _, _ in receiver.packets()) == content


def lost(*_: object) -> int:
    """A ring that the host has taken away."""
    raise DmaError("not mapped")


def test_a_large_send_waits_for_pages_between_its_segments() -> None:
    world, a, b = offload_pair()
    receiver = Receiver(b, 12)
    region = Region(world.a, 2)
    content = some_bytes(2 * PAGE)
    region.write(content)
    region.set(PRESENT, 0, 1)
    a.post(WqeOpcode.LSO, address(b) + ethernet(TCP_HEADER, 1024, BOTH) + a.sge(region.addr, 2 * PAGE, region.key))
    world.settle()
    (fault,) = faults(world.a)
    assert a.send_cq.poll() == []
    region.set(PRESENT)
    answer(world.a, fault)
    world.settle()
    assert [done.good for done in a.send_cq.poll()] == [True]
    assert b"".join(packet[len(TCP_HEADER) :] for packet, _, _ in receiver.packets()) == content


@pytest.mark.parametrize(
    ("service", "mode"), [(ServiceType.UD, 2), (ServiceType.UD, 15), (ST_RC, 1), (ServiceType.QP1, 1)]
)
def test_offloads_are_for_datagrams_only(service: int, mode: int) -> None:
    world = World()
    with pytest.raises(CommandFailed, match=f"status {int(Status.BAD_PARAM):#x}"):
        End(world.a, service, ulp_stateless_offload_mode=mode)


def test_receive_queues_have_no_strides() -> None:
    card = World().a
    assert card.hca.capabilities.general.striding_rq == 0
    for kind in (WqType.LINKED_LIST_STRIDING_RQ, WqType.CYCLIC_STRIDING_RQ):
        with pytest.raises(CommandFailed, match=f"status {int(Status.BAD_PARAM):#x}"):
            SharedQueue(card, wq_type=kind)
    with pytest.raises(CommandFailed, match=f"status {int(Status.BAD_OP):#x}"):
        card.run(Op.CREATE_RQ)
