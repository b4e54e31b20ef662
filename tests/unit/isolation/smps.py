"""What a guest's root can put on its cable: SMPs of its own, by LID and by directed route."""

from tests.unit.fabric.bench import Bench, Card
from vhca.layout import Layout
from vhca.management.packets import smp_packet
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.packet import PERMISSIVE_LID
from vhca.wire.smp import PortInfo


class Forger:
    """Sends SMPs from `card` and gives the answers that came back to it."""

    def __init__(self, bench: Bench, card: Card) -> None:
        self.bench = bench
        self.card = card

    def by_lid(self, lid: int, method: int, attr: int, modifier: int = 0, data: bytes | Layout = b"") -> list[Smp]:
        return self.send(self.smp(m.CLASS_SUBN_LID, method, attr, modifier, data), lid, self.card.lid)

    def by_route(
        self, ports: tuple[int, ...], method: int, attr: int, modifier: int = 0, data: bytes | Layout = b""
    ) -> list[Smp]:
        """`ports`: where to leave each switch; () ends at the first one."""
        smp = self.smp(m.CLASS_SUBN_DR, method, attr, modifier, data)
        smp.hop_pointer, smp.hop_count = 1, len(ports) + 1
        smp.dr_slid = smp.dr_dlid = PERMISSIVE_LID
        smp.initial_path = bytes((0, 1, *ports)).ljust(64, b"\0")
        smp.return_path = bytes((0, 1)).ljust(64, b"\0")
        return self.send(smp, PERMISSIVE_LID, PERMISSIVE_LID)

    def smp(self, mgmt_class: int, method: int, attr: int, modifier: int, data: bytes | Layout) -> Smp:
        return Smp(
            base_version=1,
            mgmt_class=mgmt_class,
            class_version=1,
            method=method,
            tid=0x77,
            attr_id=attr,
            attr_mod=modifier,
            data=bytes(data).ljust(64, b"\0"),
        )

    def send(self, smp: Smp, dlid: int, slid: int) -> list[Smp]:
        self.card.inbox.clear()
        self.card.port.send(smp_packet(smp.to_bytes(), dlid, slid))
        self.bench.run()
        return [Smp.from_bytes(p.payload) for p in self.card.inbox if p.dest_qp == 0 and p.payload[3] & 0x80]

    def port_info(self, lid: int, modifier: int = 0) -> PortInfo | None:
        answers = self.by_lid(lid, METHOD_GET, w.PORT_INFO, modifier)
        return PortInfo.from_bytes(answers[0].data) if answers else None

    def set_port_info(self, dlid: int, now: PortInfo, modifier: int = 0, **changes: int) -> list[Smp]:
        info = PortInfo.from_bytes(now.to_bytes())
        info.port_state = info.port_physical_state = 0
        for name, value in changes.items():
            setattr(info, name, value)
        return self.by_lid(dlid, METHOD_SET, w.PORT_INFO, modifier, info)
