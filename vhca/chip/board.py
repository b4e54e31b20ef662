"""The board: joins host interface, command queue, registers, firmware, cable and clock of one card.

It is the only place where effects are carried out, in the order in which the firmware listed them, before the next
event is handed over. What a guest or a peer may make long is done in turns: packets wait in an inbox, commands in their
slots, the firmware's own work in the firmware, and a turn takes from each until its time is up. While the cable or the
inbox is full, the firmware does not send; it goes on receiving, so two full cards cannot wait for each other.

A failure of the firmware itself stops this card only: its trace ring is written to the log and its health registers
tell the host.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from vhca.chip.bar0 import Bar0
from vhca.chip.command_queue import CommandQueue, Fetch
from vhca.chip.counters import BoardCount
from vhca.chip.device_memory import DeviceMemory
from vhca.chip.faults import CardFaults, ReadTamper
from vhca.chip.init_segment import LOG_COMMAND_SLOTS, LOG_COMMAND_STRIDE, InitSegment
from vhca.chip.passages import Behind, Cable
from vhca.chip.rounds import Rounds
from vhca.chip.watch import Listen, Watch
from vhca.counting import shown
from vhca.hw.effects import (
    CommandDone,
    DeviceWrite,
    DmaWrite,
    Effects,
    EntryWrite,
    HealthSet,
    LinkControl,
    Loopback,
    RaiseIrq,
    Told,
    Transmit,
)
from vhca.hw.events import CommandPosted, Event, InterfaceChange, LinkChange, LinkCounted, PacketIn, Reset, SqDoorbell
from vhca.hw.findings import Finding, ObjectLife, Place, Strictness
from vhca.hw.hardware import BoardInfo, Firmware, FirmwareImage, Through, TraceSink
from vhca.hw.memory import DmaError, Memory
from vhca.sim.clock import Clock
from vhca.wire.connectx.init_segment import HealthSyndrome, NicInterface
from vhca.wire.packet import Packet, Route
from vhca.wire.smp import PortInfo

log = logging.getLogger(__name__)

TRACE_RING_LINES = 2000
# Length of a card's turn by the clock, and its pieces at the most (a clock that stands still does not end a turn).
TURN_NS: Final = 500_000
TURN_PIECES: Final = 256
# Packets that are handed over before commands and sending have their turn.
INBOX_PIECES: Final = 16
# An inbox with more than this is full; what it takes beyond that is only what was under way.
INBOX_BYTES: Final = 1 << 20
INBOX_PACKETS: Final = 512
# Accesses of the host that may wait behind a step; the connection leaves the rest in the socket.
WAITING_ACCESSES: Final = 256
# What a card's objects may take if nobody says otherwise.
MEMORY_LIMIT_BYTES: Final = 1 << 30
# Of programs that failed, which a host may let happen again and again.
MOST_OLD_FINDINGS: Final = 1000


class _Socket:
    """What the firmware gets to see of this board."""

    __slots__ = ("device_memory", "info", "memory", "memory_limit", "through", "trace")

    def __init__(
        self,
        memory: Memory,
        device_memory: Memory,
        info: BoardInfo,
        trace: TraceSink,
        memory_limit: Callable[[], int],
        through: Callable[[int, Route, Route, tuple[int, int]], Through | None],
    ) -> None:
        self.memory_limit = memory_limit
        self.through = through
        self.memory = memory
        self.device_memory = device_memory
        self.info = info
        self.trace: TraceSink | None = trace


class Board:
    """One card. `memory` is its DMA engine, `raise_irq(vector)` its MSI-X, `defer` runs a call after what is under way.

    `memory_limit` says how many bytes of this process the card's objects may take, `rests` whether it leaves its host's
    memory alone for now, since waiting for that kept others waiting: no step is asked of it then. `rounds` are those of
    the rack, in which `stand_in_line` gets the board its next turn; a board without has rounds of its own.

    Cables are plugged in with :meth:`plug`.

    :ivar apart: it takes part in work that is set apart (:mod:`vhca.chip.rounds`).
    """

    def __init__(
        self,
        name: str,
        info: BoardInfo,
        image: FirmwareImage,
        memory: Memory,
        clock: Clock,
        raise_irq: Callable[[int], None],
        defer: Callable[[Callable[[], None]], None],
        memory_limit: Callable[[], int] = lambda: MEMORY_LIMIT_BYTES,
        rests: Callable[[], bool] = lambda: False,
        rounds: Rounds | None = None,
        stand_in_line: Callable[["Board"], None] | None = None,
    ) -> None:
        self.rests = rests
        self.name = name
        self.apart = False
        self.rounds = rounds if rounds is not None else Rounds(defer, clock.now_ns)
        self._stand_in_line = stand_in_line if stand_in_line is not None else self.rounds.ask
        self.info = info
        self.count: Counter[BoardCount] = Counter()
        self.dead = False
        # Not in the tree of loggers: it is this card's file, and thousands of lines are nobody else's business.
        self.log = logging.Logger(f"vhca.hca.{name}", logging.WARNING)
        self.ring: deque[str] = deque(maxlen=TRACE_RING_LINES)
        self._memory = memory
        self._clock = clock
        self._raise_irq = raise_irq
        self._defer = defer
        self._cables: dict[int, Cable] = {}
        # Told of each packet that the card sends to itself: for an analyser.
        self.looped: Callable[[Packet], None] | None = None
        # Told after each step, which may have changed the next deadline.
        self.stirred: Callable[[], None] | None = None
        # Whether the host's next access is here already: doorbells come in bursts, of which one turn does the work.
        self.reads_on: Callable[[], bool] = lambda: False
        self._commands = CommandQueue(memory, LOG_COMMAND_SLOTS, LOG_COMMAND_STRIDE)
        self.segment = InitSegment(
            info,
            clock,
            on_queue_address=self._set_queue_address,
            on_interface=self._interface_written,
            on_doorbell=self._command_doorbell,
        )
        self._device_memory = DeviceMemory(info.device_memory_start, info.device_memory_bytes)
        self.bar0 = Bar0(self.segment, info.first_free_uar, self._device_memory, self.event)
        self._image = image
        self._socket = _Socket(memory, self._device_memory.ram, info, self._trace, memory_limit, self._through)
        self._links: dict[int, bool] = {}
        self._busy = False
        self._turn_waits = False
        # What came in while a step was under way: a step that waits for DMA by message lets the host's accesses in.
        self._waiting: deque[Callable[[], None]] = deque()
        self._link_changes: deque[LinkChange] = deque()
        self._inbox: deque[PacketIn] = deque()
        self._inbox_bytes = 0
        # Command slots that were rung, and the command whose mailboxes are being fetched.
        self._command_doorbells = 0
        self._fetching: Fetch | None = None
        # The program, and what the board speaks to: the program itself, if nothing is around it.
        self.program: Firmware = image.power_up(self._socket)
        self.firmware: Firmware = self.program
        self.faults = CardFaults(self)
        # What faults do beyond the board: loss of the slot, of the link, and wrong reads of the host's memory.
        self.on_removal: Callable[[bool], None] = lambda removed: None
        self.hold_link: Callable[[bool], None] = lambda held: None
        self.tamper_reads: Callable[[ReadTamper | None], None] = lambda tamper: None
        self._tap: Callable[[Firmware], Firmware] | None = None
        self._listeners: list[Listen] = []
        self._watch: Watch | None = None
        self._strictness = Strictness.OFF
        # Of programs that failed.
        self._old_findings: tuple[Finding, ...] = ()

    # ---- the outside ----

    def plug(self, port: int, cable: Cable) -> None:
        """Connect `port` (1-based) to a cable."""
        self._cables[port] = cable

    def packet_in(self, port: int, packet: Packet) -> None:
        """A packet or burst arrived at `port`; it waits in the inbox for the card's turn."""
        self._arrived(PacketIn(port, packet))

    def _arrived(self, event: PacketIn) -> None:
        self._inbox.append(event)
        self._inbox_bytes += len(event.packet.payload)
        self._ask_for_turn()

    @property
    def full(self) -> bool:
        """True while the inbox has so much in it that the cable should hold its packets back."""
        return self._inbox_bytes > INBOX_BYTES or len(self._inbox) > INBOX_PACKETS

    @property
    def overloaded(self) -> bool:
        """True while so much of what the host did waits for a turn that its next accesses should wait outside."""
        return len(self._waiting) > WAITING_ACCESSES

    def link_change(self, port: int, up: bool) -> None:
        """The physical link of `port` went up or down."""
        self._links[port] = up
        if self._busy:
            # Not with what the host did meanwhile: a reset does not undo it.
            self._link_changes.append(LinkChange(port, up))
        else:
            self._handle(LinkChange(port, up))

    def link_count(self, port: int, what: str, count: int) -> None:
        """The cable noticed something that the port counts, by the counter's name in PortCounters."""
        self._defer(lambda: self._handle(LinkCounted(port, what, count)))

    def reset(self, reason: str) -> None:
        """Power cycle, function level reset, reset by the driver or loss of the host."""
        if self._busy:
            self._waiting.append(lambda: self.reset(reason))
            self._ask_for_turn()
            return
        if self.apart:
            self.rounds.join()
        self.log.info("reset: %s", reason)
        self.segment.reset()
        self.bar0.reset()
        self._waiting.clear()
        self._inbox.clear()
        self._inbox_bytes = 0
        self._command_doorbells = 0
        self._fetching = None
        self._device_memory.reset()
        self._commands.reset()
        self.count[BoardCount.RESETS] += 1
        if self.dead:
            # What failed is not trusted again: boot from the image, as power would.
            self.dead = False
            old, self.program = self.program, self._image.power_up(self._socket)
            self._old_findings += tuple(old.findings(self.name))[: MOST_OLD_FINDINGS - len(self._old_findings)]
            self.program.inherit(old)
            self.program.keep_lives(self._strictness)
            self._watch = None
            self._wrap()
            for port, up in self._links.items():
                self._handle(LinkChange(port, up))
        self._handle(Reset(reason))

    def watch(self, listen: Listen) -> Callable[[], None]:
        """Tell somebody what the card does, until what is returned is called."""
        if self.apart:
            self.rounds.join()
        self._listeners.append(listen)
        if self._watch is None:
            self._wrap()

        def end() -> None:
            self._listeners.remove(listen)
            if not self._listeners and self._watch is not None:
                self.firmware, self._watch = self._watch.unwrap(), None

        return end

    def tap(self, tap: Callable[[Firmware], Firmware] | None) -> None:
        """Put something around the program from now on, inside of who watches the card; None: nothing."""
        if self.apart:
            self.rounds.join()
        self._tap = tap
        self._wrap()

    def _wrap(self) -> None:
        self.firmware = self.program if self._tap is None else self._tap(self.program)
        if self._watch is not None:
            self._watch.inner = self.firmware
            self.firmware = self._watch
        elif self._listeners:
            self.firmware = self._watch = Watch(self.firmware, self._listeners)
        if self.stirred is not None:
            self.stirred()

    def now_ns(self) -> int:
        """The card's clock."""
        return self._clock.now_ns()

    def stop_counter(self, stopped: bool) -> None:
        """See :class:`vhca.chip.faults.Host`."""
        self.segment.stop_counter(stopped)

    def set_health(self, fields: Mapping[str, int]) -> None:
        """See :class:`vhca.chip.faults.Host`."""
        self.segment.set_health(**fields)

    def remove(self, removed: bool) -> None:
        """See :class:`vhca.chip.faults.Host`."""
        self._defer(lambda: self.on_removal(removed))

    def note_fault(self, what: str, rule: int) -> None:
        """A rule has hit something."""
        self.count[BoardCount.FAULTS] += 1
        self._trace("fault", {"rule": rule, "on": what})

    def next_deadline(self) -> int | None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        return None if self.dead else self.firmware.next_deadline()

    def run_timers(self, now_ns: int) -> None:
        """See :class:`vhca.sim.loop.TimerSource`."""
        if not self.dead and not self._busy:
            self._step(lambda effects: self.firmware.on_timer(now_ns, effects))

    def counters(self) -> dict[str, int]:
        """Counters of board and firmware by name."""
        ignored = self.bar0.ignored_writes + self.segment.ignored_writes + self._device_memory.ignored
        return {
            **shown(self.count),
            **self.firmware.counters(),
            BoardCount.COMMANDS_MALFORMED.value: self._commands.malformed,
            BoardCount.BAR_WRITES_IGNORED.value: ignored,
        }

    def objects(self) -> dict[str, int]:
        """Live objects by kind: the ledger."""
        return dict(self.firmware.objects())

    def keep_lives(self, level: Strictness) -> None:
        """Keep the lives of objects, and look for what is wrong with them, from now on; OFF: no more."""
        self._strictness = level
        self.program.keep_lives(level)

    def findings(self) -> tuple[Finding, ...]:
        """What the host did wrong with its objects since they are looked at."""
        return (*self._old_findings, *self.program.findings(self.name))

    def known(self) -> tuple[Place, ...]:
        """Objects whose lives are kept: those that are there, and then those that were destroyed lately."""
        return tuple(self.program.known())

    def lives(self, places: Iterable[Place]) -> tuple[ObjectLife, ...]:
        """The lives of these objects, as far as they are kept."""
        found = (self.program.life(*place) for place in places)
        return tuple(life for life in found if life is not None)

    def port_info(self, port: int) -> PortInfo | None:
        """PortInfo of a port as the card's agent has it, to be looked at only; None if the firmware failed."""
        return None if self.dead else self.firmware.port_info(port)

    # ---- events and effects ----

    def event(self, event: Event) -> None:
        """Hand one event to the firmware and carry out what it answers.

        Where guest memory is reached by messages, a read of it lets the host's next accesses in: what they cause waits
        until the step under way is over.
        """
        if self._busy or self._waiting:
            self._waiting.append(lambda: self._handle(event))
            self._ask_for_turn()
        elif type(event) is SqDoorbell and not self.dead:
            self._rung(event)
        else:
            self._handle(event)

    def _rung(self, event: SqDoorbell) -> None:
        """As :meth:`_step`, in short, for the most frequent event; where nothing else waits, it may be all there is."""
        if self.apart:
            self.rounds.join()
        event.at_once = not (
            self._turn_waits
            or self.reads_on()
            or self._inbox
            or self._command_doorbells
            or self._link_changes
            or self.rests()
            or self._held_back()
        )
        effects: Effects = []
        self._busy = True
        try:
            self.firmware.handle(event, self._clock.now_ns(), effects)
        except Exception:
            self._die()
        try:
            if effects:
                self.execute(effects)
        finally:
            self._busy = False
            if event.at_once and self.stirred is not None:
                self.stirred()
            if not self._turn_waits and self.firmware.waiting():
                self._ask_for_turn()

    def _handle(self, event: Event) -> None:
        if self.dead:
            self.count[BoardCount.EVENTS_AFTER_DEATH] += 1
        else:
            self._step(lambda effects: self.firmware.handle(event, self._clock.now_ns(), effects))

    def _step(self, run: Callable[[Effects], None]) -> None:
        """One step of the firmware; no other begins before its effects are carried out."""
        if self.apart:
            self.rounds.join()
        effects: Effects = []
        self._busy = True
        try:
            run(effects)
        except Exception:
            self._die()
        try:
            self.execute(effects)
        finally:
            self._busy = False
            if self.stirred is not None:
                self.stirred()
            # At the end of a turn that is looked at anyway.
            if not self._turn_waits and self.firmware.waiting():
                self._ask_for_turn()

    @property
    def has_packets(self) -> bool:
        """True while packets wait for the card's turn."""
        return bool(self._inbox or self._waiting)

    @property
    def busy(self) -> bool:
        """True while a step of the firmware is under way."""
        return self._busy

    def step(self, run: Callable[[Effects], None]) -> None:
        """A step that the program of another board asks for, or of what was set apart, which work on both."""
        self._step(run)

    def _through(self, number: int, route: Route, back: Route, pkeys: tuple[int, int]) -> Through | None:
        cable = self._cables.get(number)
        found = cable.through(route, back, pkeys) if cable is not None else None
        if found is None:
            return None
        passage, far = found
        board = far.card
        # Cards have one port each.
        return Behind(passage, self, board, 1) if isinstance(board, Board) and board is not self else None

    def _ask_for_turn(self) -> None:
        if not self._turn_waits:
            self._turn_waits = True
            self._stand_in_line(self)

    def turn(self) -> None:
        """The card's turn: packets, commands and the firmware's own work in rotation, until the time is up.

        Nor does it go on while something is set apart, so that those boards have their next turn soon.
        """
        try:
            again = self._pieces()
        finally:
            self._turn_waits = False
        if again:
            self._ask_for_turn()

    def _pieces(self) -> bool:
        """Work of a turn; tell whether there is more."""
        now_ns = self._clock.now_ns
        end = now_ns() + TURN_NS
        more = False
        for _ in range(TURN_PIECES):
            worked = False
            while self._link_changes:
                self._handle(self._link_changes.popleft())
            while self._waiting and now_ns() < end:
                self._waiting.popleft()()
            if self._inbox:
                worked = True
                self._take_packets(end)
            if self._fetching is not None or self._command_doorbells:
                worked = True
                self._command_piece()
            waiting = not self.dead and self.firmware.waiting()
            if waiting and not self._held_back():
                worked = True
                self._step(lambda effects: self.firmware.step(now_ns(), effects))
                waiting = not self.dead and self.firmware.waiting()
            more = bool(
                waiting
                or self._waiting
                or self._inbox
                or self._command_doorbells
                or self._link_changes
                or self._fetching is not None
            )
            if not more or not worked or self.rounds.parted or now_ns() >= end:
                break
        return more

    def _take_packets(self, end: int) -> None:
        """Those that are in the inbox now, some of them, until `end` by the clock."""
        now_ns = self._clock.now_ns
        for _ in range(min(len(self._inbox), INBOX_PIECES)):
            if not self._inbox or now_ns() >= end:
                break
            event = self._inbox.popleft()
            self._inbox_bytes -= len(event.packet.payload)
            self._handle(event)

    def _held_back(self) -> bool:
        """May the firmware not send now, since a cable or, for packets to itself, the inbox is full?"""
        if self._inbox and self.full:
            return True
        for cable in self._cables.values():  # noqa: SIM110 (half the time of any())
            if cable.full:
                return True
        return False

    def execute(self, effects: Effects) -> None:
        """Carry out effects in order."""
        memory = self._memory
        for effect in effects:
            try:
                if type(effect) is DmaWrite:
                    memory.write(effect.addr, effect.data)
                elif type(effect) is EntryWrite:
                    data = effect.data
                    memory.write(effect.addr, data[:-8])
                    memory.write(effect.addr + len(data) - 8, data[-8:])
                elif type(effect) is Transmit:
                    self._transmit(effect)
                elif type(effect) is Loopback:
                    if self.looped is not None:
                        self.looped(effect.packet)
                    self._arrived(PacketIn(effect.port, effect.packet, looped=True))
                elif type(effect) is RaiseIrq:
                    self._raise_irq(effect.vector)
                elif type(effect) is CommandDone:
                    self._commands.complete(effect.slot, effect.output, effect.delivery_status)
                elif type(effect) is DeviceWrite:
                    self._device_memory.ram.write(effect.offset, effect.data)
                elif type(effect) is LinkControl:
                    self._control_link(effect)
                elif type(effect) is HealthSet:
                    self.segment.set_health(**{effect.field: effect.value})
                elif type(effect) is Told and self._watch is not None:
                    self._watch.told(effect)
            except DmaError as error:
                self.count[BoardCount.DMA_WRITE_ERRORS] += 1
                self._trace("dma_error", {"why": str(error)})

    def _transmit(self, effect: Transmit) -> None:
        cable = self._cables.get(effect.port)
        if cable is None:
            self.count[BoardCount.TRANSMIT_NO_CABLE] += 1
        else:
            cable.send(effect.packet)

    def _control_link(self, effect: LinkControl) -> None:
        cable = self._cables.get(effect.port)
        if cable is not None:
            self._defer(lambda: cable.set_enabled(effect.enabled))

    def _set_queue_address(self, address: int) -> None:
        self._commands.reset()
        self._fetching = None
        self._commands.address = address

    def _interface_written(self, state: int) -> None:
        """The driver's health recovery resets a card whose firmware asks for it; the rest is the firmware's to know."""
        if state == NicInterface.SW_RESET:
            self.reset("software")
        else:
            self.event(InterfaceChange(state))

    def _command_doorbell(self, mask: int) -> None:
        self._command_doorbells |= mask & (1 << (1 << LOG_COMMAND_SLOTS)) - 1
        if self._command_doorbells:
            self._ask_for_turn()

    def _command_piece(self) -> None:
        """Fetch some mailboxes of a command, or run it once it is complete; lowest slot first, one at a time."""
        if self._fetching is None:
            slot = (self._command_doorbells & -self._command_doorbells).bit_length() - 1
            self._command_doorbells &= self._command_doorbells - 1
            self._fetching = self._commands.fetch(slot)
        fetch = self._fetching
        self._busy = True
        try:
            done = fetch.go_on()
        finally:
            self._busy = False
        if fetch is not self._fetching:
            # The host moved the queue while it was read.
            self._commands.pending.pop(fetch.slot, None)
        elif done:
            self._fetching = None
            if fetch.command is not None:
                self._handle(CommandPosted(fetch.slot, *fetch.command))

    def _trace(self, what: str, details: Mapping[str, object]) -> None:
        now = self._clock.now_ns()
        line = f"{now / 1e9:14.6f} {what:<8} " + " ".join(f"{key}={value}" for key, value in details.items())
        self.ring.append(line)
        self.log.debug("%s", line)

    def _die(self) -> None:
        """The firmware failed: stop this card, keep the others, leave evidence."""
        self.dead = True
        self.count[BoardCount.FIRMWARE_FAILURES] += 1
        log.exception("the firmware of %s failed; the card is stopped. Last trace lines:", self.name)
        for line in list(self.ring)[-40:]:
            log.error("  %s", line)
        self.segment.set_health(synd=HealthSyndrome.FIRMWARE_ERROR, rfr=1)
        self.segment.freeze()
