"""Packets of a connected queue pair that wait behind a burst which is stored in parts.

A burst may be cut into thousands of pieces by the key that it goes to, and a step is bounded. So its first packets are
stored in the step at hand, and the rest waits here, in front of whatever comes after it, for turns of its own. To the
protocol that is a burst which arrived as several: nothing else has happened yet when the cut is made.
"""

from collections import deque
from dataclasses import replace
from typing import Final

from firmware.model.budget import PACKET_BYTES
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.qp import Qp
from firmware.model.turns import STORE
from firmware.transport import account
from vhca.wire.ib import cut
from vhca.wire.packet import Packet

# More than a peer that keeps to a window has under way. The rest is lost, and comes again if the service is reliable.
BACKLOG_PACKETS: Final = 1024
MAX_BYTES: Final = 4 << 20


def add(hca: Hca, qp: Qp, packet: Packet) -> None:
    """Let a packet wait behind those that wait already."""
    waiting = qp.backlog
    assert waiting is not None
    if (
        len(waiting) >= BACKLOG_PACKETS
        or sum(len(other.payload) for other in waiting) + len(packet.payload) > MAX_BYTES
    ):
        hca.count[Count.RX_DROP_BACKLOG] += 1
    elif account.keep(hca, packet):
        waiting.append(packet)


def first_part(hca: Hca, qp: Qp, packet: Packet, covered: int) -> Packet:
    """The first packets of a burst, as many as hold `covered` bytes, but one at least; the others wait in front."""
    n = max(covered // packet.mtu, 1)
    if qp.backlog is None:
        qp.backlog = deque()
    rest = cut(packet, n)
    # It is here already, whether there is memory left or not.
    hca.budget.charge(len(rest.payload) + PACKET_BYTES)
    qp.backlog.appendleft(rest)
    hca.turns.add(STORE, qp)
    hca.count[Count.RX_BURSTS_CUT] += 1
    return replace(packet, payload=packet.payload[: n * packet.mtu], count=n, end=False, ack_req=False)


def take(hca: Hca, qp: Qp) -> Packet | None:
    """The next packet that waited; the one behind it gets a turn of its own."""
    waiting = qp.backlog
    if not waiting:
        return None
    packet = waiting.popleft()
    account.release(hca, (packet,))
    if waiting:
        hca.turns.add(STORE, qp)
    return packet
