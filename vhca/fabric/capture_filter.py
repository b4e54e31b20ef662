"""Which packets a capture is to have: by direction, addresses, queue pairs, operation, and kind of management."""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from vhca.fabric.faults import opcodes_named
from vhca.fabric.pcapng import OUTBOUND
from vhca.wire.ib import opcode_of
from vhca.wire.opcodes import SERVICE_NAMES
from vhca.wire.packet import ACKNOWLEDGE, UD, Packet

Way = Literal["both", "in", "out"]
"""Seen from the recorded port: what it sends is on its way out."""

WAYS: Final[tuple[Way, ...]] = get_args(Way)
SERVICES: Final = {name: service for service, name in SERVICE_NAMES.items()}
_CLASS_AT: Final = 1
"""The management class in a MAD (13.4.2)."""


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """All of these must hold for a packet that is recorded.

    - `direction`: "in", "out" or "both"
    - `lids`: one of these is its SLID or DLID; `qpns`: one of these is its destination or (of datagrams) source
    - `opcode`: a name, or its beginning: "RDMA_WRITE", "RC_SEND_ONLY"
    - `service`: "RC", "UC", "UD", "XRC" or "DC"
    - `management`: True for datagrams of QP0 and QP1 only, False for all others
    - `management_class`: of those, the ones of this class (0x81: SMPs by directed route, 0x03: the SA ...)
    - `acknowledgements`: False leaves ACKs and NAKs out

    :raises ValueError: there is no such opcode, service or direction.
    """

    direction: Way = "both"
    lids: frozenset[int] = frozenset()
    qpns: frozenset[int] = frozenset()
    opcode: str | None = None
    service: str | None = None
    management: bool | None = None
    management_class: int | None = None
    acknowledgements: bool = True
    _codes: frozenset[int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.direction not in WAYS:
            raise ValueError(f"no direction {self.direction!r}; there are {', '.join(WAYS)}")
        if self.service is not None and self.service not in SERVICES:
            raise ValueError(f"no service {self.service!r}; there are {', '.join(SERVICES)}")
        if self.opcode is not None:
            object.__setattr__(self, "_codes", opcodes_named(self.opcode))

    def wants(self, packet: Packet, direction: int) -> bool:
        """Whether a packet, or every packet of a burst but for the opcode's place, is to be recorded."""
        if self.direction != "both" and (self.direction == "out") != (direction == OUTBOUND):
            return False
        if self.lids and packet.route.slid not in self.lids and packet.route.dlid not in self.lids:
            return False
        if self.qpns and packet.dest_qp not in self.qpns and (packet.service != UD or packet.src_qp not in self.qpns):
            return False
        if self.service is not None and packet.service != SERVICES[self.service]:
            return False
        if not self.acknowledgements and packet.op == ACKNOWLEDGE:
            return False
        management = packet.service == UD and (packet.dest_qp <= 1 or packet.src_qp <= 1)
        if self.management is not None and management != self.management:
            return False
        if self.management_class is not None:
            return management and packet.payload[_CLASS_AT : _CLASS_AT + 1] == bytes((self.management_class,))
        return True

    def wants_part(self, part: Packet) -> bool:
        """Whether a packet of a burst has the opcode."""
        if self._codes is None:
            return True
        try:
            return opcode_of(part).code in self._codes
        except ValueError:  # a card sent what no wire could carry
            return False


EVERYTHING: Final = CaptureFilter()
