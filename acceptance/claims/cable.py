"""A listener on a card's cable: every packet as it passes, with its time; nothing is changed or delayed.

Assumes a running bench. Guarantees: bursts are cut, so that one entry is one packet on the wire; the listener is gone
at the end. Management packets (of QP0 and QP1) pass all the time and are left out unless asked for.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from acceptance.claims.bench import Bench
from vhca.fabric.faults import Fault
from vhca.wire.ib import opcode_of
from vhca.wire.opcodes import SERVICE_NAMES
from vhca.wire.packet import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, READ_RESPONSE, UD, Packet

ANSWERS: Final = (READ_RESPONSE, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)
_RNR: Final = 0x20
_NAK: Final = 0x60
_KIND: Final = 0x60
_LINES_MAX: Final = 24


@dataclass(slots=True, frozen=True)
class Seen:
    """A packet, when it passed (monotonic seconds), and whether it went toward the card."""

    time_s: float
    toward_card: bool
    packet: Packet

    @property
    def name(self) -> str:
        """Service and opcode: `RC SEND_ONLY`, `RC RNR_NAK`."""
        packet = self.packet
        service = SERVICE_NAMES.get(packet.service, "?")
        if packet.op == ACKNOWLEDGE:
            if is_rnr(packet):
                return f"{service} RNR_NAK"
            return f"{service} NAK_{packet.syndrome & 0x1F}" if is_nak(packet) else f"{service} ACK"
        try:
            return f"{service} {opcode_of(packet).name.removeprefix(service + '_')}"
        except ValueError:
            return f"{service} operation {packet.op}"

    def __str__(self) -> str:
        packet = self.packet
        way = "->card" if self.toward_card else "card->"
        text = f"{way} {self.name} qp {packet.dest_qp:#x} psn {packet.psn:#x} {len(packet.payload)} bytes"
        return text if packet.immediate is None else f"{text} imm {packet.immediate:#x}"


def is_rnr(packet: Packet) -> bool:
    """An acknowledge that says: receiver not ready."""
    return packet.op == ACKNOWLEDGE and packet.syndrome & _KIND == _RNR


def is_nak(packet: Packet) -> bool:
    """A negative acknowledge other than RNR."""
    return packet.op == ACKNOWLEDGE and packet.syndrome & _KIND == _NAK


def is_management(packet: Packet) -> bool:
    """A datagram to or from QP0 or QP1."""
    return packet.service == UD and (packet.dest_qp <= 1 or packet.src_qp <= 1)


class Traffic(list[Seen]):
    """What passed, in order."""

    def requests(self) -> list[Seen]:
        """Those that are no answers."""
        return [seen for seen in self if seen.packet.op not in ANSWERS]

    def answers(self) -> list[Seen]:
        """Acknowledges and responses."""
        return [seen for seen in self if seen.packet.op in ANSWERS]

    def named(self, *names: str) -> list[Seen]:
        """Those whose :attr:`Seen.name` ends with one of `names`."""
        return [seen for seen in self if seen.name.endswith(names)]

    def counts(self) -> dict[str, int]:
        """How many there are of each name."""
        return dict(Counter(seen.name for seen in self))

    def ladder(self, most: int = _LINES_MAX) -> str:
        """The packets as text, times from the first one; of many the first and the last ones."""
        lines = [f"{(seen.time_s - self[0].time_s) * 1e3:9.3f} ms {seen}" for seen in self]
        if len(lines) > most:
            half = most // 2
            lines = [*lines[:half], f"... {len(lines) - 2 * half} packets ...", *lines[-half:]]
        return "\n".join([*lines, f"in all: {self.counts()}"])


@contextlib.contextmanager
def watch(
    bench: Bench,
    card: int,
    *,
    management: bool = False,
    only: Callable[[Packet], bool] | None = None,
    note: bool = True,
) -> Iterator[Traffic]:
    """Listen on a card's cable, both ways, while the body runs. `only` chooses packets; `note`: write them down.

    Not to be mixed with :meth:`Bench.fault` on the same card, except through :func:`disturb`.
    """
    with disturb(bench, card, (), management=management, only=only, note=note) as traffic:
        yield traffic


@contextlib.contextmanager
def disturb(
    bench: Bench,
    card: int,
    faults: Sequence[Fault],
    *,
    toward_card: bool = True,
    management: bool = False,
    only: Callable[[Packet], bool] | None = None,
    note: bool = True,
) -> Iterator[Traffic]:
    """Listen as :func:`watch` does, in front of `faults`: what is lost to them is still seen."""
    name = bench.card(card).name
    traffic = Traffic()

    def ear(toward: bool) -> Fault:
        def hear(packet: Packet) -> bool:
            if (management or not is_management(packet)) and (only is None or only(packet)):
                # an agent makes its answer of the request itself
                kept = replace(packet, payload=bytes(packet.payload)) if is_management(packet) else packet
                traffic.append(Seen(time.monotonic(), toward, kept))
            return False  # a rule that never applies leaves the packet alone

        return Fault("drop", match=hear, management=True)

    for toward in (True, False):
        bench.fabric.add_fault(name, ear(toward), "to_card" if toward else "from_card")
    for fault in faults:
        bench.fabric.add_fault(name, fault, "to_card" if toward_card else "from_card")
    try:
        yield traffic
    finally:
        bench.fabric.clear_faults(name)
        if faults:
            way = "toward" if toward_card else "from"
            hits = "\n".join(f"{fault.action}: {fault.hits} packets" for fault in faults)
            bench.record(f"cable of {name}", f"faults {way} the card", hits)
        if note:
            bench.record(f"cable of {name}", "packets, both ways", traffic.ladder() if traffic else "(none)")


def grew(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Counters that have changed, and by how much."""
    return {name: after[name] - before.get(name, 0) for name in sorted(after) if after[name] != before.get(name, 0)}


@contextlib.contextmanager
def counted(bench: Bench, card: int, show: str = "") -> Iterator[dict[str, int]]:
    """The card's counters that move while the body runs; filled in at the end. `show`: part of a name."""
    before = bench.card(card).counters()
    moved: dict[str, int] = {}
    yield moved
    moved.update(grew(before, bench.card(card).counters()))
    shown = {name: count for name, count in moved.items() if show in name and not name.startswith(("vfio_", "cmd_"))}
    bench.record(
        f"card {bench.card(card).name}", "counters that moved", "\n".join(f"{k} +{v}" for k, v in shown.items())
    )


_HW_COUNTERS: Final = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters"


@contextlib.contextmanager
def hardware_counters(bench: Bench, guest: int) -> Iterator[dict[str, int]]:
    """What a guest's sysfs shows of its card's counters that move while the body runs; filled in at the end."""

    def read() -> dict[str, int]:
        pairs = bench.run(f"grep . {_HW_COUNTERS}/*", guest=guest, quiet=True).stdout.splitlines()
        return {path.rpartition("/")[2]: int(value) for path, _, value in (pair.partition(":") for pair in pairs)}

    before = read()
    moved: dict[str, int] = {}
    yield moved
    moved.update(grew(before, read()))
    text = "\n".join(f"{name} +{count}" for name, count in moved.items())
    bench.record(f"g{guest}", f"{_HW_COUNTERS}: those that moved", text or "(none)")
