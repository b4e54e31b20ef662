"""Faults inside a card: rules between its board and its program, which see what comes and change what is done.

A card without rules has none of this: its program is put into a tap with the first rule, and taken out of it with the
last one. What may wait here is bounded, since a guest says how much there is: what is too much is not late.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from vhca.chip.fault_rules import FaultRule, FaultRuleError, command_layout, parse_rule
from vhca.chip.middleware import ProgramTap
from vhca.hw.effects import CommandDone, Effects
from vhca.hw.events import CommandPosted, Event, Reset
from vhca.hw.hardware import Firmware
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.cmd.common import BareIn

MOST_RULES: Final = 32
"""Of one card: each is looked at for every thing of its kind."""
MOST_HELD: Final = 1024
MOST_HELD_BYTES: Final = 32 << 20
HELD_PER_STEP: Final = 64


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


@dataclass(order=True, slots=True)
class _Held:
    """An event that is late."""

    due_ns: int
    order: int
    event: Event = field(compare=False)
    size: int = field(compare=False)


class CardFaults:
    """The rules of one card; the loop's thread only."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rules: list[FaultRule] = []
        self._last = 0
        self._tap: _FaultTap | None = None

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
        self._changed()
        return rule

    def remove(self, number: int) -> None:
        """Take a rule away; what it holds back goes on when its time has come. KeyError: there is none."""
        left = [rule for rule in self._rules if rule.number != number]
        if len(left) == len(self._rules):
            raise KeyError(number)
        self._rules = left
        self._changed()

    def clear(self) -> int:
        """Take all away, and say how many there were."""
        count = len(self._rules)
        self._rules = []
        self._changed()
        return count

    def _changed(self) -> None:
        if self._rules and self._tap is None:
            self._host.tap(self._wrap)
        elif self._tap is not None:
            self._tap.look()
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

    @property
    def holds(self) -> bool:
        """True while something is late."""
        return bool(self._held)

    def look(self) -> None:
        """The rules have changed."""
        rules = self._faults.rules
        self._commands = [rule for rule in rules if rule.kind == "command"]

    # ---- what the board asks ----

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        if type(event) is CommandPosted and self._commands:
            self._command(event, now_ns, out)
            return
        if type(event) is Reset:
            self._held.clear()
            self._held_bytes = 0
        self.inner.handle(event, now_ns, out)

    def next_deadline(self) -> int | None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        inner = self.inner.next_deadline()
        if not self._held:
            return inner
        mine = self._held[0].due_ns
        return mine if inner is None else min(mine, inner)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        due = self.inner.next_deadline()
        if due is not None and due <= now_ns:
            self.inner.on_timer(now_ns, out)
        for _ in range(HELD_PER_STEP):
            if not self._held or self._held[0].due_ns > now_ns:
                break
            held = heapq.heappop(self._held)
            self._held_bytes -= held.size
            out += self._run(held.event, now_ns)
        self._faults.let_go()

    def _run(self, event: Event, now_ns: int) -> Effects:
        """What the program does about an event; a list of its own, since it looks at all that is in one."""
        part: Effects = []
        self.inner.handle(event, now_ns, part)
        return part

    def _hold(self, event: Event, due_ns: int, size: int) -> bool:
        """Keep an event until its time; False if there is too much already."""
        if len(self._held) >= MOST_HELD or self._held_bytes + size > MOST_HELD_BYTES:
            return False
        self._order += 1
        self._held_bytes += size
        heapq.heappush(self._held, _Held(due_ns, self._order, event, size))
        return True

    # ---- commands ----

    def _command(self, event: CommandPosted, now_ns: int, out: Effects) -> None:
        opcode = int.from_bytes(event.data[:2], "big")
        layout = command_layout(opcode)
        view = layout.from_bytes(event.data[: layout.SIZE].ljust(layout.SIZE, b"\0"))
        for rule in self._commands:
            if rule.fits(opcode, lambda name: int(getattr(view, name))) and rule.strikes(now_ns):
                self._host.note_fault(_named(opcode), rule.number)
                self._spoil(rule, event, now_ns, out)
                return
        self.inner.handle(event, now_ns, out)

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


def _named(opcode: int) -> str:
    try:
        return Op(opcode).name
    except ValueError:
        return f"{opcode:#06x}"
