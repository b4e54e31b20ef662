"""What a card's budget should say, counted anew from what the card keeps."""

from __future__ import annotations

from collections.abc import Iterable

from firmware.model.budget import (
    ANSWER_BYTES,
    CONNECTION_BYTES,
    MULTICAST_GROUP_BYTES,
    MULTICAST_MEMBER_BYTES,
    OBJECT_BYTES,
    PACKET_BYTES,
    PAGE_REQUEST_BYTES,
    WORK_REQUEST_BYTES,
)
from firmware.model.hca import Hca
from firmware.model.qp import Qp
from vhca.wire.packet import Packet


def expected(hca: Hca) -> int:
    """Bytes that the objects of this card and what waits at them amount to."""
    total = 0
    for table in hca.tables():
        for obj in table:
            assert obj.charged >= OBJECT_BYTES[table.kind]
            total += obj.charged
    connections = [qp for target in hca.dcts for _, qp in target.connections.values()]
    total += sum(_waiting(qp) for qp in [*hca.qps, *connections]) + CONNECTION_BYTES * len(connections)
    for group in hca.multicast.values():
        total += MULTICAST_GROUP_BYTES + MULTICAST_MEMBER_BYTES * len(group.members)
    faults = hca.page_faults
    return total + PAGE_REQUEST_BYTES * (len(faults.outstanding) + len(faults.waiting))


def _waiting(qp: Qp) -> int:
    requester, responder = qp.requester, qp.responder
    packets: Iterable[Packet] = [*(qp.backlog or ()), *(packet for _, packet in responder.held)]
    return (
        requester.charged * WORK_REQUEST_BYTES
        + responder.charged * ANSWER_BYTES
        + responder.resource_bytes
        + sum(len(packet.payload) + PACKET_BYTES for packet in packets)
    )
