"""A request with two faults is refused for the one that the book looks at first (volume 1, 9.7.4.1).

PSN, opcode sequence, opcode support, resources, key, length: each fault is made alone, and with every later one.
"""

from itertools import combinations
from typing import Any

import pytest

from firmware.model.qp import Resource
from tests.scenario.tools import FIRST, inject, large_region
from tests.scenario.world import End, pair
from vhca.wire.headers import AethSyndrome
from vhca.wire.packet import FETCH_ADD, READ_REQUEST, WRITE, Packet

NO_SUCH_KEY = 0xDEAD00
SEQUENCE, INVALID = AethSyndrome.NAK_PSN_SEQUENCE_ERROR, AethSyndrome.NAK_INVALID_REQUEST
ACCESS, WAIT = AethSyndrome.NAK_REMOTE_ACCESS_ERROR, AethSyndrome.RNR_NAK | 7

# What a request with only this fault is answered with, and the reason in the trace; in the order of the book.
WRITE_FAULTS: dict[str, tuple[int, str]] = {
    "psn": (SEQUENCE, ""),
    "sequence": (INVALID, "continues a message that has not started"),
    "support": (INVALID, "RDMA WRITE is not enabled"),
    "resources": (WAIT, ""),
    "key": (ACCESS, "key"),
    "length": (INVALID, "more or less data"),
}
READ_FAULTS: dict[str, tuple[int, str]] = {
    "psn": (SEQUENCE, ""),
    "sequence": (INVALID, "one packet without payload"),
    "support": (INVALID, "RDMA READ is not enabled"),
    "resources": (INVALID, "more READs and atomics outstanding"),
    "key": (ACCESS, "key"),
    "length": (INVALID, "above 2**31"),
}
ATOMIC_FAULTS: dict[str, tuple[int, str]] = {
    **READ_FAULTS,
    "support": (INVALID, "atomics are not enabled"),
    "length": (INVALID, "a multiple of 8"),
}


def pairs(faults: dict[str, tuple[int, str]]) -> list[tuple[str, ...]]:
    """Each fault alone, and all pairs, in order."""
    return [(one,) for one in faults] + list(combinations(faults, 2))


def good(op: int, b: End) -> dict[str, Any]:
    """A request that would be executed, if there is a receive for it."""
    address, key = large_region(b, (1 << 31) + 64)
    fields: dict[str, Any] = {"psn": FIRST, "va": address, "rkey": key, "ack_req": True}
    if op == WRITE:
        fields |= {"payload": bytes(16), "dma_length": 16, "immediate": 1}
    elif op == READ_REQUEST:
        fields |= {"dma_length": 16}
    return fields


def spoil(fields: dict[str, Any], op: int, b: End, faults: tuple[str, ...]) -> None:
    """Make the faults in the request, or around it."""
    qp = b.qp
    if "psn" in faults:
        fields["psn"] = FIRST + 5
    if "sequence" in faults:
        fields |= {"start": False} if op == WRITE else {"payload": bytes(4)}
    if "resources" not in faults:
        b.post_recv(b.buffer(64), 64)
    elif op != WRITE:
        # Past the door: the one READ that it may answer at a time is not answered yet.
        qp.responder.resources.append(Resource(FIRST - 1, 1, READ_REQUEST, 0, 0, 0))
    if "key" in faults:
        fields["rkey"] = NO_SUCH_KEY
    if "length" in faults:
        if op == WRITE:
            fields["dma_length"] = 20
        elif op == READ_REQUEST:
            fields["dma_length"] = (1 << 31) + 1
        else:
            fields["va"] += 4


def answer_to(op: int, faults: tuple[str, ...]) -> tuple[int, str]:
    """The syndrome of the answer, and the reason that the trace gives."""
    enabled = int("support" not in faults)
    world, _, b = pair(min_rnr_nak=7, log_rra_max=0, rre=enabled, rwe=enabled, rae=enabled)
    b.card.traces.clear()
    answers: list[int] = []

    def listen(packet: Packet) -> list[Packet]:
        if packet.op not in (WRITE, READ_REQUEST, FETCH_ADD):
            answers.append(packet.syndrome)
        return [packet]

    world.fault = listen
    fields = good(op, b)
    spoil(fields, op, b, faults)
    inject(world, b, op=op, **fields)
    world.settle()
    assert len(answers) == 1
    return answers[0], " ".join(str(details.get("why", "")) for _, details in b.card.traces)


@pytest.mark.parametrize("faults", pairs(WRITE_FAULTS), ids="+".join)
def test_a_write(faults: tuple[str, ...]) -> None:
    syndrome, why = WRITE_FAULTS[faults[0]]
    found = answer_to(WRITE, faults)
    assert found[0] == syndrome
    assert why in found[1]


@pytest.mark.parametrize("faults", pairs(READ_FAULTS), ids="+".join)
def test_a_read(faults: tuple[str, ...]) -> None:
    syndrome, why = READ_FAULTS[faults[0]]
    found = answer_to(READ_REQUEST, faults)
    assert found[0] == syndrome
    assert why in found[1]


@pytest.mark.parametrize("faults", pairs(ATOMIC_FAULTS), ids="+".join)
def test_an_atomic(faults: tuple[str, ...]) -> None:
    syndrome, why = ATOMIC_FAULTS[faults[0]]
    found = answer_to(FETCH_ADD, faults)
    assert found[0] == syndrome
    assert why in found[1]


@pytest.mark.parametrize("op", [WRITE, READ_REQUEST, FETCH_ADD])
def test_a_request_without_a_fault_is_executed(op: int) -> None:
    assert answer_to(op, ())[0] == AethSyndrome.ACK_NO_CREDITS
