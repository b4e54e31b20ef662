"""Extended reliable connection: an initiator sends to a shared queue of the target's domain."""

from firmware.model.counters import Count
from tests.packets import divert
from tests.scenario.world import ERR, ST_XRC, CompletionQueue, End, SharedQueue, World, XrcSegment
from tests.support.content import some_bytes
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cqe import CqeOpcode, CqeSyndrome
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode

USER_INDEX = 0x55


def xrc(queue_of_another_domain: bool = False) -> tuple[World, End, End, SharedQueue, CompletionQueue]:
    world = World()
    cq = CompletionQueue(world.b)
    domain = world.b.alloc_xrcd()
    srq = SharedQueue(world.b, world.b.alloc_xrcd() if queue_of_another_domain else domain, cq=cq,
                      user_index=USER_INDEX)  # fmt: skip
    initiator = End(world.a, ST_XRC, has_rq=False)
    # The domain of keys that counts is that of the named queue, not that of the target (annex A14).
    target = End(world.b, ST_XRC, has_sq=False, has_rq=False, xrcd=domain, pd=world.b.alloc_pd())
    initiator.connect(target)
    target.connect(initiator)
    return world, initiator, target, srq, cq


def segment(number: int) -> bytes:
    return XrcSegment(xrc_srqn=number).to_bytes()


def test_send_lands_in_the_named_queue_and_completes_on_its_cq() -> None:
    world, a, _, srq, cq = xrc()
    content = some_bytes(3000)
    place = srq.card.alloc(3000)
    srq.post_recv(place, 3000)
    a.post(WqeOpcode.SEND_IMM, segment(srq.number) + a.sge(a.buffer(content), 3000), imm=4)
    world.settle()
    assert srq.card.memory.read(place, 3000) == content
    (got,) = cq.poll()
    assert (got.kind, got.size, got.user, got.counter) == (CqeOpcode.RESP_SEND_IMM, 3000, USER_INDEX, 0)
    assert [c.syndrome for c in a.send_cq.poll()] == [0]


def test_write_and_read() -> None:
    world, a, b, srq, _ = xrc()
    content = some_bytes(5000)
    remote, back = b.buffer(5000), a.buffer(5000)
    there = segment(srq.number) + RaddrSegment(raddr=remote, rkey=b.card.key).to_bytes()
    a.post(WqeOpcode.RDMA_WRITE, there + a.sge(a.buffer(content), 5000))
    a.post(WqeOpcode.RDMA_READ, there + a.sge(back, 5000))
    world.settle()
    assert b.peek(remote, 5000) == a.peek(back, 5000) == content
    assert [c.syndrome for c in a.send_cq.poll()] == [0, 0]


def test_queue_of_another_domain_is_an_invalid_request() -> None:
    world, a, b, srq, _ = xrc(queue_of_another_domain=True)
    srq.post_recv(srq.card.alloc(100), 100)
    a.post(WqeOpcode.SEND, segment(srq.number) + a.sge(a.buffer(8), 8))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_INVAL_REQ_ERR]
    assert b.qp.state == ERR


def test_key_of_another_domain_than_the_named_queue_is_an_access_error() -> None:
    world, a, b, srq, _ = xrc()
    remote = b.buffer(8)
    rkey = b.card.register(remote, 8, pd=b.card.alloc_pd())
    there = segment(srq.number) + RaddrSegment(raddr=remote, rkey=rkey).to_bytes()
    a.post(WqeOpcode.RDMA_WRITE, there + a.sge(a.buffer(8), 8))
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


def test_empty_queue_is_not_ready() -> None:
    world, a, _, srq, cq = xrc()
    a.post(WqeOpcode.SEND, segment(srq.number) + a.sge(a.buffer(8), 8))
    world.settle()
    assert cq.poll() == []
    srq.post_recv(srq.card.alloc(100), 100)
    world.pass_time(1_000_000)
    assert len(cq.poll()) == 1


def test_packet_for_an_initiator_is_dropped() -> None:
    world, a, _, _, _ = xrc()
    a.post(WqeOpcode.SEND, segment(1) + a.sge(a.buffer(8), 8))
    (item,) = world.queue
    world.queue.clear()
    packet = item[1]
    divert(packet, dlid=1, slid=2).dest_qp = a.qpn
    world.wire(world.b, packet)
    world.settle()
    assert world.a.hca.count[Count.RX_DROP_XRC_INITIATOR] == 1


def test_wqe_without_its_segment_is_refused() -> None:
    _, a, _, _, _ = xrc()
    a.post(WqeOpcode.SEND)
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.LOCAL_QP_OP_ERR]


def test_only_a_target_has_a_last_receive() -> None:
    _, a, b, _, _ = xrc()
    for end, last in ((a, []), (b, [(0x13, b.qpn)])):
        end.apply(Op.QP_2ERR)
        assert end.card.events() == last
