"""Regions whose pages come and go, and the host that brings them in."""

import struct
from dataclasses import dataclass

from firmware.model.objects import MODE_MTT
from tests.scenario.card import ALL_EVENTS
from tests.scenario.registration import load, registration_queue
from tests.scenario.world import ALL_RIGHTS, ST_UD, Card, End, World, data, rights_fields
from vhca.wire.connectx.cmd import Op, PageFaultResumeIn
from vhca.wire.connectx.eqe import EventType, MemoryFaultData
from vhca.wire.connectx.wqe import RaddrSegment, WqeOpcode

PAGE = 4096
ABSENT, READABLE, PRESENT = 0, 1, 3
# Behind earlier READs and atomics: their results may be what is sent.
FENCE = 2
ENTRIES_PER_BLOCK = 8


@dataclass
class Fault:
    """A page fault event as the host reads it."""

    token: int
    key: int
    va: int
    pages: int
    ahead: int


class Region:
    """A region whose pages come and go; address = bus address."""

    def __init__(self, card: Card, pages: int, rights: int = ALL_RIGHTS) -> None:
        self.card = card
        self.addr = card.alloc(pages * PAGE)
        self.pages = pages
        # The host's own table, in whole blocks as it is loaded; not yet what the card has.
        self._entries = bytearray(-(-pages // ENTRIES_PER_BLOCK) * 64)
        octwords = len(self._entries) // 16
        self.key = card.create_key(
            MODE_MTT, bytes(self._entries), pg_access=1, start_addr=self.addr, len=pages * PAGE, log_page_size=12,
            mkey_7_0=0x33, umr_en=1, translations_octword_size=octwords, **rights_fields(rights),
        )  # fmt: skip

    def set(self, rights: int, first: int = 0, count: int | None = None) -> None:
        """Let pages come or go by a work request of the host."""
        for page in range(first, self.pages if count is None else first + count):
            struct.pack_into(">Q", self._entries, page * 8, (self.addr + page * PAGE) | rights)
        assert load(registrar(self.card), self.card.mkey(self.key), bytes(self._entries)) == 0

    def write(self, content: bytes, at: int = 0) -> None:
        self.card.memory.write(self.addr + at, content)

    def read(self, size: int, at: int = 0) -> bytes:
        return self.card.memory.read(self.addr + at, size)


def registrar(card: Card) -> End:
    """The registration queue of a card's host, made when it is first needed."""
    queue = card.kept.get("registrar")
    if queue is None:
        queue = card.kept["registrar"] = registration_queue(card)
    return queue


def faults(card: Card) -> list[Fault]:
    """New page faults; other events are passed over."""
    out = []
    for event in card.new_events():
        if event.event_type == EventType.PAGE_FAULT:
            assert event.event_sub_type == 2
            view = MemoryFaultData.from_bytes(event.event_data)
            assert view.last
            out.append(Fault(view.token_47_32 << 32 | view.token_31_0, view.mkey, view.va, view.demand_fault_pages,
                             view.post_demand_fault_pages))  # fmt: skip
    card.update_eq(arm=False)
    return out


def resume(card: Card, token: int, good: bool = True) -> int:
    """Answer a page fault; gives the status of the command."""
    view = PageFaultResumeIn(error=int(not good), fault_token_47_32=token >> 32, fault_token_31_0=token & 0xFFFFFFFF)
    return card.submit(Op.PAGE_FAULT_RESUME, view)[0]


def answer(card: Card, fault: Fault, good: bool = True) -> None:
    assert resume(card, fault.token, good) == 0


def deaf(card: Card) -> None:
    """Let the card have no queue for page faults."""
    card.listen(ALL_EVENTS & ~(1 << EventType.PAGE_FAULT))


def serve(world: World, region: Region) -> int:
    """Bring in what is asked for until nobody asks; returns how often."""
    for count in range(100):
        world.pass_time(10_000_000)
        asked = faults(region.card)
        if not asked:
            return count
        for fault in asked:
            assert fault.key == region.key
            assert fault.va % PAGE == 0
            region.set(PRESENT, (fault.va - region.addr) // PAGE, fault.pages)
            answer(region.card, fault)
    raise AssertionError("the faults never end")


def refuse_all(world: World, card: Card) -> int:
    """Refuse what is asked for until nobody asks."""
    for count in range(100):
        asked = faults(card)
        if not asked:
            return count
        for fault in asked:
            answer(card, fault, good=False)
        world.pass_time(400_000_000)
    raise AssertionError("the faults never end")


def statuses(end: End) -> tuple[list[int], list[int]]:
    return [c.syndrome for c in end.send_cq.poll()], [c.syndrome for c in end.recv_cq.poll()]


def atomic(end: End, local: int, lkey: int, remote: int, rkey: int, add: int = 1, **more: int) -> None:
    segments = RaddrSegment(raddr=remote, rkey=rkey).to_bytes() + struct.pack(">QQ", add, 0)
    end.post(WqeOpcode.ATOMIC_FA, segments + data(local, 8, lkey), **more)


def datagrams() -> tuple[World, End, End]:
    world = World()
    a, b = End(world.a, ST_UD), End(world.b, ST_UD)
    for end in (a, b):
        end.to_init()
        end.to_rtr(mtu=5)
        end.to_rts()
    return world, a, b


def av_send(end: End, addr: int, size: int, key: int, peer: End) -> None:
    end.datagram(addr, size, peer.card.port.lid, peer.qpn, key=key)
