"""Faults inside a card: rules between its board and its program, which see what comes and change what is done.

A card without rules has none of this: its program is put into a tap with the first rule, and taken out of it with the
last one. What may wait here is bounded, since a guest says how much there is: what is too much is not late.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Protocol

from vhca.chip.fault_rules import EVER, FaultRule, FaultRuleError, command_layout, event_layout, parse_rule
from vhca.chip.middleware import ProgramTap
from vhca.hw.effects import CommandDone, Effects, RaiseIrq
from vhca.hw.events import CommandPosted, CompletionDue, Event, EventDue, Reset
from vhca.hw.hardware import Firmware
from vhca.hw.memory import DmaError
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cmd.common import BareIn
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, ErrCqe64
from vhca.wire.connectx.eqe import EventType

MOST_RULES: Final = 32
"""Of one card: each is looked at for every thing of its kind."""
MOST_HELD: Final = 1024
MOST_HELD_BYTES: Final = 32 << 20
HELD_PER_STEP: Final = 64
ENTRY_BYTES: Final = 64
STALE_READS: Final = 256
STALE_BYTES: Final = 4096
"""Reads that are known to be given once more, and how long each may be."""


ReadTamper = Callable[[Callable[[int, int], bytes], int, int], bytes]
"""Called with what reads, address and size; gives what is read, or raises DmaError."""


class Host(Protocol):
    """The board, as far as faults have to do with it."""

    def now_ns(self) -> int:
        """Its clock."""
        ...

    def tap(self, tap: Callable[[Firmware], Firmware] | None) -> None:
        """Put something around its program, or nothing more."""
        ...

    def note_fault(self, what: str, rule: int) -> None:
        """Count it, and put it into the card's log."""
        ...

    def stop_counter(self, stopped: bool) -> None:
        """Let the health counter stand still, or go on."""
        ...

    def set_health(self, fields: Mapping[str, int]) -> None:
        """Set fields of the health buffer."""
        ...

    def remove(self, removed: bool) -> None:
        """Take the card out of its slot, or put it in again, soon."""
        ...

    @property
    def hold_link(self) -> Callable[[bool], None]:
        """Lose the link and let no training succeed, or no more, soon."""
        ...

    @property
    def tamper_reads(self) -> Callable[[ReadTamper | None], None]:
        """Ask somebody about each read of the host's memory, or nobody."""
        ...


@dataclass(order=True, slots=True)
class _Held:
    """What is late."""

    due_ns: int
    order: int
    what: Event | RaiseIrq = field(compare=False)
    size: int = field(compare=False)


class CardFaults:
    """The rules of one card; the loop's thread only."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rules: list[FaultRule] = []
        self._last = 0
        self._tap: _FaultTap | None = None
        # When rules that happen at a time begin (True) and end.
        self._edges: list[tuple[int, int, bool]] = []
        self._reads = _Reads(self, host)

    @property
    def rules(self) -> tuple[FaultRule, ...]:
        """All of them, in the order in which they were made, which is that in which they are looked at."""
        return tuple(self._rules)

    def add(self, text: str) -> FaultRule:
        """Make a rule, which holds from now on.

        :raises FaultRuleError: there is no such rule, or there are as many as may be.
        """
        rule = parse_rule(text)
        if len(self._rules) >= MOST_RULES:
            raise FaultRuleError(f"this card has {MOST_RULES} rules, and no more may be; remove one")
        self._last += 1
        rule.begin(self._last, self._host.now_ns())
        self._rules.append(rule)
        if rule.timed:
            self._edges.append((rule.begins_ns, rule.number, True))
            if rule.until_ns < EVER:
                self._edges.append((rule.ends_ns, rule.number, False))
            self._edges.sort()
        self._changed()
        return rule

    def remove(self, number: int) -> None:
        """Take a rule away; what it holds back goes on when its time has come. KeyError: there is none."""
        gone = next((rule for rule in self._rules if rule.number == number), None)
        if gone is None:
            raise KeyError(number)
        self._take_away(gone)
        self._changed()

    def clear(self) -> int:
        """Take all away, and say how many there were."""
        gone = self.rules
        for rule in gone:
            self._take_away(rule)
        self._changed()
        return len(gone)

    def _take_away(self, rule: FaultRule) -> None:
        self._rules.remove(rule)
        self._edges = [edge for edge in self._edges if edge[1] != rule.number]
        if rule.timed and rule.hits and self._host.now_ns() < rule.ends_ns:
            self._act(rule, False)

    @property
    def next_edge_ns(self) -> int | None:
        """When the next rule begins or ends that does so by itself."""
        return self._edges[0][0] if self._edges else None

    def run_edges(self, now_ns: int) -> None:
        """Let begin and end what is due."""
        while self._edges and self._edges[0][0] <= now_ns:
            _, number, begins = self._edges.pop(0)
            rule = next(rule for rule in self._rules if rule.number == number)
            if begins:
                rule.seen = rule.hits = 1
                self._host.note_fault(rule.kind, number)
            self._act(rule, begins)

    def _act(self, rule: FaultRule, begins: bool) -> None:
        host = self._host
        if rule.action == "stop":
            host.stop_counter(begins)
        elif rule.action == "synd":
            fields = rule.extra | ({"severity_valid": 1} if "severity" in rule.extra else {})
            host.set_health(fields if begins else dict.fromkeys(fields, 0))
        elif rule.action == "removed":
            host.remove(begins)
        else:
            host.hold_link(begins)

    def _changed(self) -> None:
        if self._rules and self._tap is None:
            self._host.tap(self._wrap)
        elif self._tap is not None:
            self._tap.look()
        self._reads.look()
        self.let_go()

    def let_go(self) -> None:
        """Go out of the way once there are no rules and nothing is held back."""
        if not self._rules and self._tap is not None and not self._tap.holds:
            self._tap = None
            self._host.tap(None)

    def _wrap(self, program: Firmware) -> Firmware:
        """The program, or another one that was booted behind it."""
        self._tap = _FaultTap(program, self, self._host)
        self._tap.look()
        return self._tap


class _Reads:
    """Reads of the host's memory on a card with rules about them."""

    def __init__(self, faults: CardFaults, host: Host) -> None:
        self._faults = faults
        self._host = host
        self._rules: list[FaultRule] = []
        # What short reads gave, those of long ago first; for rules that give it once more.
        self._known: dict[tuple[int, int], bytes] = {}

    def look(self) -> None:
        """The rules have changed."""
        rules = [rule for rule in self._faults.rules if rule.kind == "dma"]
        if bool(rules) != bool(self._rules):
            self._host.tamper_reads(self.read if rules else None)
        self._rules = rules
        if not any(rule.action == "stale" for rule in rules):
            self._known.clear()

    def read(self, read: Callable[[int, int], bytes], addr: int, size: int) -> bytes:
        """See :data:`ReadTamper`."""
        values = {"addr": addr, "size": size}
        now_ns = self._host.now_ns()
        rule = next((rule for rule in self._rules if rule.fits(0, values.__getitem__) and rule.strikes(now_ns)), None)
        if rule is None:
            return self._remember(addr, size, read(addr, size))
        self._host.note_fault(f"read of {size} bytes at {addr:#x}", rule.number)
        if rule.action == "fail":
            raise DmaError(f"read of {size} bytes at {addr:#x}: rule {rule.number} lets it fail")
        if rule.action == "stale":
            old = self._known.get((addr, size))
            return old if old is not None else self._remember(addr, size, read(addr, size))
        data = bytearray(read(addr, size))
        if rule.value < size:
            data[rule.value] ^= rule.extra["mask"]
        return bytes(data)

    def _remember(self, addr: int, size: int, data: bytes) -> bytes:
        if size <= STALE_BYTES and any(rule.action == "stale" for rule in self._rules):
            self._known.pop((addr, size), None)
            self._known[addr, size] = data
            if len(self._known) > STALE_READS:
                del self._known[next(iter(self._known))]
        return data


class _FaultTap(ProgramTap):
    """A program on a card with rules."""

    def __init__(self, inner: Firmware, faults: CardFaults, host: Host) -> None:
        super().__init__(inner)
        self._faults = faults
        self._host = host
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._order = 0
        self._commands: list[FaultRule] = []
        self._events: list[FaultRule] = []
        self._completions: list[FaultRule] = []
        self._interrupts: list[FaultRule] = []
        self._asked = False

    @property
    def holds(self) -> bool:
        """True while something is late."""
        return bool(self._held)

    def look(self) -> None:
        """The rules have changed."""
        self._commands, self._events, self._completions, self._interrupts = (
            [rule for rule in self._faults.rules if rule.kind == kind]
            for kind in ("command", "event", "completion", "interrupt")
        )
        # What another engine writes at once on two cards is not seen here: then it must not.
        asked = bool(self._events or self._completions or self._interrupts)
        if asked != self._asked:
            self._asked = asked
            self.inner.tamper(self if asked else None)

    # ---- what the board asks ----

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        if type(event) is CommandPosted and self._commands:
            self._command(event, now_ns, out)
        else:
            if type(event) is Reset:
                self._held.clear()
                self._held_bytes = 0
            self.inner.handle(event, now_ns, out)
        self._signalled(now_ns, out)

    def step(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.step(now_ns, out)
        self._signalled(now_ns, out)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        times = (
            self.inner.next_deadline(),
            self._held[0].due_ns if self._held else None,
            self._faults.next_edge_ns,
        )
        return min((time for time in times if time is not None), default=None)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        due = self.inner.next_deadline()
        if due is not None and due <= now_ns:
            self.inner.on_timer(now_ns, out)
        self._faults.run_edges(now_ns)
        late: Effects = []
        for _ in range(HELD_PER_STEP):
            if not self._held or self._held[0].due_ns > now_ns:
                break
            held = heapq.heappop(self._held)
            self._held_bytes -= held.size
            if isinstance(held.what, RaiseIrq):
                late.append(held.what)
            else:
                out += self._run(held.what, now_ns)
        self._signalled(now_ns, out)
        out += late
        self._faults.let_go()

    def _run(self, event: Event, now_ns: int) -> Effects:
        """What the program does about an event; a list of its own, since it looks at all that is in one."""
        part: Effects = []
        self.inner.handle(event, now_ns, part)
        return part

    def _hold(self, what: Event | RaiseIrq, due_ns: int, size: int) -> bool:
        """Keep something until its time; False if there is too much already."""
        if len(self._held) >= MOST_HELD or self._held_bytes + size > MOST_HELD_BYTES:
            return False
        self._order += 1
        self._held_bytes += size
        heapq.heappush(self._held, _Held(due_ns, self._order, what, size))
        return True

    def _struck(
        self, rules: list[FaultRule], code: int, value_of: Callable[[str], int], what: Callable[[int], str]
    ) -> FaultRule | None:
        """The rule that hits this, if one does."""
        now_ns = self._host.now_ns()
        for rule in rules:
            if rule.fits(code, value_of) and rule.strikes(now_ns):
                self._host.note_fault(what(code), rule.number)
                return rule
        return None

    # ---- commands ----

    def _command(self, event: CommandPosted, now_ns: int, out: Effects) -> None:
        opcode = int.from_bytes(event.data[:2], "big")
        layout = command_layout(opcode)
        view = layout.from_bytes(event.data[: layout.SIZE].ljust(layout.SIZE, b"\0"))
        rule = self._struck(self._commands, opcode, lambda name: int(getattr(view, name)), _named(Op))
        if rule is None:
            self.inner.handle(event, now_ns, out)
        else:
            self._spoil(rule, event, now_ns, out)

    def _spoil(self, rule: FaultRule, event: CommandPosted, now_ns: int, out: Effects) -> None:
        """Do what a rule says to a command; one that is not executed is a NOP for the program, which reports it."""
        nothing = CommandPosted(event.slot, BareIn(opcode=Op.NOP).to_bytes(), event.out_size)
        if rule.action == "late":
            if not self._hold(event, now_ns + rule.value, len(event.data)):
                self.inner.handle(event, now_ns, out)
        elif rule.action == "status":
            syndrome = rule.extra.get("syndrome", 0)
            refused = bytes((rule.value, 0, 0, 0)) + syndrome.to_bytes(4, "big") + bytes(8)
            out += _with_output(self._run(nothing, now_ns), lambda _: refused)
        elif rule.action == "damage":
            at, mask = rule.value, rule.extra["mask"]
            out += _with_output(self._run(event, now_ns), lambda output: _damaged(output, at, mask, event.out_size))
        elif rule.action == "twice":
            out += self._run(event, now_ns)
            out += [effect for effect in self._run(nothing, now_ns) if type(effect) is not CommandDone]

    # ---- entries of queues: see :class:`vhca.hw.hardware.Tamper` ----

    def events(self, eqn: int, event_type: int, sub_type: int, data: bytes) -> Sequence[tuple[int, int, bytes]]:
        """See :class:`vhca.hw.hardware.Tamper`."""
        event = event_type, sub_type, data
        if not self._events:
            return (event,)
        layout = event_layout(event_type)
        view = None if layout is None else layout.from_bytes(data)
        values = {"eqn": eqn, "sub_type": sub_type}
        rule = self._struck(
            self._events, event_type, lambda name: values[name] if name in values else getattr(view, name, -1),
            _named(EventType),
        )  # fmt: skip
        if rule is None:
            return (event,)
        if rule.action == "late":
            held = self._hold(EventDue(eqn, *event), self._host.now_ns() + rule.value, ENTRY_BYTES)
            return () if held else (event,)
        if rule.action == "type":
            return ((rule.value, sub_type, data),)
        if rule.action == "flip" and view is not None:
            for name, mask in rule.extra.items():
                setattr(view, name, getattr(view, name) ^ mask)
            return ((event_type, sub_type, view.to_bytes()),)
        return (event, event) if rule.action == "twice" else ()

    def completions(self, cqn: int, entry: bytearray, solicited: bool) -> Sequence[tuple[bytearray, bool]]:
        """See :class:`vhca.hw.hardware.Tamper`."""
        if not self._completions:
            return ((entry, solicited),)
        view = Cqe64.from_bytes(entry, len(entry) - Cqe64.SIZE)
        rule = self._struck(
            self._completions, view.opcode, lambda name: cqn if name == "cqn" else int(getattr(view, name)),
            _named(CqeOpcode),
        )  # fmt: skip
        if rule is None:
            return ((entry, solicited),)
        if rule.action == "late":
            due = CompletionDue(cqn, bytes(entry), solicited)
            held = self._hold(due, self._host.now_ns() + rule.value, len(entry))
            return () if held else ((entry, solicited),)
        if rule.action == "twice":
            return ((bytearray(entry), solicited), (entry, solicited))
        if rule.action == "syndrome":
            return ((_in_error(view, rule.value, rule.extra.get("vendor_error_syndrome", 0)), True),)
        if rule.action == "flip":
            for name, mask in rule.extra.items():
                setattr(view, name, getattr(view, name) ^ mask)
            entry[-Cqe64.SIZE :] = view.to_bytes()
            return ((entry, solicited),)
        return ()

    # ---- interrupts ----

    def _signalled(self, now_ns: int, out: Effects) -> None:
        """Take interrupts out of what is done that are lost or late."""
        if not self._interrupts or not any(type(effect) is RaiseIrq for effect in out):
            return
        left: Effects = []
        for effect in out:
            rule = self._interrupted(effect) if type(effect) is RaiseIrq else None
            if rule is None or (
                rule.action == "late" and not self._hold(effect, now_ns + rule.value, ENTRY_BYTES)  # type: ignore[arg-type]
            ):
                left.append(effect)
        out[:] = left

    def _interrupted(self, effect: RaiseIrq) -> FaultRule | None:
        return self._struck(self._interrupts, 0, lambda _: effect.vector, lambda _: f"interrupt of {effect.vector}")


def _in_error(view: Cqe64, syndrome: int, vendor: int) -> bytearray:
    """The completion of the same work request, which has failed."""
    error = ErrCqe64(
        srqn_uidx=view.srqn_uidx,
        vendor_error_syndrome=vendor,
        syndrome=syndrome,
        send_wqe_opcode=view.send_wqe_opcode,
        qpn=view.qpn,
        wqe_counter=view.wqe_counter,
        opcode=CqeOpcode.REQ_ERR if view.opcode in (CqeOpcode.REQ, CqeOpcode.REQ_ERR) else CqeOpcode.RESP_ERR,
    )
    return bytearray(error.to_bytes())


def _named(codes: type[IntEnum]) -> Callable[[int], str]:
    """The name of a code, or its number."""

    def name(code: int) -> str:
        try:
            return codes(code).name
        except ValueError:
            return f"{code:#06x}"

    return name


def _with_output(effects: Effects, change: Callable[[bytes], bytes]) -> Effects:
    return [
        replace(effect, output=change(effect.output)) if type(effect) is CommandDone else effect for effect in effects
    ]


def _damaged(output: bytes, at: int, mask: int, size: int) -> bytes:
    """An output in which bits of one byte are others, also of the zeros that the board puts behind it."""
    if at >= size:
        return output
    changed = bytearray(output.ljust(at + 1, b"\0"))
    changed[at] ^= mask
    return bytes(changed)
