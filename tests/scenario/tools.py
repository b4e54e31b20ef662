"""What several scenarios need beside the stage itself: forged packets, losses, regions of any size, stalls."""

from collections.abc import Callable, Mapping

import pytest

from firmware.model.budget import OBJECT_BYTES
from firmware.model.counters import Count, CountOf
from firmware.model.objects import MODE_MTT
from firmware.model.qp import ERR, INIT, RST, RTR
from tests.packets import packet_of
from tests.scenario.world import Card, End, World
from vhca.counting import shown
from vhca.hw.effects import Effects, Transmit
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.eqe import EventType
from vhca.wire.packet import Packet

MOST_OCTWORDS = 1 << 21
# Of a scenario that looks at packets on the cable, or at steps, of messages that a train would have taken.
under_way = pytest.mark.under_way

# The PSN that both directions of a connection start with (see world.End).
FIRST = 0xFFFFF0


def inject(world: World, to: End, **fields: object) -> None:
    """A packet from the peer of `to`, as a stranger would forge it."""
    own, other = (2, 1) if to.card is world.b else (1, 2)
    base: dict[str, object] = {"dlid": own, "slid": other, "service": 0, "dest_qp": to.qpn, "mtu": 1024}
    packet = packet_of(**{**base, **fields})
    world.wire(world.other(to.card), packet)
    world.deliver(100)


# What counts what the driver and the subnet manager do for every scenario.
ATTENDANCE = {Count.COMMANDS, Count.SQ_DOORBELLS, Count.SMPS_HANDLED}


def counted(counters: Mapping[Count, int], *but: Count) -> dict[Count, int]:
    """The counters of a card that have counted something, beside attendance and those that are named."""
    return {name: value for name, value in counters.items() if value and name not in ATTENDANCE and name not in but}


def tallied(card: Card) -> dict[str, int]:
    """What a card has counted by numbers, whichever engine worked; the port came up before a queue for its events."""
    unclaimed = CountOf.EVENT_UNCLAIMED.name_for(EventType.PORT_CHANGE)
    found = shown({}, card.hca.count_of).items()
    return {name: value for name, value in found if name != unclaimed and not name.startswith(CountOf.TRAIN_ENDS.rest)}


def counter_set(end: End) -> dict[str, int]:
    """The counters of a queue pair's counter set that have counted something, by name."""
    return {name.value: value for name, value in end.counter.values.items() if value}


def lose(numbers: set[int]) -> Callable[[Packet], list[Packet]]:
    """A link that loses the packets with these ordinal numbers."""
    seen = iter(range(1 << 30))
    return lambda packet: [] if next(seen) in numbers else [packet]


def large_region(end: End, size: int) -> tuple[int, int]:
    """A region of any size that takes one page of memory, shown again and again: address and key."""
    page = end.card.alloc(4096)
    return page, end.card.register(page, size, pages=page.to_bytes(8, "big") * ((size >> 12) + 2))


def use_up(card: Card) -> int:
    """Register keys with room for long lists, until the card's memory is used to the byte; gives how many these are."""
    budget = card.hca.budget
    used = budget.used
    while not budget.full:
        octwords = min(budget.limit - budget.used - OBJECT_BYTES["mkey"] >> 4, MOST_OCTWORDS)
        card.create_key(MODE_MTT, free=1, umr_en=1, translations_octword_size=octwords)
    assert budget.used == budget.limit
    return budget.used - used


def lead(end: End, peer: End, state: int) -> None:
    """Bring a queue pair that was connected into this state."""
    assert end.apply(Op.QP_2ERR if state == ERR else Op.QP_2RST) == 0
    if state not in (ERR, RST):
        end.to_init()
        if state != INIT:
            end.to_rtr(peer)
            if state != RTR:
                end.to_rts()
    assert end.qp.state == state


def stall(world: World, end: End, ns: int = 400_000_000) -> None:
    """The host's process stood still: `end` sees its timers expire before it sees what waits on the cable."""
    world.now_ns += ns
    end.card.run_timers()


class Steps:
    """Watches how many bytes of payload the largest step of a card sends; effects are not kept."""

    def __init__(self, card: Card) -> None:
        self.most_bytes = 0
        self.card = card
        self._step = card.step
        card.step = self._measured  # type: ignore[method-assign]

    def _measured(self, action: Callable[[Effects], object]) -> None:
        self.card.effects.clear()
        self._step(action)
        sent = sum(len(effect.packet.payload) for effect in self.card.effects if isinstance(effect, Transmit))
        self.most_bytes = max(self.most_bytes, sent)


def sent(world: World, what: str) -> int:
    """Packets on the ladder whose line has `what` in it."""
    return sum(what in line for line in world.ladder)
