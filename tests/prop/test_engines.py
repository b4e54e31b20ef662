"""The engine in C and the one in Python do the same: any script, on two worlds, with and without trains.

Both see the same memory addresses, numbers and keys. Compared are all of both memories (data, completions with their
owner bits), the order of completions, the kinds of events, and the states, numbers and counters of both sides. Not
compared: how many acknowledgements a run of messages took, how many events (one that is sent behind a whole train knows
of all its completions, so that an arm behind it may stay quiet), and what Python remembers for duplicates.
"""

import os
from random import Random
from typing import Any

import pytest

from firmware.model import queue_buffer
from firmware.model.counters import CQES, RX_BYTES, TX_BYTES, Count
from firmware.model.qp import RTS
from firmware.native.library import loaded
from tests.scenario.card import LOG_EQ, Card
from tests.scenario.world import BASE, ST_RC, ST_UC, Completion, End, SharedQueue, World
from vhca.wire.connectx.qpc import ServiceType
from vhca.wire.connectx.srq import WqType
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"no engine in C: {loaded().reason}")

SIZES = (0, 1, 8, 31, 32, 33, 64, 255, 256, 257, 1023, 1024, 1025, 4096, 5000, 20_000)
# Each message of a batch has a place of its own, on both sides, and each receive: in which order those that share one
# were read and written, no book says.
PLACE = 1 << 15
SENDS = 16
RECEIVES = 64
ROOM = PLACE * (SENDS + RECEIVES)
ATOMICS = (WqeOpcode.ATOMIC_CS, WqeOpcode.ATOMIC_FA)
OPCODES = (
    *(WqeOpcode.RDMA_WRITE, WqeOpcode.RDMA_WRITE_IMM, WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.RDMA_READ),
    *ATOMICS,
    *(WqeOpcode.NOP, WqeOpcode.SEND_INVAL),
)
UNRELIABLE = (*OPCODES[:4], WqeOpcode.NOP)
# Slots of shared queues as a driver's list has them after a while.
ORDER = [0, *(slot * 11 % 63 + 1 for slot in range(63))]


class Side:
    """One end with a buffer, shown by keys of all kinds that C knows: flat, contiguous pages, scattered pages."""

    def __init__(self, end: End) -> None:
        self.end = end
        card = end.card
        self.buffer = end.buffer(bytes(index * 31 & 0xFF for index in range(ROOM)))
        pages = [self.buffer + index * 4096 for index in range(ROOM >> 12)]
        self.keys = [card.key, card.register(self.buffer, ROOM)]
        # The same pages the other way round: one key's first byte is the buffer's last page.
        scattered = b"".join(page.to_bytes(8, "big") for page in reversed(pages))
        self.keys.append(card.register(self.buffer, ROOM, pages=scattered))
        self.keys.append(card.register(self.buffer, ROOM, rights=0b00011))
        self.keys.append(card.register(self.buffer, ROOM >> 1))
        self.seen: list[Completion] = []

    @property
    def posted(self) -> int:
        """How many receives were posted."""
        shared = self.end.srq
        return self.end.rq_posted if shared is None else shared.posted

    def post_recv(self, sges: list[bytes]) -> None:
        if self.end.srq is None:
            self.end.post_recv(sges=sges)
        else:
            self.end.srq.post_list(b"".join(sges))

    def poll(self) -> None:
        self.seen += self.end.send_cq.poll()
        self.seen += self.end.recv_cq.poll()


class Script:
    """The same moves for any world: chance comes from the seed alone."""

    def __init__(self, seed: int, rails: bool, wild: bool) -> None:
        self.random = Random(seed)
        self.wild = wild
        made = self.random.choice(({}, {}, {"cs_res": 1, "cs_req": 0x11}))
        self.service = self.random.choice((ST_RC, ST_RC, ST_UC))
        self.world = World()
        ends = [self._end(card, made) for card in (self.world.a, self.world.b)]
        mtu = self.random.choice((1, 3, 5))
        for end, peer in (ends, ends[::-1]):
            end.connect(peer, mtu=mtu)
        if rails:
            self.world.lay_rails()
        self.sides = (Side(ends[0]), Side(ends[1]))

    def _end(self, card: Card, made: dict[str, Any]) -> End:
        """A queue pair with receives of its own, or of a shared queue of either kind, with a limit."""
        kind = self.random.choice((None, None, WqType.LINKED_LIST, WqType.CYCLIC))
        if kind is None:
            return End(card, self.service, **made)
        order = ORDER if kind == WqType.LINKED_LIST else None
        queue = SharedQueue(card, log_size=6, order=order, lwm=self.random.randrange(10), wq_type=kind)
        return End(card, self.service, srq=queue, **made)

    def run(self, moves: int) -> None:
        for _ in range(moves):
            # With mischief one side sends: an error of the one direction ends the other one, wherever that is.
            near, far = self.sides if self.wild or self.random.random() < 0.7 else self.sides[::-1]
            dice = self.random.random()
            if dice < 0.25:
                self._post_receives(far if self.wild else near)
            elif dice < 0.8:
                self._post_sends(near, far)
            elif dice < 0.9:
                near.end.send_cq.arm(solicited_only=self.random.random() < 0.5)
                near.end.recv_cq.arm(solicited_only=self.random.random() < 0.5)
            else:
                near.poll()
            self.world.settle()
            if self.wild:
                # Who waits for a receive must not keep the ring full; and behind an error the worlds part.
                self.world.pass_time(3_000_000_000)
                if any(side.end.qp.state != RTS for side in self.sides):
                    break
        self.world.pass_time(3_000_000_000)
        for side in self.sides:
            side.poll()

    def _place(self, side: Side, place: int, size: int) -> tuple[int, int]:
        """Address and key of a piece of one of a side's places; rarely one that is refused."""
        at = place * PLACE + self.random.randrange(PLACE - size + 1)
        key = self.random.choice(side.keys[:3])
        if self.wild and self.random.random() < 0.05:
            key = self.random.choice((*side.keys, 0x1234, key ^ 1))
        if self.wild and self.random.random() < 0.02:
            at = ROOM - size // 2 if size else ROOM
        return side.buffer + at, key

    def _post_receives(self, side: Side) -> None:
        for _ in range(min(self.random.randrange(1, 12), 60 - self._receives_of(side))):
            place = SENDS + side.posted % RECEIVES
            sges = []
            for number in range(self.random.randrange(1, 4)):
                # Without mischief, each takes any message.
                size = 20_000 if not number and not self.wild else self.random.choice((20_000, *SIZES))
                addr, key = self._place(side, place, size)
                sges.append(side.end.sge(addr, size, key) if size else b"")
            side.post_recv(sges)

    def _receives_of(self, side: Side) -> int:
        """Receives that wait."""
        qp = side.end.qp
        if qp.srq is not None:
            return (side.posted - qp.srq.consumed) & 0xFFFF
        assert qp.rq is not None
        return side.posted - qp.rq.consumer

    def _post_sends(self, near: Side, far: Side) -> None:
        count = self.random.choice((1, 2, 5, 16))
        while not self.wild and self._receives_of(far) < count:
            self._post_receives(far)
        for number in range(count):
            self._post_send(near, far, number, ring=number == count - 1)

    def _post_send(self, near: Side, far: Side, place: int, ring: bool) -> None:
        random = self.random
        opcode = random.choice(OPCODES if self.service == ST_RC or self.wild else UNRELIABLE)
        size = 8 if opcode in ATOMICS else random.choice(SIZES)
        segments = b""
        if opcode not in (WqeOpcode.SEND, WqeOpcode.SEND_IMM, WqeOpcode.SEND_INVAL, WqeOpcode.NOP):
            addr, key = self._place(far, place, size)
            segments += RaddrSegment(raddr=addr & ~7 if opcode in ATOMICS else addr, rkey=key).to_bytes()
        if opcode in ATOMICS:
            segments += random.randbytes(8) + far.end.peek(far.buffer, 8)
        segments += b"" if opcode == WqeOpcode.NOP else self._data(near, place, size, opcode)
        extra = random.getrandbits(32)
        if opcode == WqeOpcode.SEND_INVAL and not (self.wild and random.random() < 0.5):
            extra = far.end.card.register(far.buffer, 4096)
        near.end.post(
            opcode, segments, imm=extra, ce=random.choice((0, 2, 2, 3)), se=random.getrandbits(1),
            fence=random.choice((0, 0, 2)), ring=ring,
        )  # fmt: skip

    def _data(self, near: Side, place: int, size: int, opcode: int) -> bytes:
        random = self.random
        may_be_inline = opcode not in (*ATOMICS, WqeOpcode.RDMA_READ)
        if size <= 64 and random.random() < 0.4 and may_be_inline:
            return _inline(random, size) if size else b""
        parts = random.randrange(1, 4) if opcode not in ATOMICS else 1
        segments, left = b"", size
        if opcode == WqeOpcode.RDMA_READ:
            # Pieces that overlap would be written one over the other.
            parts = 1
        for part in range(parts):
            piece = left if part == parts - 1 else random.randrange(left + 1)
            if may_be_inline and piece <= 64 and random.random() < 0.3:
                segments += _inline(random, piece)
            elif piece:
                addr, key = self._place(near, place, piece)
                segments += near.end.sge(addr, piece, key)
            left -= piece
        return segments


def _inline(random: Random, size: int) -> bytes:
    """A segment with inline data."""
    raw = (1 << 31 | size).to_bytes(4, "big") + random.randbytes(size)
    return raw + bytes(-len(raw) % 16)


def outcome(script: Script) -> dict[str, Any]:
    """What both worlds must have in common."""
    found: dict[str, Any] = {}
    for name, side in zip("ab", script.sides, strict=True):
        card, qp = side.end.card, side.end.qp
        memory = bytearray(card.memory.data)
        memory[card.eq_addr - BASE : card.eq_addr - BASE + (64 << LOG_EQ)] = b""
        found[f"{name} memory"] = bytes(memory)
        found[f"{name} events"] = {(event.event_type, bytes(event.event_data)) for event in card.new_events()}
        found[f"{name} completions"] = side.seen
        requester, responder = qp.requester, qp.responder
        found[f"{name} ends"] = qp.state, responder.epsn, responder.msn, len(requester.pending), responder.op
        srq = qp.srq
        found[f"{name} shared"] = srq and (srq.consumed, srq.next_index, srq.limit)
        found[f"{name} keys"] = [key.free for key in card.hca.mkeys]
        # What was numbered, sent or sent again behind a WQE at fault is for nobody to see.
        if not script.wild:
            found[f"{name} counted"] = [card.hca.count[count] for count in (TX_BYTES, RX_BYTES, CQES)]
            found[f"{name} requests"] = dict(side.end.counter.values)
            found[f"{name} numbers"] = requester.next_psn, requester.una, requester.ssn
    return found


@pytest.mark.parametrize("seed", range(int(os.environ.get("VHCA_EXAMPLES", "20"))))
@pytest.mark.parametrize("wild", [False, True])
def test_any_script_has_one_outcome(seed: int, wild: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed & 1:
        # Rings in pages of a list, as those of user programs are.
        monkeypatch.setattr(queue_buffer, "contiguous", lambda *_: False)
    worlds = [Script(seed, rails, wild) for rails in (False, True)]
    for script in worlds:
        script.run(30)
    python, native = (outcome(script) for script in worlds)
    assert wild or worlds[1].world.trains, "no train ever went: nothing was compared"
    for name, value in python.items():
        assert native[name] == value, name


class Datagrams:
    """Datagrams of one queue pair to two of the other card, some with a GRH, some that are dropped."""

    def __init__(self, seed: int, rails: bool) -> None:
        self.random = random = Random(seed)
        self.short = seed % 5 == 0
        self.world = World()
        self.sender = End(self.world.a, ServiceType.UD)
        self.receivers = [End(self.world.b, ServiceType.UD) for _ in range(2)]
        self.sender.connect(self.receivers[0])
        for end, q_key in zip(self.receivers, (0x1234, random.choice((0x1234, 5))), strict=True):
            end.connect(self.sender, q_key=q_key)
        if rails:
            self.world.lay_rails()
        self.source = self.sender.buffer(random.randbytes(8192))
        self.places = [end.buffer(64 * 8192) for end in self.receivers]
        self.seen: list[list[Completion]] = [[], [], []]

    def run(self, moves: int) -> None:
        random = self.random
        for _ in range(moves):
            index = random.randrange(2)
            end = self.receivers[index]
            rq = end.qp.rq
            assert rq is not None
            if random.random() < 0.5:
                for _ in range(min(random.randrange(20), 60 - end.rq_posted + rq.consumer)):
                    # One that is too short stays for a shorter datagram: all longer ones are dropped from then on.
                    size = random.choice((4096, 100, 40, 39) if self.short else (4096, 1100))
                    place = self.places[index] + end.rq_posted % 64 * 8192
                    first = random.choice((40, 30, 50, size)) if size > 60 else size
                    sges = [end.sge(place, first), end.sge(place + 4096, size - first)] if size > first else [
                        end.sge(place, size)
                    ]  # fmt: skip
                    end.post_recv(sges=sges)
            else:
                count = random.randrange(1, 20)
                for number in range(count):
                    self._post(ring=number == count - 1)
            self.world.settle()
            # Where there was no way, it is looked for again.
            self.world.now_ns += 2_000_000
            for seen, end in zip(self.seen, (self.sender, *self.receivers), strict=True):
                seen += end.send_cq.poll() + end.recv_cq.poll()

    def _post(self, ring: bool) -> None:
        random = self.random
        end = self.receivers[random.random() < 0.1]
        size = random.choice((0, 1, 64, 1000, 1024))
        data = (1 << 31 | 20).to_bytes(4, "big") + random.randbytes(28)
        self.sender.datagram(
            self.source, size, self.world.b.port.lid, end.qpn, qkey=random.choice((0x1234, 0x1234, 0x1234, 1 << 31)),
            imm=random.choice((None, 7)), grh=random.choice((None, self.world.b.port.gids[0])), ring=ring,
            se=random.getrandbits(1), ce=random.choice((0, 2)), inline=data if random.random() < 0.2 else None,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(int(os.environ.get("VHCA_EXAMPLES", "20"))))
def test_datagrams_have_one_outcome(seed: int) -> None:
    worlds = [Datagrams(seed, rails) for rails in (False, True)]
    for one in worlds:
        one.run(40)
    python, native = worlds
    assert native.seen == python.seen
    for mine, theirs in ((native.world.a, python.world.a), (native.world.b, python.world.b)):
        assert bytes(mine.memory.data) == bytes(theirs.memory.data)
        assert mine.port.counters == theirs.port.counters
        differ = {Count.TRAINS, Count.TRAIN_MESSAGES}
        assert {n: v for n, v in mine.hca.count.items() if n not in differ} == {
            n: v for n, v in theirs.hca.count.items() if n not in differ
        }
    assert native.sender.qp.requester.next_psn == python.sender.qp.requester.next_psn
    assert native.world.trains or native.short
