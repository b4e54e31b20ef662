"""What several scenarios need beside the stage itself: forged packets, losses, regions of any size, stalls."""

from collections.abc import Callable, Mapping

from firmware.model.counters import Count
from firmware.transport import engine
from tests.packets import packet_of
from tests.scenario.world import Card, End, World
from vhca.hw.effects import Transmit
from vhca.wire.packet import Packet

# The PSN that both directions of a connection start with (see world.End).
FIRST = 0xFFFFF0


def inject(world: World, to: End, **fields: object) -> None:
    """A packet from the peer of `to`, as a stranger would forge it."""
    own, other = (2, 1) if to.card is world.b else (1, 2)
    base: dict[str, object] = {"dlid": own, "slid": other, "service": 0, "dest_qp": to.qpn, "mtu": 1024}
    packet = packet_of(**{**base, **fields})
    world.wire(world.other(to.card), packet)
    world.deliver(100)


def counted(counters: Mapping[Count, int]) -> dict[Count, int]:
    """The counters of a card that have counted something."""
    return {name: value for name, value in counters.items() if value}


def lose(numbers: set[int]) -> Callable[[Packet], list[Packet]]:
    """A link that loses the packets with these ordinal numbers."""
    seen = iter(range(1 << 30))
    return lambda packet: [] if next(seen) in numbers else [packet]


def large_region(end: End, size: int) -> tuple[int, int]:
    """A region of any size that takes one page of memory, shown again and again: address and key."""
    page = end.card.alloc(4096)
    return page, end.card.register(page, size, pages=[page] * ((size >> 12) + 2))


def stall(world: World, end: End, ns: int = 400_000_000) -> None:
    """The host's process stood still: `end` sees its timers expire before it sees what waits on the cable."""
    world.now_ns += ns
    end.card.step(lambda: engine.run_timers(end.card.hca))


class Steps:
    """Watches how many bytes of payload the largest step of a card sends; effects are not kept."""

    def __init__(self, card: Card) -> None:
        self.most_bytes = 0
        self.card = card
        self._step = card.step
        card.step = self._measured  # type: ignore[method-assign]

    def _measured(self, action: Callable[[], object]) -> None:
        self.card.effects.clear()
        self._step(action)
        sent = sum(len(effect.packet.payload) for effect in self.card.effects if isinstance(effect, Transmit))
        self.most_bytes = max(self.most_bytes, sent)


def sent(world: World, what: str) -> int:
    """Packets on the ladder whose line has `what` in it."""
    return sum(what in line for line in world.ladder)
