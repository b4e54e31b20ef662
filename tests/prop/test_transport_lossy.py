"""A bad cable under each service: what the transport promises must hold, whatever happens on the way.

RC promises everything: the same memory, completions, order and states as over a perfect cable, for any mix of work
requests in both directions. UC promises whole messages in order or none; UD whole messages or none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from firmware.model.objects import Mkey
from tests.prop.bad_link import BadLink
from tests.prop.conftest import EXAMPLES, count_steps
from tests.scenario.registration import free_key
from tests.scenario.world import ST_RC, ST_UC, ST_UD, Completion, End, World, pair
from vhca.wire.connectx.cqe import CqeOpcode
from vhca.wire.connectx.wqe import MkeyMask, UmrCtrlSegment, UmrMkeySegment, WqeOpcode

REGION = 32 << 10
LARGEST = 6000
LONG_NS = 30_000_000_000
RESULTS = 64

SENDS = {"send": WqeOpcode.SEND, "send_imm": WqeOpcode.SEND_IMM, "send_inv": WqeOpcode.SEND_INVAL}
WRITES = {"write": WqeOpcode.RDMA_WRITE, "write_imm": WqeOpcode.RDMA_WRITE_IMM}
ATOMICS = {"add": WqeOpcode.ATOMIC_FA, "swap": WqeOpcode.ATOMIC_CS}
KINDS = [*SENDS, *WRITES, "read", *ATOMICS, "register", "invalidate", "nop"]


@dataclass(frozen=True)
class Step:
    """One thing that happens: `side` posts a work request of `kind`, or time passes before it does."""

    side: int
    kind: str
    size: int
    at: int
    to: int
    signalled: bool
    fence: int
    solicited: bool
    pieces: int
    wait_ns: int


steps = st.builds(
    Step,
    side=st.integers(0, 1),
    kind=st.sampled_from(KINDS),
    size=st.one_of(st.integers(0, 64), st.integers(0, LARGEST)),
    at=st.integers(0, REGION - 8192),
    to=st.integers(0, REGION - 8192),
    signalled=st.booleans(),
    fence=st.sampled_from([0, 0, 2, 3]),
    solicited=st.booleans(),
    pieces=st.integers(1, 3),
    wait_ns=st.sampled_from([0, 0, 0, 1_000, 50_000, 200_000_000]),
)


def noise(name: str, size: int) -> bytes:
    """Bytes that belong to a name."""
    return hashlib.shake_128(name.encode()).digest(size)


@dataclass
class Side:
    """One end, with the memory that its own requests and its peer's requests use: nothing is used by both."""

    end: End
    name: str
    source: int = 0
    read_only: int = 0
    target: int = 0
    inbox: int = 0
    counter: int = 0
    results: int = 0
    used: int = 0
    own: list[Mkey] = field(default_factory=list)
    lent: list[Mkey] = field(default_factory=list)

    def __post_init__(self) -> None:
        end = self.end
        self.source = end.buffer(noise(self.name + " source", REGION))
        self.read_only = end.buffer(noise(self.name + " read only", REGION))
        self.target = end.buffer(REGION)
        self.inbox = end.buffer(REGION)
        self.counter = end.buffer(8)
        self.results = end.buffer(RESULTS * 8192)

    def new_key(self, free: bool) -> Mkey:
        """A key that a work request may register or take back."""
        return free_key(self.end.card, entries=b"" if free else bytes(16), free=int(free), en_rinval=1)

    def result(self) -> int:
        """Room for what a READ or an atomic brings: each has its own."""
        self.used += 1
        return self.results + (self.used % RESULTS) * 8192

    def pieces(self, base: int, size: int, pieces: int) -> bytes:
        """A scatter-gather list of up to `pieces` entries."""
        if not size:
            return b""
        cut = -(-size // pieces)
        return b"".join(self.end.sge(base + at, min(cut, size - at)) for at in range(0, size, cut))

    def seen(self) -> tuple[object, ...]:
        """All that a program could see in the end."""
        end = self.end
        return (
            end.peek(self.target, REGION),
            end.peek(self.inbox, REGION),
            end.peek(self.counter, 8),
            end.peek(self.results, RESULTS * 8192),
            [(mkey.free, mkey.variant) for mkey in self.own + self.lent],
            end.send_cq.poll(),
            end.recv_cq.poll(),
            end.qp.state,
            end.qp.responder.msn,
        )


def register(side: Side, mkey: Mkey, free: int, ce: int, fence: int) -> None:
    """A registration (or, with `free`, an invalidation) by work request, translation inline."""
    mask = 1 << MkeyMask.FREE | 1 << MkeyMask.KEY
    ctrl = UmrCtrlSegment(inline=1, mkey_mask=mask)
    segment = UmrMkeySegment(mkey_7_0=mkey.variant + 1 & 0xFF, free=free)
    side.end.post(
        WqeOpcode.UMR, ctrl.to_bytes() + segment.to_bytes(), imm=mkey.handle << 8 | mkey.variant, ce=ce, fence=fence
    )


def act(world: World, me: Side, peer: Side, step: Step) -> None:
    """Post one work request (and the receive that it needs, at the peer)."""
    end = me.end
    ce = 2 if step.signalled else 0
    kind, size = step.kind, step.size
    remote = end.card.world.other(end.card).key
    if kind in SENDS:
        peer.end.post_recv(peer.inbox + step.to, max(size, 1))
        imm = size + 1
        if kind == "send_inv":
            mkey = peer.new_key(free=False)
            peer.lent.append(mkey)
            imm = mkey.handle << 8 | mkey.variant
        body = me.pieces(me.source + step.at, size, step.pieces)
        end.post(SENDS[kind], body, imm, ce, step.fence, int(step.solicited))
    elif kind in WRITES:
        if kind == "write_imm":
            peer.end.post_recv()
        body = _remote(peer.target + step.to, remote) + me.pieces(me.source + step.at, size, step.pieces)
        end.post(WRITES[kind], body, size, ce, step.fence, int(step.solicited))
    elif kind == "read":
        body = _remote(peer.read_only + step.at, remote) + me.pieces(me.result(), size, step.pieces)
        end.post(WqeOpcode.RDMA_READ, body, 0, ce, step.fence)
    elif kind in ATOMICS:
        end.atomic(ATOMICS[kind], me.result(), peer.counter, remote, size + 1, step.at % 3, ce=ce, fence=step.fence)
    elif kind in ("register", "invalidate"):
        free = kind == "invalidate"
        mkey = me.new_key(free=not free)
        me.own.append(mkey)
        register(me, mkey, int(free), ce, step.fence)
    else:
        end.post(WqeOpcode.NOP, b"", 0, ce, step.fence)


def _remote(addr: int, key: int) -> bytes:
    return addr.to_bytes(8, "big") + key.to_bytes(4, "big") + bytes(4)


def play(script: list[Step], link: BadLink | None) -> tuple[tuple[object, ...], str]:
    """Run a script over RC; returns what both sides see in the end, and the ladder of packets."""
    world = World(4 << 20)
    world.fault = link
    _, left, right = pair(ST_RC, world, retry_count=7, rnr_retry=7, path_ack_timeout=1)
    sides = Side(left, "left"), Side(right, "right")
    for step in script:
        if step.wait_ns:
            world.pass_time(step.wait_ns)
        act(world, sides[step.side], sides[1 - step.side], step)
    world.pass_time(LONG_NS)
    return (sides[0].seen(), sides[1].seen()), world.show()


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(steps, min_size=1, max_size=24), st.integers(0, 1 << 32), st.integers(1, 25))
def test_rc_over_a_bad_cable_is_rc_over_a_good_one(script: list[Step], seed: int, mishaps: int) -> None:
    bad, ladder = play(script, BadLink(seed, mishaps))
    good, _ = play(script, None)
    count_steps(2 * len(script))
    note(f"over the bad cable:\n{ladder}")
    assert bad == good


def messages(count: int, limit: int) -> st.SearchStrategy[list[int]]:
    """Sizes of messages."""
    return st.lists(st.integers(1, limit), min_size=1, max_size=count)


def delivered(end: End, inbox: int, slot: int, head: int) -> list[bytes]:
    """What arrived, in order of completion: receives were posted in slots of `slot` bytes."""
    got: list[Completion] = end.recv_cq.poll()
    return [end.peek(inbox + done.counter * slot + head, done.size - head) for done in got]


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(messages(20, LARGEST), st.integers(0, 1 << 32), st.integers(1, 25))
def test_uc_delivers_whole_messages_in_order_or_none(sizes: list[int], seed: int, mishaps: int) -> None:
    sent, got = unreliable(sizes, BadLink(seed, mishaps, ("drop", "corrupt")))
    remaining = iter(sent)
    assert all(any(content == expected for expected in remaining) for content in got), "not in order, or not whole"


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(messages(20, LARGEST), st.integers(0, 1 << 32), st.integers(1, 25))
def test_uc_delivers_nothing_but_whole_messages(sizes: list[int], seed: int, mishaps: int) -> None:
    # A responder takes the first packet of a message at any PSN (9.8.2.2.2): what a cable swaps or doubles, which real
    # ones do not, may come in that order, but never mixed.
    sent, got = unreliable(sizes, BadLink(seed, mishaps))
    assert set(got) <= set(sent)


def unreliable(sizes: list[int], link: BadLink) -> tuple[list[bytes], list[bytes]]:
    """Send messages over UC; returns what was sent and what arrived, in order."""
    world = World(4 << 20)
    world.fault = link
    _, left, right = pair(ST_UC, world)
    inbox = right.buffer(64 * 8192)
    for number in range(60):
        right.post_recv(inbox + number * 8192, 8192)
    sent = [noise(f"message {number}", size) for number, size in enumerate(sizes)]
    for content in sent:
        left.send(left.buffer(content), len(content))
    world.pass_time(LONG_NS)
    count_steps(len(sizes))
    note(world.show())
    assert [done.syndrome for done in left.send_cq.poll()] == [0] * len(sent)
    return sent, delivered(right, inbox, 8192, 0)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(messages(20, 1024), st.integers(0, 1 << 32), st.integers(1, 25))
def test_ud_delivers_whole_messages_or_none(sizes: list[int], seed: int, mishaps: int) -> None:
    world = World(4 << 20)
    world.fault = BadLink(seed, mishaps)
    left, right = End(world.a, ST_UD), End(world.b, ST_UD)
    for end in (left, right):
        end.to_init()
        end.to_rtr()
        end.to_rts()
    inbox = right.buffer(64 * 2048)
    receives = 2 * len(sizes)
    for number in range(receives):
        right.post_recv(inbox + number * 2048, 2048)
    sent = [noise(f"datagram {number}", size) for number, size in enumerate(sizes)]
    for content in sent:
        left.datagram(left.buffer(content), len(content), right.card.port.lid, right.qpn)
    world.pass_time(LONG_NS)
    count_steps(len(sizes))
    note(world.show())
    assert [done.syndrome for done in left.send_cq.poll()] == [0] * len(sent)
    done = right.recv_cq.poll()
    assert {entry.kind for entry in done} <= {CqeOpcode.RESP_SEND}
    got = [right.peek(inbox + entry.counter * 2048 + 40, entry.size - 40) for entry in done]
    assert set(got) <= set(sent)
    assert all(got.count(content) <= 2 for content in got), "more often than sent and doubled"
