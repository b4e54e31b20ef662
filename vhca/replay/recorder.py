"""Recording a card: taps around its program and its memories that write all that passes into a file.

The program is the one in Python: its memory has no addresses, and there are no ways past its border, so that each read
and each packet is one that is seen. A card that is not recorded has none of this.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from vhca import __version__
from vhca.chip.middleware import MemoryTap, ProgramTap, tapped
from vhca.chip.rack_config import CardConfig
from vhca.hw.effects import Effects
from vhca.hw.events import Event
from vhca.hw.hardware import Firmware, FirmwareImage, Hardware, Tamper
from vhca.hw.memory import DmaError, Memory
from vhca.replay.file import LIMIT_BYTES, SUFFIX, Writer
from vhca.replay.forms import FORMS, Answer, Asked, Input, Limit, Parts, Read, put_head, put_rest
from vhca.replay.identity import firmware_hash, told

FLUSH_NS: Final = 100_000_000
"""What was done longer ago than this, by the card's clock, is in the file: a killed process loses no more."""
MOST_SPANS_TOLD: Final = 64


class CardRecorder:
    """The recording of one card, made when its card has power first; wraps images."""

    def __init__(self, path: Path, name: str, config: CardConfig, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._name = name
        self._config = config
        self._limit_bytes = limit_bytes
        self._writer: Writer | None = None
        self._parts: Parts = []
        self._inputs: list[Input] | None = None
        self._now_ns = 0
        self._generation: object = None
        self._spans: Callable[[], list[Any]] | None = None
        self._mapped: Callable[[], object] = lambda: None
        self.flush_at: int | None = None

    @property
    def on(self) -> bool:
        """Whether it goes on."""
        return self._writer is not None and self._writer.open

    def of(self, image: FirmwareImage) -> FirmwareImage:
        """The image whose program is recorded."""
        return _RecordedImage(image, self)

    def power(self, hardware: Hardware) -> None:
        """The card has power: what it is like is the beginning of the file."""
        if self._writer is None:
            self._writer = Writer(self.path, self._head(hardware), self._limit_bytes)
        memory = hardware.memory
        if hasattr(memory, "spans"):
            self._spans = memory.spans
            self._mapped = lambda: memory.generation  # type: ignore[attr-defined]

    def _head(self, hardware: Hardware) -> dict[str, Any]:
        config = self._config
        return {
            "forms": FORMS,
            "vhca": __version__,
            "card": self._name,
            "firmware": config.firmware,
            "firmware_hash": firmware_hash(config.firmware),
            "faults": list(config.faults),
            "middleware": config.middleware is not None,
            "board": told(hardware.info),
        }

    def begin(self, call: str, now_ns: int, event: Event | None = None, flag: bool = False) -> None:
        """A step begins."""
        if not self.on:
            return
        self._look_at_mappings()
        self._now_ns = now_ns
        self._inputs = []
        self._parts = []
        self._safely(lambda: put_head(call, now_ns, flag, event, self._parts))

    def add(self, given: Input) -> None:
        """The program was given something."""
        if self._inputs is not None:
            self._inputs.append(given)

    def end(self, done: Effects, failure: Exception | None = None) -> None:
        """A step is over."""
        inputs, self._inputs = self._inputs, None
        if inputs is None or not self.on:
            return
        raised = "" if failure is None else f"{type(failure).__name__}: {failure}"[:1000]
        self._safely(lambda: put_rest(inputs, done, raised, self._parts))
        self._write()
        if failure is not None and self._writer is not None:
            self._writer.flush()

    def note(self, text: str) -> None:
        """Something that is good to know, and that the program is not told."""
        if self.on:
            parts, self._parts = self._parts, []
            put_head("note", self._now_ns, False, None, self._parts)
            put_rest([], [], text, self._parts)
            self._write()
            self._parts = parts

    def _write(self) -> None:
        if self.on:
            assert self._writer is not None
            self._writer.add(b"".join(self._parts))
            if self.flush_at is None:
                self.flush_at = self._now_ns + FLUSH_NS

    def _safely(self, put: Callable[[], None]) -> None:
        """What a recording has no room for ends it, and not the card."""
        try:
            put()
        except (struct.error, KeyError) as error:
            assert self._writer is not None
            self._writer.end({"why": "failed", "text": f"a step cannot be written: {error}"})

    def _look_at_mappings(self) -> None:
        generation = self._mapped()
        if generation != self._generation and self._spans is not None:
            self._generation = generation
            spans = self._spans()
            shown = ", ".join(
                f"{span.start:#x} to {span.end:#x} {'r' * span.readable}{'w' * span.writable}"
                for span in spans[:MOST_SPANS_TOLD]
            )
            self.note(f"memory of the host by address: {shown or 'none'}")

    def flush(self) -> None:
        """Write what waits."""
        self.flush_at = None
        if self._writer is not None:
            self._writer.flush()

    def close(self, why: str = "end") -> None:
        """End the recording."""
        if self._writer is not None:
            self._writer.end({"why": why})


class _RecordedImage:
    def __init__(self, inner: FirmwareImage, recorder: CardRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def power_up(self, hardware: Hardware) -> Firmware:
        recorder = self._recorder
        recorder.power(hardware)
        # The tap of middleware gives memories; the limit, and the card's own memory, are taken here.
        seen = _Seen(hardware, recorder)
        recorder.begin("boot", 0)
        image = tapped(self._inner, program=lambda inner: _RecordedProgram(inner, recorder))
        try:
            program = image.power_up(seen)
        except Exception as error:
            recorder.end([], error)
            raise
        recorder.end([])
        return program

    def explain(self, syndrome: int) -> tuple[str, str] | None:
        return self._inner.explain(syndrome)


class _Seen:
    """The hardware, whose answers are recorded."""

    def __init__(self, inner: Hardware, recorder: CardRecorder) -> None:
        self._ask = inner.memory_limit
        self._recorder = recorder
        self.memory: Memory = _RecordedMemory(inner.memory, recorder, False)
        self.device_memory: Memory = _RecordedMemory(inner.device_memory, recorder, True)
        self.info = inner.info
        self.trace = inner.trace

    def memory_limit(self) -> int:
        limit = self._ask()
        self._recorder.add(Limit(limit))
        return limit

    def through(self, *_: object) -> None:
        return None


class _RecordedMemory(MemoryTap):
    def __init__(self, inner: Memory, recorder: CardRecorder, device: bool) -> None:
        super().__init__(inner)
        self._recorder = recorder
        self._device = device

    def read(self, addr: int, size: int) -> bytes:
        try:
            found = self.inner.read(addr, size)
        except DmaError as error:
            self._recorder.add(Read(self._device, addr, size, b"", str(error) or "failed"))
            raise
        self._recorder.add(Read(self._device, addr, size, found, ""))
        return found


class _RecordedProgram(ProgramTap):
    def __init__(self, inner: Firmware, recorder: CardRecorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def handle(self, event: Event, now_ns: int, out: Effects) -> None:
        self._record("handle", now_ns, event, lambda part: self.inner.handle(event, now_ns, part), out)

    def on_timer(self, now_ns: int, out: Effects) -> None:
        recorder = self._recorder
        if recorder.flush_at is not None and recorder.flush_at <= now_ns:
            recorder.flush()
            due = self.inner.next_deadline()
            if due is None or due > now_ns:
                return
        self._record("timer", now_ns, None, lambda part: self.inner.on_timer(now_ns, part), out)

    def step(self, now_ns: int, out: Effects) -> None:
        self._record("step", now_ns, None, lambda part: self.inner.step(now_ns, part), out)

    def _record(
        self, call: str, now_ns: int, event: Event | None, run: Callable[[Effects], None], out: Effects
    ) -> None:
        """Run a step with a list of its own, since what others have put into `out` is not this program's."""
        part: Effects = []
        self._recorder.begin(call, now_ns, event)
        try:
            run(part)
        except Exception as error:
            self._recorder.end(part, error)
            out += part
            raise
        self._recorder.end(part)
        out += part

    def next_deadline(self) -> int | None:
        due, flush_at = self.inner.next_deadline(), self._recorder.flush_at
        return due if flush_at is None else flush_at if due is None else min(due, flush_at)

    def watch(self, on: bool) -> None:
        self._recorder.begin("watch", self._recorder._now_ns, flag=on)
        self.inner.watch(on)
        self._recorder.end([])

    def tamper(self, tamper: Tamper | None) -> None:
        self._recorder.begin("tamper", self._recorder._now_ns, flag=tamper is not None)
        self.inner.tamper(None if tamper is None else _RecordedTamper(tamper, self._recorder))
        self._recorder.end([])

    def inherit(self, old: Firmware) -> None:
        self._recorder.begin("inherit", self._recorder._now_ns)
        super().inherit(old)
        self._recorder.end([])


class _RecordedTamper:
    def __init__(self, inner: Tamper, recorder: CardRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def completions(self, cqn: int, entry: bytearray, solicited: bool) -> Sequence[tuple[bytearray, bool]]:
        asked = Asked("completion", cqn, solicited, 0, bytes(entry), [])
        found = self._inner.completions(cqn, entry, solicited)
        asked.answers = [Answer(flag, 0, bytes(data)) for data, flag in found]
        self._recorder.add(asked)
        return found

    def events(self, eqn: int, event_type: int, sub_type: int, data: bytes) -> Sequence[tuple[int, int, bytes]]:
        found = self._inner.events(eqn, event_type, sub_type, data)
        answers = [Answer(kind, sub, bytes(form)) for kind, sub, form in found]
        self._recorder.add(Asked("event", eqn, event_type, sub_type, bytes(data), answers))
        return found


class Recordings:
    """A folder with the recordings of a rack's cards, `h0.vhcarec` and so on, each of `limit_bytes` at most."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self.cards: dict[str, CardRecorder] = {}

    def recorded(self, config: CardConfig) -> CardConfig:
        """The card, recorded: what else is around its program is outside of that."""
        outside = config.middleware

        def around(name: str, image: FirmwareImage) -> FirmwareImage:
            recorder = CardRecorder(self.folder / f"{name}{SUFFIX}", name, config, self._limit_bytes)
            self.cards[name] = recorder
            image = recorder.of(image)
            return image if outside is None else outside(name, image)

        return replace(config, middleware=around)

    @property
    def paths(self) -> list[Path]:
        """The files, card by card."""
        return [recorder.path for recorder in self.cards.values()]

    def close(self) -> None:
        """End all of them; the loop of the rack has ended, or this is called in its thread."""
        for recorder in self.cards.values():
            recorder.close()
