"""The state of one card: its tables, ports, counters and timers, and the step that is being executed.

`now_ns` and `out` belong to the step under way: :class:`firmware.kernel.Kernel` sets them before anything runs, every
part appends its effects to `out` in order, and nothing keeps them afterwards.
"""

from collections import Counter

from firmware.objects import (
    Cq,
    Eq,
    Mkey,
    MulticastGroup,
    Pd,
    QCounter,
    Srq,
    Table,
    TransportDomain,
    Uar,
    Uctx,
    Xrcd,
)
from firmware.timers import TimerHeap
from firmware.transport.qp import Qp
from vhca.hw.effects import Effects
from vhca.hw.hardware import BoardInfo, Hardware
from vhca.hw.memory import Memory


class Hca:
    """Everything that a reset clears is made anew by :meth:`clear`; counters survive it."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.memory: Memory = hardware.memory
        self.info: BoardInfo = hardware.info
        self.trace = hardware.trace
        self.count: Counter[str] = Counter()
        self.now_ns = 0
        self.out: Effects = []
        self.timers = TimerHeap()
        self.clear()

    def clear(self) -> None:
        """Forget every object and timer (power-up, reset, ENABLE_HCA)."""
        info = self.info
        self.timers.clear()
        self.pds: Table[Pd] = Table("pd", 1, 1 << 18)
        self.uars: Table[Uar] = Table("uar", info.first_free_uar, info.uar_pages - info.first_free_uar)
        self.xrcds: Table[Xrcd] = Table("xrcd", 1, 1 << 16)
        self.transport_domains: Table[TransportDomain] = Table("transport_domain", 1, 1 << 13)
        self.uctxs: Table[Uctx] = Table("uctx", 1, 0xFFFE)
        self.q_counters: Table[QCounter] = Table("q_counter", 1, 255)
        self.eqs: Table[Eq] = Table("eq", 1, 127)
        self.cqs: Table[Cq] = Table("cq", 0x10, 1 << 18)
        self.mkeys: Table[Mkey] = Table("mkey", 0x10, 1 << 20)
        self.srqs: Table[Srq] = Table("srq", 1, 1 << 17)
        self.qps: Table[Qp] = Table("qp", 0x40, 1 << 18)
        self.multicast: dict[bytes, MulticastGroup] = {}
        # (port, 0 or 1) -> the QP that serves QP0 or QP1 of that port
        self.special_qps: dict[tuple[int, int], Qp] = {}

    def objects(self) -> dict[str, int]:
        """Live objects by kind (the ledger)."""
        tables: tuple[Table[object], ...] = (
            self.pds,
            self.uars,
            self.xrcds,
            self.transport_domains,
            self.uctxs,
            self.q_counters,
            self.eqs,
            self.cqs,
            self.mkeys,
            self.srqs,
            self.qps,
        )  # type: ignore[assignment]
        counts = {table.kind: len(table) for table in tables}
        counts["multicast_group"] = len(self.multicast)
        return counts

    def note(self, what: str, **details: object) -> None:
        """Trace one line, if somebody listens."""
        if self.trace is not None:
            self.trace(what, details)
