"""A lossy, reordering, duplicating link gives the same memory and the same completions as a perfect one."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scenario.world import World, pair
from vhca.wire.connectx.wqe import WqeOpcode
from vhca.wire.ib import split
from vhca.wire.packet import Packet

REGION = 64 << 10
KINDS = ["write", "write_imm", "send", "read", "add"]

operation = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 6000),
    st.integers(0, REGION - 8192),
    st.integers(0, REGION - 8192),
    st.booleans(),
    st.sampled_from([0, 0, 2]),
)


class BadLink:
    """Loses, doubles, holds back and cuts up packets, from a seed; well behaved after `faults` mishaps."""

    def __init__(self, seed: int, faults: int) -> None:
        self.chance = random.Random(seed)
        self.left = faults
        self.held: list[Packet] = []

    def __call__(self, packet: Packet) -> list[Packet]:
        packets = split(packet) if self.chance.random() < 0.5 else [packet]
        out: list[Packet] = []
        for item in packets:
            dice = self.chance.random()
            if not self.left or dice > 0.2:
                out.append(item)
                continue
            self.left -= 1
            if dice < 0.08:
                continue
            if dice < 0.14:
                out += [item, item]
            else:
                self.held.append(item)
        if self.held and (not self.left or self.chance.random() < 0.3):
            # Held-back packets of both directions are told apart by their destination: only the own ones go here.
            same = [held for held in self.held if held.dlid == packet.dlid]
            self.held = [held for held in self.held if held.dlid != packet.dlid]
            out += same
        return out


def play(operations: list[tuple[str, int, int, int, bool, int]], link: BadLink | None) -> tuple[object, ...]:
    world = World(1 << 20)
    world.fault = link
    _, a, b = pair(world=world, retry_count=7, rnr_retry=7, path_ack_timeout=1)
    base = random.Random(1)
    left = a.buffer(base.randbytes(REGION))
    right = b.buffer(base.randbytes(REGION))
    receives = b.buffer(REGION)
    counter = b.buffer(8)
    result = a.buffer(8)
    for kind, size, at, to, signalled, fence in operations:
        ce = 2 if signalled else 0
        if kind == "write":
            a.write(left + at, size, right + to, b.card.key, ce=ce, fence=fence)
        elif kind == "write_imm":
            b.post_recv()
            a.rdma(WqeOpcode.RDMA_WRITE_IMM, left + at, size, right + to, b.card.key, imm=size, ce=ce, fence=fence)
        elif kind == "send":
            b.post_recv(receives + to, size)
            a.send(left + at, size, ce=ce, fence=fence)
        elif kind == "read":
            # Reads go where nobody sends from, so that their timing cannot be seen.
            a.read(left + to, size, right + at, b.card.key, ce=ce, fence=2)
            world.pass_time(20_000_000_000)
        else:
            a.atomic(WqeOpcode.ATOMIC_FA, result, counter, b.card.key, size, ce=ce, fence=fence)
    world.pass_time(20_000_000_000)
    return (
        a.peek(left, REGION),
        b.peek(right, REGION),
        b.peek(receives, REGION),
        b.peek(counter, 8),
        a.peek(result, 8),
        a.send_cq.poll(),
        b.recv_cq.poll(),
        a.qp.state,
        b.qp.state,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operation, min_size=1, max_size=12), st.integers(0, 1 << 32), st.integers(1, 12))
def test_lossy_link_changes_nothing(
    operations: list[tuple[str, int, int, int, bool, int]], seed: int, faults: int
) -> None:
    assert play(operations, BadLink(seed, faults)) == play(operations, None)
