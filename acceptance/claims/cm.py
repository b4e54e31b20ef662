"""Datagrams of the communication manager, as they pass on a cable (12.6 of volume 1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from acceptance.claims.cable import Seen
from vhca.layout import Layout, bits
from vhca.wire.mad import CLASS_CM, MAD_BYTES, MadHeader
from vhca.wire.packet import Packet

REQ: Final = 0x0010
REJ: Final = 0x0012
REP: Final = 0x0013
RTU: Final = 0x0014
NAMES: Final = {REQ: "REQ", 0x0011: "MRA", REJ: "REJ", REP: "REP", RTU: "RTU", 0x0015: "DREQ", 0x0016: "DREP"}


class Request(Layout, size=232):
    """REQ, from behind the common header on (12.6.5)."""

    local_qpn: int = bits(32, 31, 8)
    responder_resources: int = bits(32, 7, 0)
    initiator_depth: int = bits(36, 7, 0)
    starting_psn: int = bits(44, 31, 8)
    local_cm_timeout: int = bits(44, 7, 3)
    retry_count: int = bits(44, 2, 0)
    pkey: int = bits(48, 31, 16)
    path_mtu: int = bits(48, 15, 12)
    rnr_retry_count: int = bits(48, 10, 8)


class Reply(Layout, size=232):
    """REP, from behind the common header on (12.6.8)."""

    local_qpn: int = bits(12, 31, 8)
    starting_psn: int = bits(20, 31, 8)
    responder_resources: int = bits(24, 31, 24)
    initiator_depth: int = bits(24, 23, 16)
    rnr_retry_count: int = bits(24, 7, 5)


@dataclass(slots=True, frozen=True)
class Message:
    """One datagram: what it is, which way it went, what it says if that is a REQ or a REP."""

    attribute: int
    toward_card: bool
    said: Request | Reply | None

    @property
    def name(self) -> str:
        """REQ, REP, RTU, ..."""
        return NAMES.get(self.attribute, f"{self.attribute:#06x}")

    def __str__(self) -> str:
        way = "->card" if self.toward_card else "card->"
        return f"{way} {self.name}" + (f" {self.said}" if self.said is not None else "")


def is_cm(packet: Packet) -> bool:
    """A datagram to the communication manager, which listens at QP1."""
    if packet.dest_qp != 1 or len(packet.payload) != MAD_BYTES:
        return False
    return MadHeader.from_bytes(packet.payload).mgmt_class == CLASS_CM


def messages(traffic: Iterable[Seen]) -> list[Message]:
    """What the communication managers said to each other, in order."""
    found = []
    for seen in traffic:
        if is_cm(seen.packet):
            header = MadHeader.from_bytes(seen.packet.payload)
            layouts: dict[int, type[Request | Reply]] = {REQ: Request, REP: Reply}
            layout = layouts.get(header.attr_id)
            said = layout.from_bytes(seen.packet.payload, MadHeader.SIZE) if layout is not None else None
            found.append(Message(header.attr_id, seen.toward_card, said))
    return found
