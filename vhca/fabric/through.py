"""A way through the fabric on which nothing happens to packets: cables, and the tables of the switches between them.

As long as nobody taps, damages or delays what is on the cables, and the switches forward as they should, it makes no
difference whether packets are handed from one to the next or are only counted. What was found holds until the fabric
says that something changed; so a way of many cables costs no more to look at than one of two.
"""

from typing import Final, Protocol

from vhca.fabric.link import Endpoint, LinkEnd
from vhca.fabric.port import SwitchPort
from vhca.fabric.wires import Wires
from vhca.wire.packet import MULTICAST_LID_FIRST, Route
from vhca.wire.smp import PORT_ACTIVE

MAX_SWITCHES: Final = 64
"""On a way; tables may lead in circles."""

Hop = tuple[SwitchPort, SwitchPort]
"""Ports of one switch: of arrival, of departure."""


class Gate(Endpoint, Protocol):
    """The port of a card, where ways begin and end."""

    @property
    def end(self) -> LinkEnd:
        """Its end of its cable."""
        ...


class Way:
    """From one card's port to another one, by `route`, and back by `back`, with these P_Keys there and back."""

    def __init__(self, near: Gate, far: Gate, route: Route, back: Route, pkeys: tuple[int, int]) -> None:
        self._near = near
        self._far = far
        self._route = route
        self._back = back
        self._pkeys = pkeys
        self._wires: Wires = near.end.link.wires
        self._seen = 0  # changes of the fabric when it was looked at last
        self._mtu = 0  # the largest that passes both ways, 0 if nothing does
        self._there: list[Hop] = []
        self._back_again: list[Hop] = []
        self._ends: list[LinkEnd] = []  # those that packets are sent from, on the way there
        # What passed and is not counted yet: packets and words, there and back.
        self._owed = False
        self._sent = self._sent_words = self._returned = self._returned_words = 0
        self._look()

    def is_open(self, mtu: int, *, empty: bool = False) -> bool:
        """See :class:`vhca.hw.hardware.Through`."""
        wires = self._wires
        if self._seen != wires.changes:
            self._look()
        if mtu > self._mtu:
            return False
        if not wires.busy:
            return True
        return not any(end.in_use if empty else end.full for end in self._ends)

    def passed(self, sent: int, sent_words: int, back: int, back_words: int) -> None:
        """See :class:`vhca.hw.hardware.Through`; ports count it when somebody reads their counters."""
        self._sent += sent
        self._sent_words += sent_words
        self._returned += back
        self._returned_words += back_words
        if not self._owed:
            self._owed = True
            # Which may count all that is owed at once.
            self._wires.owe(self._settle, 1 + len(self._there) + len(self._back_again))

    def _settle(self) -> None:
        self._owed = False
        there = self._there, self._sent, self._sent_words, self._route
        back = self._back_again, self._returned, self._returned_words, self._back
        self._sent = self._sent_words = self._returned = self._returned_words = 0
        for hops, count, words, route in (there, back):
            vl, sl = route.vl, route.sl
            for arrival, departure in hops:
                arrival.counters.received_many(count, words, sl, vl)
                departure.counters.sent_many(count, words, sl)
                vl = departure.lane(arrival.number, sl)

    def _look(self) -> None:
        if self._owed:
            self._settle()  # at the ports that it passed
        self._seen = self._wires.changes
        self._there, arrives = walk(self._near, self._route)
        self._back_again, returns = walk(self._far, self._back)
        self._ends = [self._near.end, *(out.end for _, out in self._there if out.end is not None)]
        self._mtu = 0
        if arrives is self._far and returns is self._near:
            there, back = self._pkeys
            self._mtu = min(_passing(self._there, self._route, there), _passing(self._back_again, self._back, back))


def walk(near: Gate, route: Route) -> tuple[list[Hop], Endpoint | None]:
    """The switches that packets by `route` pass, and what they reach behind the last one.

    None if a table leads nowhere, into a switch, or in a circle.
    """
    hops: list[Hop] = []
    there = near.end.other.endpoint
    while isinstance(there, SwitchPort):
        out = there.switch.out_port(route.dlid) if 0 < route.dlid < MULTICAST_LID_FIRST else None
        if out is None or out.end is None or len(hops) >= MAX_SWITCHES:
            return hops, None
        hops.append((there, out))
        there = out.end.other.endpoint
    return hops, there


def _passing(hops: list[Hop], route: Route, pkey: int) -> int:
    """The largest packet, in bytes, that switches and cables of a way let pass as they do with packets; 0 for none."""
    most = 1 << 16 if hops else 0
    vl = route.vl
    for arrival, departure in hops:
        if not (
            _is_plain(arrival)
            and _is_plain(departure)
            and arrival is not departure
            and arrival.state == departure.state == PORT_ACTIVE
            and vl < arrival.data_vls
            and route.slid & arrival.source_mask == arrival.source_lid
            and (arrival.admits is None or pkey in arrival.admits)
            and (departure.emits is None or pkey in departure.emits)
        ):
            return 0
        vl = departure.lane(arrival.number, route.sl)
        if vl >= departure.data_vls:
            return 0
        most = min(most, departure.mtu_bytes)
    return most


def _is_plain(port: SwitchPort) -> bool:
    end = port.end
    return end is not None and end.link.up and end.plain and end.other.plain
