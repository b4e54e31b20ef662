"""The subnet manager of the scenarios: it sets up a card's port by datagrams that arrive at the port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vhca.wire import mad, smp
from vhca.wire.packet import MANAGEMENT_VL, PERMISSIVE_LID, SEND, UD, Packet, Route

if TYPE_CHECKING:
    from tests.scenario.card import Card

SM_LID = 1
ROUTE = Route(PERMISSIVE_LID, PERMISSIVE_LID, vl=MANAGEMENT_VL)


class Manager:
    """What a subnet manager does to one port."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def ask(self, method: int, attribute: int, data: bytes = b"") -> bytes:
        """Send a directed request to the port; gives the data of the answer, which must be good."""
        request = mad.Smp(base_version=1, mgmt_class=mad.CLASS_SUBN_DR, class_version=1, method=method,
                          attr_id=attribute, dr_slid=PERMISSIVE_LID, dr_dlid=PERMISSIVE_LID,
                          data=data.ljust(64, b"\0"))  # fmt: skip
        answers: list[Packet] = []
        cable, self._card.cable = self._card.cable, answers.append
        try:
            self._card.receive(Packet(ROUTE, UD, SEND, 0, 0, request.to_bytes()))
        finally:
            self._card.cable = cable
        (answer,) = answers
        reply = mad.Smp.from_bytes(answer.payload)
        assert not reply.status & ~mad.STATUS_DIRECTION, f"refused: {reply.status:#x}"
        return reply.data

    def port_info(self) -> smp.PortInfo:
        """How the port is."""
        return smp.PortInfo.from_bytes(self.ask(mad.METHOD_GET, smp.PORT_INFO))

    def set_port(self, **fields: int) -> None:
        """Change PortInfo."""
        info = self.port_info()
        # No change, unless told.
        info.port_state = info.port_physical_state = 0
        for name, value in fields.items():
            setattr(info, name, value)
        self.ask(mad.METHOD_SET, smp.PORT_INFO, info.to_bytes())

    def violations(self) -> tuple[int, int]:
        """Packets with a wrong Q_Key, and with a wrong P_Key."""
        info = self.port_info()
        return info.qkey_violations, info.pkey_violations

    def set_pkeys(self, *pkeys: int) -> None:
        """The P_Key table, from its first entry on."""
        self.ask(mad.METHOD_SET, smp.P_KEY_TABLE, b"".join(pkey.to_bytes(2, "big") for pkey in pkeys))

    def activate(self, lid: int) -> None:
        """Lead a port whose cable is plugged into Active."""
        self.set_port(lid=lid, sm_lid=SM_LID)
        for state in (smp.PORT_ARMED, smp.PORT_ACTIVE):
            self.set_port(port_state=state)
        assert self._card.port.active
