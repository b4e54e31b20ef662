"""Whole cards on a fabric, each with a driver of its own: what a machine does, without a machine."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.driver import Driver
from tests.unit.fabric.bench import Bench
from vhca.layout import Layout
from vhca.wire import mad as m
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.smp import PORT_INFO, PortInfo


class Machine(Driver):
    """A card, the driver of whoever has it now, and its cable."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        number = len(bench.fabric.ports)
        guid = 0x0002C90300000100 + 0x100 * number
        super().__init__(8 << 20, node_guid=guid, system_image_guid=guid, port_guids=(guid + 1,))
        self.name = f"h{number}"
        self.port = bench.fabric.add_port(self.name)
        self.board.plug(1, self.port)
        self.port.attach(
            lambda packet: self.board.packet_in(1, packet),
            lambda up: self.board.link_change(1, up),
            port_info=lambda: self.board.port_info(1),
        )
        bench.run()

    def _defer(self, call: Callable[[], None]) -> None:  # type: ignore[override]
        self.bench.turns.call_soon(call)

    def run_deferred(self) -> None:
        self.bench.run()

    def pass_time(self, seconds: float) -> None:
        """Time of card and fabric."""
        for _ in range(int(seconds * 20)):
            self.clock.advance(50_000_000)
            self.board.run_timers(self.clock.now_ns())
            self.bench.pass_time(0.05)

    def reset(self, reason: str) -> None:
        """A reset, and the driver loads anew."""
        self.board.reset(reason)
        self.bench.run()
        self.bar_write(0x10, (self.queue >> 32).to_bytes(4, "big"))
        self.bar_write(0x14, (self.queue & 0xFFFFFFFF).to_bytes(4, "big"))

    def lose_power(self) -> None:
        """Its machine ends: what :class:`vhca.chip.card.Card` does then."""
        self.board.reset("lost_connection")
        self.bench.turns.call_soon(lambda: self.port.set_enabled(False))
        self.bench.run()

    def get_power(self) -> None:
        """The next machine starts."""
        self.bench.turns.call_soon(lambda: self.port.set_enabled(True))
        self.reset("device")

    # What root can do to its own port

    def local(self, method: int, attr: int, modifier: int = 0, data: bytes | Layout = b"") -> Smp:
        """An SMP through the host's interface, M_Key ignored."""
        smp = Smp(base_version=1, mgmt_class=m.CLASS_SUBN_LID, class_version=1, method=method, attr_id=attr)
        smp.attr_mod, smp.data = modifier, bytes(data).ljust(64, b"\0")
        view = cmd.MadIfcIn(port=1, mad=smp.to_bytes())
        out = self.run(Op.MAD_IFC, view, out_size=cmd.MadIfcOut.SIZE, op_mod=3)
        return Smp.from_bytes(cmd.MadIfcOut.from_bytes(out).response_mad_packet)

    def port_info(self) -> PortInfo:
        return PortInfo.from_bytes(self.local(METHOD_GET, PORT_INFO).data)

    def set_port_info(self, **changes: int) -> None:
        info = self.port_info()
        info.port_state = info.port_physical_state = 0
        for name, value in changes.items():
            setattr(info, name, value)
        assert self.local(METHOD_SET, PORT_INFO, 0, info).status == 0

    @property
    def lid(self) -> int:
        return self.port_info().lid
