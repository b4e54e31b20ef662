"""The state of one PCI function: its tables, counters and timers, and the step that is being executed.

`now_ns` and `out` belong to the step under way: :class:`firmware.kernel.Kernel` sets them before anything runs, every
part appends its effects to `out` in order, and nothing keeps them afterwards.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from firmware.model.budget import Budget
from firmware.model.capabilities import LOG_RESERVED_QPN_MAX, LOG_RESERVED_QPNS, RESERVED_QPN_FIRST, Capabilities
from firmware.model.chip import Chip
from firmware.model.counters import Count, CountOf
from firmware.model.dct import Dct
from firmware.model.graveyard import Graveyard
from firmware.model.history import History
from firmware.model.ledger import Table
from firmware.model.multicast import MulticastGroup
from firmware.model.objects import (
    Cq,
    Eq,
    Memic,
    Mkey,
    PageFaults,
    Pd,
    QCounter,
    ReservedQpns,
    Srq,
    TransportDomain,
    Uar,
    Uctx,
    Umem,
    Xrcd,
)
from firmware.model.port import Port
from firmware.model.qp import Qp
from firmware.model.timers import Timer, TimerHeap
from firmware.model.turns import Turns
from vhca.counting import Tally
from vhca.hw.effects import Effects
from vhca.hw.hardware import BoardInfo, Hardware, Tamper
from vhca.hw.memory import Memory
from vhca.wire.connectx.eqe import EventType
from vhca.wire.packet import Packet

EVENT_COMMAND: Final = int(EventType.CMD)
# Reserved: a key that stands for memory that is not there. Its index is never given out, so every access is refused.
NULL_MKEY = 0x200
DCT_FIRST = 0xC00000


class Hca:
    """Everything that a reset clears is made anew by :meth:`clear`; counters survive it."""

    def __init__(self, hardware: Hardware) -> None:
        self.chip = Chip(hardware)
        self.info: BoardInfo = self.chip.info
        self.ports: Mapping[int, Port] = self.chip.ports
        self.memory: Memory = hardware.memory
        self.trace = hardware.trace
        self.through = hardware.through
        # What the engine in C knows of this card, if there is one: :class:`firmware.native.cards.NativeCard`.
        self.native: Any = None
        # All of them, from the start: a plain dictionary is the fastest to count in.
        self.count: dict[Count, int] = dict.fromkeys(Count, 0)
        self.count_of: Tally[CountOf] = Tally()
        # Somebody wants to be told what this card does.
        self.watched = False
        # Somebody changes what goes into the host's queues.
        self.tamper: Tamper | None = None
        # Keeps the lives of objects, if somebody wants to know them.
        self.history: History | None = None
        self.now_ns = 0
        self.out: Effects = []
        # Free running: pieces that key walks and page lists made of accesses, which engines charge to their budgets.
        self.pieces = 0
        self.timers = TimerHeap()
        self.turns = Turns()
        self.budget = Budget(hardware.memory_limit)
        self.graveyard = Graveyard()
        self.capabilities = Capabilities(self.info)
        # Packets of this card to itself, handed out as events after the step that sent them.
        self.loopback: deque[tuple[int, Packet]] = deque()
        # Multicast datagrams that are being copied: port, packet, members that have not got theirs.
        self.copies: deque[tuple[int, Packet, list[Qp]]] = deque()
        # Number of the last connection that an initiator made; resets do not turn it back.
        self.dc_connections = 0
        # The number of the queue pair that the last doorbell was for.
        self.rung = -1
        # How often everything was forgotten.
        self.clears = 0
        self.reset_state()

    @property
    def is_looked_at(self) -> bool:
        """Whether somebody is to see, or to change, each thing that this card does."""
        return self.watched or self.tamper is not None

    def stir(self) -> None:
        """Something has changed, or is about to, that trains may rely on: they look at everything again."""
        if self.native is not None:
            self.native.changes += 1

    def reset_state(self) -> None:
        """Back to power-up: no objects, capabilities and interface version as delivered."""
        self.enabled = False
        self.initialized = False
        self.issi = 0
        self.null_mkey = NULL_MKEY
        self.capabilities.restore()
        self.clear()

    def clear(self) -> None:
        """Forget every object and timer (power-up, reset, ENABLE_HCA)."""
        info = self.info
        most = self.capabilities.general_max
        self.clears += 1
        self.rung = -1
        self._bury()
        self.timers = TimerHeap()
        self.turns = Turns()
        self.copies.clear()
        self.loopback.clear()
        budget = self.budget
        budget.clear()
        self.pds: Table[Pd] = Table("pd", 1, 1 << most.log_max_pd, budget)
        self.uars: Table[Uar] = Table("uar", info.first_free_uar, info.uar_pages - info.first_free_uar, budget)
        self.xrcds: Table[Xrcd] = Table("xrcd", 1, 1 << most.log_max_xrcd, budget)
        self.transport_domains: Table[TransportDomain] = Table("transport_domain", 1, 1 << 13, budget)
        self.uctxs: Table[Uctx] = Table("uctx", 1, 0xFFFE, budget)
        self.umems: Table[Umem] = Table("umem", 1, 1 << 16, budget)
        self.memics: Table[Memic] = Table("memic", 1, 1 << 12, budget)
        self.q_counters: Table[QCounter] = Table("q_counter", 1, 255, budget)
        self.eqs: Table[Eq] = Table("eq", 1, (1 << most.log_max_eq) - 1, budget)
        self.cqs: Table[Cq] = Table("cq", 0x10, 1 << most.log_max_cq, budget)
        self.mkeys: Table[Mkey] = Table("mkey", 0x10, 1 << most.log_max_mkey, budget)
        # XRC's shared receive queues and basic ones (RMPs) are numbered together.
        self.srqs: Table[Srq] = Table("srq", 1, (1 << most.log_max_srq) + (1 << most.log_max_rmp), budget)
        self.qps: Table[Qp] = Table("qp", 0x40, 1 << most.log_max_qp, budget)
        self.reserved_qpns: Table[ReservedQpns] = Table(
            "reserved_qpns",
            RESERVED_QPN_FIRST >> LOG_RESERVED_QPNS,
            1 << LOG_RESERVED_QPN_MAX - LOG_RESERVED_QPNS,
            budget,
        )
        # Far from those of queue pairs.
        self.dcts: Table[Dct] = Table("dct", DCT_FIRST, 1 << 16, budget)
        self.multicast: dict[bytes, MulticastGroup] = {}
        # (port, 0 or 1) -> the QP that serves QP0 or QP1 of that port
        self.special_qps: dict[tuple[int, int], Qp] = {}
        # QPs in ERR whose receive doorbell record is polled, and the timer of that poll
        self.flushing: dict[int, Qp] = {}
        self.flush_timer: Timer | None = None
        self.page_faults = PageFaults()
        if self.history is not None:
            self.bury_lives()
            self.keep(self.history)

    def _bury(self) -> None:
        """Let all tables be freed in pieces."""
        if not hasattr(self, "page_faults"):
            # At power-up there is nothing yet.
            return
        faults = self.page_faults
        self.graveyard.bury(
            self.timers.entries, self.turns.line, self.multicast, self.flushing, faults.outstanding, faults.waiting
        )
        for table in self.tables():
            self.graveyard.bury(*table.graves())

    def tables(self) -> tuple[Table[Any], ...]:
        """All tables of objects."""
        return (
            self.pds,
            self.uars,
            self.xrcds,
            self.transport_domains,
            self.uctxs,
            self.umems,
            self.memics,
            self.q_counters,
            self.eqs,
            self.cqs,
            self.mkeys,
            self.srqs,
            self.qps,
            self.dcts,
            self.reserved_qpns,
        )

    def bury_lives(self) -> None:
        """Forget the lives of objects; they are freed in pieces."""
        if self.history is not None:
            self.graveyard.bury(*self.history.clear())

    def keep(self, history: History | None) -> None:
        """Let somebody know of what happens to objects from now on."""
        self.history = history
        for table in self.tables():
            table.history = history

    def adopt(self, history: History) -> None:
        """As :meth:`keep`, for somebody who shall know the objects that there are, too."""
        for table in self.tables():
            history.adopt(table.kind, table, self.now_ns)
        self.keep(history)

    def objects(self) -> dict[str, int]:
        """Live objects by kind (the ledger)."""
        counts = {table.kind: len(table) for table in self.tables()}
        counts["multicast_group"] = len(self.multicast)
        return counts

    def report_leaks(self, when: str) -> None:
        """Name what the host has not destroyed although it says goodbye."""
        left = {kind: count for kind, count in self.objects().items() if count}
        if left:
            self.count[Count.LEAKED_OBJECTS] += sum(left.values())
            self.note("leak", at=when, **left)
        if self.history is not None:
            self.history.left(self.now_ns, when, goodbye=True)

    def command_eq(self) -> Eq | None:
        """The event queue that command completions go to."""
        for eq in self.eqs:
            if eq.event_mask >> EVENT_COMMAND & 1:
                return eq
        return None

    def note(self, what: str, **details: object) -> None:
        """Trace one line, if somebody listens."""
        if self.trace is not None:
            self.trace(what, details)
