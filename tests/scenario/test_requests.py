"""Requests as a stranger would forge them: numbers behind, messages inside messages, keys of others."""

from typing import Any

import pytest

from firmware.model.counters import Count, QCount
from firmware.model.psn import PSN_HALF, distance, extend
from tests.scenario.tools import FIRST, inject, sent
from tests.scenario.world import ERR, RTS, ST_RC, ST_UC, ST_UD, End, SharedQueue, World, pair
from vhca.wire.connectx.cqe import Cqe64, CqeSyndrome
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.packet import FETCH_ADD, MULTICAST_LID_FIRST, READ_REQUEST, SEND, UD, WRITE, Grh, Packet

GROUP = bytes.fromhex("ff12401bffff000000000000ffffffff")
NAK_INVALID = "syn=0x61"
INVALID_REQUEST, ACCESS_ERROR = 0x10, 0x11


def test_the_far_side_of_the_circle_is_behind() -> None:
    assert (distance(PSN_HALF, 0), distance(PSN_HALF - 1, 0), distance(0, 1)) == (-PSN_HALF, PSN_HALF - 1, -1)
    assert extend(PSN_HALF, 1 << 30) == (1 << 30) - PSN_HALF
    world, _, b = pair()
    inject(world, b, op=WRITE, psn=FIRST + PSN_HALF & 0xFFFFFF)
    assert world.b.hca.count[Count.RX_DUPLICATE_REQUESTS] == 1
    inject(world, b, op=WRITE, psn=FIRST + PSN_HALF - 1 & 0xFFFFFF)
    assert world.b.hca.count[Count.RX_OUT_OF_SEQUENCE] == 1


def test_each_gap_is_told_once() -> None:
    world, _, b = pair()
    for psn in (1, 2, 0, 4, 5, 1):
        inject(world, b, op=WRITE, psn=FIRST + psn)
    assert sent(world, "syn=0x60") == 2
    assert world.b.hca.count[Count.NAKS] == 2


@pytest.mark.parametrize("code", [0, 1, 31])
def test_a_receiver_s_wish_to_wait_that_waits_itself_is_not_replaced_by_an_acknowledgement(code: int) -> None:
    world, _, b = pair(world=World(32 << 20), min_rnr_nak=code)
    size = 3 << 20
    inject(world, b, op=WRITE, psn=FIRST)
    inject(world, b, op=READ_REQUEST, psn=FIRST + 1, va=b.buffer(size), rkey=b.card.key, dma_length=size)
    inject(world, b, op=SEND, psn=FIRST + 1 + 3072 & 0xFFFFFF, payload=b"no receive")
    for _ in range(2):
        inject(world, b, op=WRITE, psn=FIRST)
    waiting = [reply.syndrome for reply in b.qp.responder.replies if isinstance(reply, Packet)]
    assert waiting == [0x20 | code, 0x1F]


@pytest.mark.parametrize("op", [SEND, WRITE])
def test_a_message_that_finds_no_receive_is_asked_to_come_again(op: int) -> None:
    world, _, b = pair(min_rnr_nak=5)
    target = b.buffer(8)
    fields = {"op": op, "psn": FIRST, "payload": b"8 bytes!", "va": target, "rkey": b.card.key, "dma_length": 8,
              "immediate": 7}  # fmt: skip
    inject(world, b, **fields)
    assert sent(world, "syn=0x25") == 1
    assert b.counter.values == {QCount.OUT_OF_BUFFER: 1}
    assert b.peek(target, 8) == bytes(8)
    b.post_recv(target, 8)
    inject(world, b, **fields)
    assert [(c.syndrome, c.extra) for c in b.recv_cq.poll()] == [(0, 7)]
    assert b.peek(target, 8) == b"8 bytes!"


def test_a_nak_that_waits_is_not_replaced_by_an_acknowledgement() -> None:
    world, _, b = pair(world=World(32 << 20))
    size = 3 << 20
    inject(world, b, op=WRITE, psn=FIRST)
    inject(world, b, op=READ_REQUEST, psn=FIRST + 1, va=b.buffer(size), rkey=b.card.key, dma_length=size)
    behind = FIRST + 1 + 3072 & 0xFFFFFF
    inject(world, b, op=WRITE, psn=behind + 1)
    for _ in range(2):
        inject(world, b, op=WRITE, psn=FIRST)
    waiting = [reply.syndrome for reply in b.qp.responder.replies if isinstance(reply, Packet)]
    assert waiting == [0x60, 0x1F]


@pytest.mark.parametrize("first", [SEND, WRITE])
def test_a_message_goes_on_with_its_own_operation(first: int) -> None:
    world, _, b = pair()
    target = b.buffer(4096)
    b.post_recv(b.buffer(4096), 4096)
    # Their lengths would fit.
    fields = {"va": target, "rkey": b.card.key, "dma_length": 1032}
    inject(world, b, op=WRITE, psn=FIRST, payload=bytes(1024), end=False, **fields)
    inject(world, b, op=WRITE, psn=FIRST + 1, payload=bytes(8), start=False, **fields)
    inject(world, b, op=first, psn=FIRST + 2, payload=bytes(1024), end=False, **fields)
    assert b.qp.state == RTS
    inject(world, b, op=WRITE + SEND - first, psn=FIRST + 3, payload=b"wrong!!!", start=False, **fields)
    assert b.qp.state == ERR
    assert NAK_INVALID in world.ladder[-1]
    assert b.peek(target + 1024, 8) == bytes(8)


def test_a_read_inside_a_message_is_refused() -> None:
    world, _, b = pair()
    b.post_recv(b.buffer(4096), 4096)
    inject(world, b, op=SEND, psn=FIRST, payload=bytes(1024), end=False)
    inject(world, b, op=READ_REQUEST, psn=FIRST + 1, va=b.buffer(8), rkey=b.card.key, dma_length=8)
    assert NAK_INVALID in world.ladder[-1]


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (INVALID_REQUEST, {"op": WRITE, "start": False}),
        (INVALID_REQUEST, {"op": SEND, "start": False, "payload": b"x"}),
        (INVALID_REQUEST, {"op": 8}),
        (ACCESS_ERROR, {"op": WRITE, "rkey": 0x999900, "dma_length": 1, "payload": b"x"}),
        (ACCESS_ERROR, {"op": WRITE, "dma_length": 2, "payload": b"x"}),
        (ACCESS_ERROR, {"op": WRITE, "dma_length": 2048, "payload": bytes(1000), "end": False}),
        (ACCESS_ERROR, {"op": WRITE, "dma_length": (1 << 31) + 1, "payload": bytes(1024), "end": False}),
        (ACCESS_ERROR, {"op": READ_REQUEST, "dma_length": (1 << 31) + 1}),
        (ACCESS_ERROR, {"op": FETCH_ADD, "va": 4}),
    ],
)
def test_an_event_tells_wrong_opcodes_from_wrong_accesses(event: int, fields: dict[str, object]) -> None:
    world, _, b = pair()
    b.post_recv(b.buffer(8), 8)
    inject(world, b, **{"psn": FIRST, "va": b.buffer(8), "rkey": b.card.key, **fields})
    assert b.card.events() == [(event, b.qpn)]
    assert b.qp.state == ERR


def test_what_the_receive_s_completion_tells_needs_no_event() -> None:
    world, a, b = pair()
    b.post_recv(b.buffer(8), 8, key=0x999900)
    a.send(a.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_OP_ERR]
    assert [c.syndrome for c in b.recv_cq.poll()] == [CqeSyndrome.LOCAL_PROT_ERR]
    assert b.card.events() == []


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
def test_a_completion_says_to_which_lid_of_the_port_a_message_came(service: int) -> None:
    world = World()
    world.b.manager.set_port(lid=8, lmc=2)
    a, b = End(world.a, service), End(world.b, service)
    a.connect(b, path_rlid=10)
    b.connect(a)
    b.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.settle()
    assert len(b.recv_cq.poll()) == 1
    assert Cqe64.from_bytes(b.recv_cq.raw(0)).ml_path == 2


@pytest.mark.parametrize("fields", [{"count": 2}, {"start": False}, {"end": False}, {"payload": b"x"}])
def test_a_read_is_one_packet_without_payload(fields: dict[str, object]) -> None:
    world, _, b = pair()
    read: dict[str, object] = {"op": READ_REQUEST, "psn": FIRST, "va": b.buffer(8), "rkey": b.card.key}
    inject(world, b, **{**read, "dma_length": 8, **fields})
    assert NAK_INVALID in world.ladder[-1]


def test_buffers_of_a_shared_queue_are_of_its_domain() -> None:
    world = World()
    srq = SharedQueue(world.b)
    a, b = End(world.a), End(world.b, srq=srq, pd=world.b.alloc_pd())
    a.connect(b)
    b.connect(a)
    srq.post_recv(b.buffer(8), 8)
    a.send(a.buffer(8), 8)
    world.settle()
    assert [c.syndrome for c in b.recv_cq.poll()] == [0]


@pytest.mark.parametrize("mistake", ["", "variant", "domain", "queue pair", "right", "free", "no such key"])
def test_what_a_peer_may_not_invalidate(mistake: str) -> None:
    world, a, b = pair()
    faults: dict[str, dict[str, Any]] = {
        "domain": {"pd": b.card.alloc_pd()},
        "queue pair": {"qpn": b.qpn + 1},
        "right": {"en_rinval": 0},
        "free": {"free": 1},
    }
    rkey = b.card.register(b.buffer(4096), 4096, **faults.get(mistake, {}))
    mkey = world.b.mkey(rkey)
    b.post_recv()
    a.post(WqeOpcode.SEND_INVAL, imm={"variant": rkey ^ 1, "no such key": rkey + 0x100}.get(mistake, rkey))
    world.settle()
    refused = [CqeSyndrome.REMOTE_ACCESS_ERR] if mistake else [0]
    assert [c.syndrome for c in a.send_cq.poll()] == refused
    assert mkey.free is (mistake in ("", "free"))


def test_a_key_bound_to_a_queue_pair_may_be_invalidated_through_that_one() -> None:
    world, a, b = pair()
    rkey = b.card.register(b.buffer(4096), 4096, qpn=b.qpn)
    mkey = world.b.mkey(rkey)
    b.post_recv()
    a.post(WqeOpcode.SEND_INVAL, imm=rkey)
    world.settle()
    assert mkey.free


@pytest.mark.parametrize("back", [1, 4, 7])
def test_no_access_goes_round_the_end_of_all_addresses(back: int) -> None:
    world, a, b = pair()
    # The key of all memory covers every address.
    a.write(a.buffer(8), 8, (1 << 64) - back, b.card.key)
    world.settle()
    assert [c.syndrome for c in a.send_cq.poll()] == [CqeSyndrome.REMOTE_ACCESS_ERR]


@pytest.mark.parametrize(("slid", "blocked"), [(1, 0), (2, 1), (3, 0)])
def test_only_a_queue_pair_s_own_multicasts_are_kept_from_it(slid: int, blocked: int) -> None:
    world, a, b = pair(ST_UD, made={"block_lb_mc": 1})
    b.join(GROUP)
    b.post_recv(b.buffer(60), 60)
    inject(world, b, dlid=MULTICAST_LID_FIRST, slid=slid, service=UD, op=SEND, psn=0, payload=bytes(8), qkey=0x1234,
           dest_qp=0xFFFFFF, src_qp=b.qpn, grh=Grh(a.card.port.gids[0], GROUP))  # fmt: skip
    world.settle()
    assert len(b.recv_cq.poll()) == 1 - blocked
    assert world.b.hca.count[Count.RX_MULTICAST_LOOPBACK_BLOCKED] == blocked
