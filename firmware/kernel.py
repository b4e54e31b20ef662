"""The main loop of the program, one step at a time: an event or a due timer in, ordered effects out."""

from collections.abc import Mapping, Sequence
from typing import Final

from firmware import commands
from firmware.agents import Agents
from firmware.model.counters import SQ_DOORBELLS, Count
from firmware.model.hca import EVENT_COMMAND, Hca
from firmware.model.history import History
from firmware.model.rings import RecordlessSendQueue
from firmware.native.cards import native_card
from firmware.queues import cq_doorbell, eq_doorbell, post_event, write_cqe, write_eqe
from firmware.snapshot import dump, load, outside_of
from firmware.transport.engine import find, packet_in, ring, run_timers, turn
from vhca.counting import shown
from vhca.hw.effects import CommandDone, Effects, Loopback, Transmit
from vhca.hw.events import (
    CommandPosted,
    CompletionDue,
    CqDoorbell,
    EqDoorbell,
    Event,
    EventDue,
    InterfaceChange,
    LinkChange,
    LinkCounted,
    PacketIn,
    Reset,
    SqDoorbell,
)
from vhca.hw.findings import Finding, ObjectLife, Place, Strictness
from vhca.hw.hardware import Firmware, Hardware, Tamper
from vhca.wire.connectx.eqe import CmdData
from vhca.wire.smp import PortInfo

# Those that are due in the same moment share several steps: so many at most, and none behind one that had much to do,
# as the last try of a queue pair with hundreds of requests has.
TIMERS_PER_STEP = 16
EFFECTS_PER_STEP = 64
# Why a card is reset whose machine has ended.
LOST: Final = "lost_connection"


class Kernel:
    """One card's firmware; see :class:`vhca.hw.hardware.Firmware`."""

    def __init__(self, hardware: Hardware) -> None:
        self.hca = Hca(hardware)
        self.hca.native = native_card(hardware.memory)
        self.agents = Agents(self.hca)
        self._outside = outside_of(self.hca)

    def dump(self) -> bytes:
        """The whole state, between two steps; see :mod:`firmware.snapshot`."""
        self.hca.out = []
        tamper, self.hca.tamper = self.hca.tamper, None
        history = self.hca.history
        self.hca.keep(None)
        try:
            return dump((self.hca, self.agents), self._outside)
        finally:
            self.hca.tamper = tamper
            self.hca.keep(history)

    def restore(self, image: bytes) -> None:
        """Go on from where another program, or this one, was at its :meth:`dump`."""
        watched, tamper, history = self.hca.watched, self.hca.tamper, self.hca.history
        self.hca, self.agents = load(image, self._outside)
        self.hca.watched, self.hca.tamper = watched, tamper
        if history is not None:
            self.hca.graveyard.bury(*history.clear())
            self.hca.adopt(history)
        self.hca.stir()

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        hca = self.hca
        hca.now_ns = now_ns
        hca.out = out
        if type(event) is SqDoorbell:
            self._sq_doorbell(event)
        elif type(event) is CqDoorbell:
            self._cq_doorbell(event)
        elif type(event) is EqDoorbell:
            self._eq_doorbell(event)
        else:
            hca.stir()
            self._change(event)
            hca.stir()
        self._finish()

    def _change(self, event: Event) -> None:
        """An event that may change anything."""
        hca = self.hca
        if type(event) is PacketIn:
            if not event.looped:
                self.agents.count_received(event.port, event.packet)
            packet_in(hca, event.port, event.packet)
        elif type(event) is CommandPosted:
            self._command(event)
        elif type(event) is LinkChange:
            self.agents.link_change(event.port, event.up)
        elif type(event) is LinkCounted:
            self.agents.link_counted(event.port, event.what, event.count)
        elif type(event) is InterfaceChange:
            hca.note("interface", state=event.state)
        elif type(event) is CompletionDue:
            cq = hca.cqs.get(event.cqn)
            if cq is not None:
                write_cqe(hca, cq, bytearray(event.entry), event.solicited, genuine=True)
        elif type(event) is EventDue:
            eq = hca.eqs.get(event.eqn)
            if eq is not None:
                write_eqe(hca, eq, event.event_type, event.sub_type, event.data, genuine=True)
        elif type(event) is Reset:
            hca.note("reset", reason=event.reason)
            # A machine that is gone has left everything, which tells nothing.
            if hca.history is not None and event.reason != LOST:
                hca.history.left(hca.now_ns, f"a reset ({event.reason})", goodbye=False)
            hca.reset_state()
            self.agents.reset(event.reason)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        mine = self.hca.timers.next_deadline()
        ports = self.agents.timers.next_deadline()
        return mine if ports is None else ports if mine is None else min(mine, ports)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        hca = self.hca
        hca.now_ns = now_ns
        hca.out = out
        hca.stir()
        for _ in range(TIMERS_PER_STEP):
            if not run_timers(hca, 1) or len(out) > EFFECTS_PER_STEP:
                break
        self.agents.run_timers(now_ns)
        hca.stir()
        self._finish()

    def waiting(self) -> bool:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return bool(self.hca.turns or self.hca.copies or self.hca.graveyard)

    def step(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        hca = self.hca
        hca.now_ns = now_ns
        hca.out = out
        if hca.graveyard:
            hca.graveyard.shrink()
        if not turn(hca):
            hca.stir()
        self._finish()

    def watch(self, on: bool) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.hca.watched = on
        self.hca.stir()

    def tamper(self, tamper: Tamper | None) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.hca.tamper = tamper
        self.hca.stir()

    def keep_lives(self, level: Strictness) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        hca = self.hca
        if level == Strictness.OFF:
            hca.bury_lives()
            hca.keep(None)
        elif hca.history is None:
            hca.adopt(History(level))
        else:
            hca.history.level = level

    def findings(self, card: str) -> Sequence[Finding]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return () if self.hca.history is None else self.hca.history.findings(card)

    def known(self) -> Sequence[Place]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return () if self.hca.history is None else self.hca.history.known()

    def life(self, kind: str, number: int) -> ObjectLife | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return None if self.hca.history is None else self.hca.history.life(kind, number)

    def inherit(self, old: Firmware) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        if isinstance(old, Kernel):
            old.hca.clear()
            self.hca.graveyard.adopt(old.hca.graveyard)

    def counters(self) -> Mapping[str, int]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        budget = self.hca.budget
        return {
            **shown(self.hca.count, self.hca.count_of),
            **self.agents.counters(),
            Count.MEMORY_USED_BYTES.value: budget.used,
            Count.MEMORY_MOST_BYTES.value: budget.most,
            Count.MEMORY_LIMIT_BYTES.value: budget.limit,
        }

    def objects(self) -> Mapping[str, int]:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.hca.objects()

    def port_info(self, port: int) -> PortInfo:
        """See :class:`vhca.hw.hardware.Firmware`."""
        return self.agents.ports[port].managed.info

    def _command(self, event: CommandPosted) -> None:
        """Run a command; its completion is an EQE if the command EQ was there before and still is (bring-up order)."""
        hca = self.hca
        before = hca.command_eq()
        output = commands.execute(hca, event.data, event.out_size)
        hca.out.append(CommandDone(event.slot, output))
        if before is not None and hca.command_eq() is before:
            post_event(hca, EVENT_COMMAND, 0, CmdData(vector=1 << event.slot).to_bytes())

    def _sq_doorbell(self, event: SqDoorbell) -> None:
        hca = self.hca
        qp = find(hca, event.qpn_ds >> 8)
        # A queue listens to the page that it was made with, whoever that page belongs to.
        if qp is None or qp.context.uar_page != event.uar or hca.uars.get(event.uar) is None:
            hca.count[Count.SQ_DOORBELL_UNKNOWN] += 1
            if hca.history is not None:
                hca.history.rung(hca.now_ns, "qp", event.qpn_ds >> 8, event.uar)
            return
        hca.count[SQ_DOORBELLS] += 1
        if type(qp.sq) is RecordlessSendQueue:
            qp.sq.rung(event.opmod_idx_opcode, event.qpn_ds)
        # What the doorbell tells of may have been executed with what an earlier one told of: many come in one read.
        sq = qp.sq
        at_once = event.at_once and sq is not None and not (event.opmod_idx_opcode >> 8) - sq.consumer & 0x8000
        ring(hca, qp, at_once)

    def _cq_doorbell(self, event: CqDoorbell) -> None:
        hca = self.hca
        cq = hca.cqs.get(event.cqn)
        if cq is None or cq.uar != event.uar or hca.uars.get(event.uar) is None:
            hca.count[Count.CQ_DOORBELL_UNKNOWN] += 1
            if hca.history is not None:
                hca.history.rung(hca.now_ns, "cq", event.cqn, event.uar)
            return
        cq_doorbell(hca, cq, event.consumer_index, event.solicited)

    def _eq_doorbell(self, event: EqDoorbell) -> None:
        hca = self.hca
        eq = hca.eqs.get(event.eqn)
        if eq is None or eq.uar != event.uar or hca.uars.get(event.uar) is None:
            hca.count[Count.EQ_DOORBELL_UNKNOWN] += 1
            if hca.history is not None:
                hca.history.rung(hca.now_ns, "eq", event.eqn, event.uar)
            return
        eq_doorbell(hca, eq, event.consumer_index, event.arm)

    def _finish(self) -> None:
        """End of a step: count what leaves; packets of this card to itself come back as events afterwards."""
        hca = self.hca
        for effect in hca.out:
            if type(effect) is Transmit:
                self.agents.count_sent(effect.port, effect.packet)
        while hca.loopback:
            port, packet = hca.loopback.popleft()
            hca.out.append(Loopback(port, packet))
