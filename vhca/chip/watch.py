"""Listening to a card while it runs: its program is put into a tap, and taken out again.

So a card that nobody listens to does exactly what it did. The program tells what is inside it (work requests, entries
of queues) by effects of their own, in their places; what passes its border is seen here.
"""

from collections.abc import Callable

from vhca.chip.card_records import KEPT_BYTES, STATUS_BYTES, CommandRecord, EventRecord, InterruptRecord, ToldRecord
from vhca.chip.middleware import ProgramTap
from vhca.fabric.capture import CardRecord
from vhca.hw.effects import CommandDone, Effects, RaiseIrq, Told
from vhca.hw.events import CommandPosted, Event, PacketIn
from vhca.hw.hardware import Firmware

Listen = Callable[[CardRecord], None]


class Watch(ProgramTap):
    """A program that is watched; `listeners` are those of its board."""

    def __init__(self, inner: Firmware, listeners: list[Listen]) -> None:
        super().__init__(inner)
        self._listeners = listeners
        # The beginnings of commands that have not ended, and their lengths, by slot.
        self._commands: dict[int, tuple[bytes, int]] = {}
        inner.watch(True)

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        if type(event) is CommandPosted:
            self._commands[event.slot] = event.data[:KEPT_BYTES], len(event.data)
        elif type(event) is not PacketIn:
            self._tell(EventRecord(event))
        self.inner.handle(event, now_ns, out)
        _mark(out)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.on_timer(now_ns, out)
        _mark(out)

    def step(self, now_ns: int, out: Effects) -> None:
        """See :class:`vhca.hw.hardware.Firmware`."""
        self.inner.step(now_ns, out)
        _mark(out)

    def unwrap(self) -> Firmware:
        """The program, which tells nothing any more."""
        self.inner.watch(False)
        return self.inner

    def told(self, told: Told) -> None:
        """The board has carried out what was told of."""
        if told.what == "interrupt":
            self._tell(InterruptRecord(told.queue))
        elif told.what == "command":
            data, size = self._commands.pop(told.queue, (b"", 0))
            self._tell(CommandRecord(told.queue, data, size, told.data.ljust(STATUS_BYTES, b"\0")))
        else:
            self._tell(ToldRecord(told))

    def _tell(self, record: CardRecord) -> None:
        for listen in self._listeners:
            listen(record)


def _mark(out: Effects) -> None:
    """Tell of ended commands and interrupts where they stand among the effects."""
    marked: Effects = []
    for effect in out:
        marked.append(effect)
        if type(effect) is RaiseIrq:
            marked.append(Told("interrupt", effect.vector))
        elif type(effect) is CommandDone:
            marked.append(Told("command", effect.slot, data=bytes(effect.output[:KEPT_BYTES])))
    if len(marked) > len(out):
        out[:] = marked
