"""What waits at a queue pair, and what the card's budget counts for it.

Work requests and answers come and go by the message; they are counted once in a step, by how many there are. Packets
are counted one by one, with their payload.
"""

from collections.abc import Iterable

from firmware.model.budget import ANSWER_BYTES, PACKET_BYTES, WORK_REQUEST_BYTES
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.qp import Qp
from vhca.wire.packet import Packet


def settle(hca: Hca, qp: Qp) -> None:
    """Count the work requests and answers that wait now."""
    requester = qp.requester
    waiting = len(requester.pending)
    if waiting != requester.charged:
        hca.budget.charge((waiting - requester.charged) * WORK_REQUEST_BYTES)
        requester.charged = waiting
    responder = qp.responder
    waiting = len(responder.replies)
    if waiting != responder.charged:
        hca.budget.charge((waiting - responder.charged) * ANSWER_BYTES)
        responder.charged = waiting


def close(hca: Hca, qp: Qp) -> None:
    """Nothing waits any more: both sides of the queue pair are about to be made anew, or to go."""
    requester, responder = qp.requester, qp.responder
    hca.budget.give(
        requester.charged * WORK_REQUEST_BYTES + responder.charged * ANSWER_BYTES + responder.resource_bytes
    )
    requester.charged = responder.charged = responder.resource_bytes = 0
    drop_packets(hca, qp)


def keep(hca: Hca, packet: Packet) -> bool:
    """Count a packet that is to wait; False if there is no memory for it."""
    if hca.budget.take(len(packet.payload) + PACKET_BYTES):
        return True
    hca.count[Count.RX_DROP_CARD_MEMORY] += 1
    return False


def release(hca: Hca, packets: Iterable[Packet]) -> None:
    """These packets wait no more."""
    hca.budget.give(sum(len(packet.payload) + PACKET_BYTES for packet in packets))


def drop_packets(hca: Hca, qp: Qp) -> None:
    """The packets that wait at this queue pair are lost with its connection."""
    if qp.backlog:
        release(hca, qp.backlog)
    qp.backlog = None
    held = qp.responder.held
    if held:
        release(hca, (packet for _, packet in held))
        held.clear()
