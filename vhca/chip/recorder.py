"""A flight recorder: everything that a program was told and read, and what it answered; and a playback of that.

An example of middleware. A program has no clock, no chance and no memory but the board's, so that one with the same
input gives the same effects: :meth:`Recording.replay` runs another one on a recording and says where it differs.
"""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Literal

from vhca.chip.middleware import MemoryTap, ProgramTap, tapped
from vhca.hw.effects import DeviceWrite, DmaWrite, Effect, Effects
from vhca.hw.events import Event
from vhca.hw.hardware import Firmware, FirmwareImage, Hardware
from vhca.hw.memory import DmaError, Memory


@dataclass(slots=True)
class Step:
    """One call of the program: what it was, when, what it read (bytes, or why not), and its effects."""

    call: Literal["handle", "timer", "step"]
    now_ns: int
    event: Event | None = None
    reads: list[tuple[int, int, bytes | str]] = field(default_factory=list)
    effects: Effects = field(default_factory=list)


class Recording:
    """The steps of one program since its board had power, `most` of them at the end; wraps images.

    :ivar complete: no step was dropped, so that it can be replayed.
    """

    def __init__(self, most: int = 100_000) -> None:
        self.steps: deque[Step] = deque(maxlen=most)
        self.complete = True

    def of(self, image: FirmwareImage) -> FirmwareImage:
        """The image whose program is recorded."""
        return tapped(image, lambda inner: _RecordedProgram(inner, self), lambda inner: _RecordedMemory(inner, self))

    def begin(self, step: Step) -> Step:
        """A step begins."""
        self.complete &= len(self.steps) < (self.steps.maxlen or 0)
        self.steps.append(step)
        return step

    def replay(self, image: FirmwareImage, hardware: Hardware) -> str | None:
        """Run a program of `image` on the recording; where it differs first, None if it does not.

        `hardware` gives identity and limits; its memory is not looked at.
        """
        if not self.complete:
            raise ValueError("the recording has lost its beginning: give it more steps")
        player = _Player()
        program = tapped(image, memory=lambda _: player).power_up(hardware)
        for number, step in enumerate(self.steps):
            player.reads = deque(step.reads)
            out: Effects = []
            try:
                if step.event is not None:
                    program.handle(deepcopy(step.event), step.now_ns, out)
                elif step.call == "timer":
                    program.on_timer(step.now_ns, out)
                else:
                    program.step(step.now_ns, out)
            except _Strange as strange:
                return f"step {number} ({step.call}): {strange}"
            if out != step.effects:
                return f"step {number} ({step.call}): other effects"
            if player.reads:
                return f"step {number} ({step.call}): {len(player.reads)} reads fewer"
        return None


def _kept(effect: Effect) -> Effect:
    """A copy that nobody changes: data may be a view of what is used again."""
    if isinstance(effect, DmaWrite | DeviceWrite):
        return replace(effect, data=bytes(effect.data))
    return deepcopy(effect)


class _RecordedProgram(ProgramTap):
    def __init__(self, inner: Firmware, recording: Recording) -> None:
        super().__init__(inner)
        self._recording = recording

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        self._record(Step("handle", now_ns, deepcopy(event)), lambda: self.inner.handle(event, now_ns, out), out)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        self._record(Step("timer", now_ns), lambda: self.inner.on_timer(now_ns, out), out)

    def step(self, now_ns: int, out: Effects) -> None:
        self._record(Step("step", now_ns), lambda: self.inner.step(now_ns, out), out)

    def _record(self, step: Step, call: Callable[[], None], out: Effects) -> None:
        self._recording.begin(step)
        call()
        step.effects = [_kept(effect) for effect in out]


class _RecordedMemory(MemoryTap):
    def __init__(self, inner: Memory, recording: Recording) -> None:
        super().__init__(inner)
        self._recording = recording

    def read(self, addr: int, size: int) -> bytes:
        found: bytes | str
        try:
            found = self.inner.read(addr, size)
        except DmaError as error:
            found = str(error)
            raise
        finally:
            if self._recording.steps:
                self._recording.steps[-1].reads.append((addr, size, found))
        return found


class _Strange(Exception):
    """The program reads what the recorded one did not."""


class _Player:
    """The memory of a recording."""

    def __init__(self) -> None:
        self.reads: deque[tuple[int, int, bytes | str]] = deque()

    def read(self, addr: int, size: int) -> bytes:
        if not self.reads or self.reads[0][:2] != (addr, size):
            raise _Strange(f"it reads {size} bytes at {addr:#x}, which the recorded one did not")
        found = self.reads.popleft()[2]
        if isinstance(found, str):
            raise DmaError(found)
        return found

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        raise _Strange("a program does not write")
