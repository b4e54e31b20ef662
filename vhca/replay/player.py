"""Playing a recording: another program is told what the recorded one was told, and must do the same.

Nothing of a host is there: what the program reads is what the recorded one has read, and what it does is compared.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vhca.hw.effects import Effects, Told
from vhca.hw.hardware import BoardInfo, Firmware, FirmwareImage, TraceSink
from vhca.hw.memory import DmaError
from vhca.replay.file import Reader, RecordingError
from vhca.replay.forms import FORMS, Asked, Input, Limit, Read, Step
from vhca.replay.identity import board_of
from vhca.replay.words import about_effect, about_input, effect_difference

TRACE_LINES: Final = 200
_FIRST_LIMIT: Final = 1 << 30


@dataclass(slots=True)
class Difference:
    """What the program did otherwise: `expected` of it, and `got`."""

    what: str
    expected: str
    got: str


@dataclass(slots=True)
class Played:
    """A step that was played; `done` is what the program did, with what it tells if it is watched."""

    number: int
    step: Step
    done: Effects
    difference: Difference | None = None


class _Otherwise(Exception):
    """The program asks for what the recorded one did not ask for."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference.what)
        self.difference = difference


class _Inputs:
    """What the program is given in one step."""

    def __init__(self) -> None:
        self.left: deque[Input] = deque()
        self.inside = False
        self.limit = _FIRST_LIMIT

    def next(self, wanted: str) -> Input:
        """What comes now; `wanted` says what the program asks for."""
        if not self.left:
            raise _Otherwise(Difference("what it asks for", "nothing more", wanted))
        return self.left.popleft()


class _Memory:
    """A memory of the recording."""

    def __init__(self, inputs: _Inputs, device: bool) -> None:
        self._inputs = inputs
        self._device = device

    def read(self, addr: int, size: int) -> bytes:
        """See :class:`vhca.hw.memory.Memory`."""
        wanted = about_input(Read(self._device, addr, size, bytes(0), ""))
        found = self._inputs.next(wanted)
        if not isinstance(found, Read) or (found.device, found.addr, found.size) != (self._device, addr, size):
            raise _Otherwise(Difference("what it asks for", about_input(found), wanted))
        if found.why:
            raise DmaError(found.why)
        if len(found.data) != size:
            raise RecordingError(f"a read of {size} bytes has found {len(found.data)}")
        return found.data

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """See :class:`vhca.hw.memory.Memory`."""
        raise _Otherwise(Difference("a write past the board", "none", f"{len(data)} bytes at {addr:#x}"))


class _Tamper:
    """The faults of the recording."""

    def __init__(self, inputs: _Inputs) -> None:
        self._inputs = inputs

    def completions(self, cqn: int, entry: bytearray, solicited: bool) -> Sequence[tuple[bytearray, bool]]:
        """See :class:`vhca.hw.hardware.Tamper`."""
        found = self._next(Asked("completion", cqn, solicited, 0, bytes(entry), []))
        return [(bytearray(answer.data), bool(answer.first)) for answer in found.answers]

    def events(self, eqn: int, event_type: int, sub_type: int, data: bytes) -> Sequence[tuple[int, int, bytes]]:
        """See :class:`vhca.hw.hardware.Tamper`."""
        found = self._next(Asked("event", eqn, event_type, sub_type, bytes(data), []))
        return [(answer.first, answer.second, answer.data) for answer in found.answers]

    def _next(self, asked: Asked) -> Asked:
        found = self._inputs.next(about_input(asked))
        if isinstance(found, Asked):
            asked.answers = found.answers
            if found == asked:
                return found
        raise _Otherwise(Difference("what it asks for", about_input(found), about_input(asked)))


class _Board:
    """The hardware of a playback."""

    def __init__(self, info: BoardInfo, inputs: _Inputs, trace: TraceSink | None) -> None:
        self._inputs = inputs
        self.info = info
        self.trace = trace
        self.memory = _Memory(inputs, False)
        self.device_memory = _Memory(inputs, True)

    def through(self, *_: object) -> None:
        """There are no other cards."""

    def memory_limit(self) -> int:
        """As the board said; who only looks gets what it said last."""
        inputs = self._inputs
        if inputs.inside:
            found = inputs.next("how much memory its objects may take")
            if not isinstance(found, Limit):
                asked = Difference("what it asks for", about_input(found), "how much memory its objects may take")
                raise _Otherwise(asked)
            inputs.limit = found.limit_bytes
        return inputs.limit


class Player:
    """Plays a recording on a program of `image`.

    `watched`: let the program tell what it does inside, as captures have it; that changes nothing of what is compared.

    :ivar program: the program, once it has booted.
    :ivar trace: the last lines of its trace.
    :raises RecordingError: this vhca cannot play it.
    """

    def __init__(self, reader: Reader, image: FirmwareImage, *, watched: bool = False) -> None:
        if reader.head.get("forms") != FORMS:
            version = str(reader.head.get("vhca"))[:40]
            raise RecordingError(f"{reader.path}: a vhca ({version}) made it whose events and effects are others")
        self._reader = reader
        self._image = image
        self._info = board_of(reader.head.get("board"))
        self._watched = watched
        self._inputs = _Inputs()
        self._told = False
        self.program: Firmware | None = None
        self._old: Firmware | None = None
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)

    def play(self) -> Iterator[Played]:
        """All steps and notes, until the first that differs. RecordingError: the recording is damaged there."""
        number = 0
        for step in self._reader.steps():
            if step.call == "note":
                yield Played(number, step, [])
                continue
            number += 1
            if self.program is None and step.call != "boot":
                raise RecordingError(f"{self._reader.path}: step {number} comes before the card has power")
            played = self._step(number, step)
            yield played
            if played.difference is not None:
                return

    def _step(self, number: int, step: Step) -> Played:
        inputs = self._inputs
        inputs.left = deque(step.inputs)
        inputs.inside = True
        done: Effects = []
        raised, difference = "", None
        try:
            self._call(step, done)
        except _Otherwise as otherwise:
            difference = otherwise.difference
        except RecordingError:
            raise
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"[:1000]
        finally:
            inputs.inside = False
        return Played(number, step, done, difference or self._compare(step, done, raised))

    def _call(self, step: Step, done: Effects) -> None:
        if step.call == "boot":
            self._old = self.program
            board: Any = _Board(self._info, self._inputs, self._note)
            self.program = self._image.power_up(board)
            self._told = False
            if self._watched:
                self.program.watch(True)
            return
        program = self.program
        assert program is not None
        if step.call == "handle":
            assert step.event is not None
            program.handle(step.event, step.now_ns, done)
        elif step.call == "timer":
            program.on_timer(step.now_ns, done)
        elif step.call == "step":
            program.step(step.now_ns, done)
        elif step.call == "watch":
            self._told = step.flag
            program.watch(step.flag or self._watched)
        elif step.call == "tamper":
            program.tamper(_Tamper(self._inputs) if step.flag else None)
        elif self._old is not None:
            program.inherit(self._old)
            self._old = None

    def _compare(self, step: Step, done: Effects, raised: str) -> Difference | None:
        if raised != step.raised:
            return Difference("how the program failed", step.raised or "not at all", raised or "not at all")
        got = done if self._told else [effect for effect in done if type(effect) is not Told]
        expected = step.effects
        if got != expected:
            return _first(step, expected, got)
        if self._inputs.left:
            return Difference("what it asks for", about_input(self._inputs.left[0]), "nothing more")
        return None

    def _note(self, what: str, details: Any) -> None:
        self.trace.append(f"{what:<8} " + " ".join(f"{key}={value}" for key, value in details.items()))


def _first(step: Step, expected: Effects, got: Effects) -> Difference:
    """The first of the effects that is another one."""
    for number, (one, other) in enumerate(zip(expected, got, strict=False), 1):
        if one != other:
            return Difference(f"effect {number}", *effect_difference(step, one, other))
    number = min(len(expected), len(got))
    words = [about_effect(some[number]) if number < len(some) else "nothing more" for some in (expected, got)]
    return Difference(f"effect {number + 1}", *words)
