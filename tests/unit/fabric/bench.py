"""A bench without guests: a virtual clock, a queue of turns, and cards that consist of an agent only."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from firmware.mads import packets
from firmware.mads.port import PortEvent
from firmware.mads.sma import Sma, owns
from tests.packets import changed
from vhca.fabric.fabric import Fabric
from vhca.fabric.telling import tell
from vhca.hw.hardware import BoardInfo
from vhca.management.link_speed import LinkSpeed
from vhca.management.subnet import LINK_CHANGE_NS
from vhca.sim.clock import VirtualClock
from vhca.wire import mad as madwire
from vhca.wire.mad import SaMad
from vhca.wire.packet import SEND, UD, Packet, Route


class Turns:
    """What `call_soon` needs: runs everything until nothing is left."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def call_soon(self, fn: Callable[[], None]) -> None:
        self._queue.append(fn)

    def one(self) -> None:
        """One turn, of the one that has waited longest."""
        self._queue.popleft()()

    def run(self, limit: int = 200_000) -> None:
        for _ in range(limit):
            if not self._queue:
                return
            self._queue.popleft()()
        raise AssertionError("the turns never end")


class Card:
    """An HCA reduced to its SMA; everything else that arrives is kept in `inbox`."""

    def __init__(
        self, fabric: Fabric, name: str, guid: int, now_ns: Callable[[], int], mtu: int = 4096, host: str | None = None
    ) -> None:
        self.now_ns = now_ns
        self.port = fabric.add_port(name, host)
        link = self.port.train(LinkSpeed())
        self.sma = Sma(BoardInfo(guid, guid, (guid,), node_description=name, mtu=mtu, link=link))
        self.events: list[PortEvent] = []
        self.inbox: list[Packet] = []
        self.silent = False
        self.port.attach(self.receive, self.link_changed, port_info=lambda: self.sma.port(1).info)

    @property
    def state(self) -> int:
        return self.sma.port(1).state

    @property
    def lid(self) -> int:
        return self.sma.port(1).lid

    @property
    def gid(self) -> bytes:
        return self.sma.port(1).gid(0)

    def link_changed(self, up: bool) -> None:
        self.events += self.sma.link_up(1, up)

    def receive(self, packet: Packet) -> None:
        if packet.dest_qp != 0 or not owns(packet.payload):
            self.inbox.append(packet)
            return
        if self.silent:
            return
        reply, events = self.sma.handle(1, packet.payload, now_ns=self.now_ns(), source=packet.route.slid)
        self.events += events
        if reply is not None:
            self.port.send(packets.reply_packet(packet, reply, self.lid))
        self.steer()
        self.tell()

    def tell(self) -> None:
        """Send the traps that wait."""
        tell(self.sma, self.sma.port(1), self.now_ns, self.port.send, self.port.end)

    def steer(self) -> None:
        """Do with the cable what a manager has ordered."""
        port = self.sma.port(1)
        if port.retrain:
            port.retrain = False
            self.port.link.call_later(LINK_CHANGE_NS, self._bounce)

    def _bounce(self) -> None:
        self.port.set_enabled(False)
        self.port.set_enabled(not self.sma.port(1).disabled)

    def data(self, dlid: int, payload: bytes = b"data", **fields: int) -> Packet:
        return changed(Packet(Route(dlid, self.lid), UD, SEND, 0x100, 1, payload, mtu=256, src_qp=0x200), **fields)


class Bench:
    """A fabric with cards, and time that moves when asked to."""

    def __init__(self, cards: int = 2, num_ports: int = 36, mkey: int | None = None, **fabric: Any) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.fabric = Fabric(
            self.turns.call_soon, self.clock, num_ports=num_ports, mkey=mkey, random=Random(1), **fabric
        )
        self.cards = [self.add_card() for _ in range(cards)] if cards else []

    def add_card(self, mtu: int = 4096) -> Card:
        number = len(self.fabric.ports)
        return Card(self.fabric, f"hca{number}", 0x1000 + number, self.clock.now_ns, mtu)

    def run(self) -> None:
        self.turns.run()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.clock.now_ns() + int(seconds * 1e9)
        self.run()
        while (deadline := self.fabric.next_deadline()) is not None and deadline <= end:
            self.clock.advance(max(0, deadline - self.clock.now_ns()))
            self.fabric.run_timers(self.clock.now_ns())
            self.run()
        self.clock.advance(end - self.clock.now_ns())

    def sa(self, card: Card, request: SaMad, **fields: int) -> list[SaMad]:
        """Ask the SA from a card's QP1 and give what comes back."""
        card.inbox.clear()
        packet = card.data(self.fabric.manager.lid, request.to_bytes(), dest_qp=1, src_qp=1, qkey=madwire.QP1_QKEY)
        packet = changed(packet, **fields)
        card.port.send(packet)
        self.run()
        return [SaMad.from_bytes(p.payload) for p in card.inbox if p.dest_qp == packet.src_qp]
