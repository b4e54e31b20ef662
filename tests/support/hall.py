"""Machines with cards on one fabric, in one thread, without sockets; boards have their turns in rounds, as in a rack.

Time stands still unless it is told to pass. :class:`Machine` has what :class:`tests.support.remote.RemoteQp` needs.
"""

from __future__ import annotations

from random import Random

from firmware import boot
from tests.support.commands import PAGE
from tests.support.driver import board_info
from tests.support.remote import RemoteDriver
from tests.unit.fabric.bench import Turns
from vhca.chip.board import Board
from vhca.chip.rounds import Rounds
from vhca.fabric.fabric import Fabric
from vhca.hw.memory import FlatMemory
from vhca.sim.clock import VirtualClock
from vhca.sim.loop import TimerSource
from vhca.wire import smp

BRING_UP_S = 10.0


class Hall:
    """A fabric, a clock, a line of turns and the rounds of all boards."""

    def __init__(self, machines: int, memory_bytes: int = 4 << 20) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1_000_000_000)
        self.fabric = Fabric(self.turns.call_soon, self.clock, num_ports=36, random=Random(1))
        self.rounds = Rounds(self.turns.call_soon, self.clock.now_ns)
        # Without, what is rung waits for :meth:`settle`.
        self.at_once = True
        self.machines = [Machine(self, number, memory_bytes) for number in range(machines)]
        for machine in self.machines:
            machine.start()
        self.pass_time(BRING_UP_S)
        self.lids: dict[RemoteDriver, int] = {machine: machine.lid() for machine in self.machines}

    def settle(self) -> None:
        """Everything that can be done without time."""
        self.turns.run()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.clock.now_ns() + int(seconds * 1e9)
        sources: list[TimerSource] = [self.fabric, *(machine.board for machine in self.machines)]
        self.settle()
        while True:
            deadlines = [at for at in (source.next_deadline() for source in sources) if at is not None]
            if not deadlines or min(deadlines) > end:
                break
            self.clock.advance(max(0, min(deadlines) - self.clock.now_ns()))
            for source in sources:
                at = source.next_deadline()
                if at is not None and at <= self.clock.now_ns():
                    source.run_timers(self.clock.now_ns())
            self.settle()
        self.clock.advance(end - self.clock.now_ns())


class Machine(RemoteDriver):
    """A card in the hall, and its driver."""

    def __init__(self, hall: Hall, number: int, memory_bytes: int) -> None:
        self.hall = hall
        self.memory = FlatMemory(memory_bytes)  # type: ignore[assignment]
        self.irqs: list[int] = []
        guid = 0x0002C90300000000 + (number + 1 << 8)
        info = board_info(node_guid=guid, system_image_guid=guid, port_guids=(guid + 1,))
        self.port = hall.fabric.add_port(f"h{number}")
        self.board = Board(
            f"h{number}",
            info,
            boot,
            self.memory,
            hall.clock,
            self.irqs.append,
            hall.turns.call_soon,
            rounds=hall.rounds,
        )
        board = self.board
        self.port.attach(
            lambda packet: board.packet_in(1, packet),
            lambda up: board.link_change(1, up),
            lambda: board.full,
            lambda: board.port_info(1),
        )
        self.port.card = board
        board.plug(1, self.port)
        self._next = 16 * PAGE
        self._slot = 0
        self.queue = self.alloc(PAGE)
        self._in_box = self.alloc(1024 * 64)
        self._out_box = self.alloc(1024 * 16)
        self.bar_write(0x10, (self.queue >> 32).to_bytes(4, "big"))
        self.bar_write(0x14, (self.queue & 0xFFFFFFFF).to_bytes(4, "big"))

    def bar_read(self, offset: int, count: int = 4) -> bytes:
        return self.board.bar0.read(offset, count)

    def bar_write(self, offset: int, data: bytes) -> None:
        self.board.bar0.write(offset, data)
        if self.hall.at_once:
            self.hall.settle()

    def wait(self, addr: int) -> None:
        self.hall.settle()

    def lid(self) -> int:
        info = self._port_info()
        assert info.port_state == smp.PORT_ACTIVE
        return info.lid
