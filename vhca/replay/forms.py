"""How things of the border between board and program are written: numbers in 64 bits, bytes and texts with lengths.

The form of a class is made of its fields, and :data:`FORMS` is the CRC-32 of all of them: a recording with another one
was made by another version, and is not guessed at. What is read was written by anybody: each length is checked against
what is there.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, Final, Literal, get_args, get_origin

from vhca.hw import effects, events
from vhca.hw.effects import Effect
from vhca.hw.events import Event
from vhca.wire.packet import Grh, Packet, Route


class FormError(Exception):
    """Bytes that are no such thing; the text says why."""


@dataclass(slots=True)
class Read:
    """A read of the host's memory, or of the card's own; `why` it failed, if it did."""

    device: bool
    addr: int
    size: int
    data: bytes
    why: str


@dataclass(slots=True)
class Limit:
    """What the program's objects may take, as the board said."""

    limit_bytes: int


@dataclass(slots=True)
class Answer:
    """A completion (`first`: solicited) or an event (`first`: type, `second`: sub-type) that is written instead."""

    first: int
    second: int
    data: bytes


@dataclass(slots=True)
class Asked:
    """What a fault made of a completion or an event; see :class:`vhca.hw.hardware.Tamper`."""

    what: str
    queue: int
    first: int
    second: int
    data: bytes
    answers: list[Answer]


Input = Read | Limit | Asked

_COUNT: Final = Struct(">I")
_ROUTE: Final = Struct(">4Q?")
_GRH: Final = Struct(">3Q")
_STEP: Final = Struct(">BQ?")


class Source:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many there are."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > self.left:
            raise FormError(f"{size} bytes are to follow, and {self.left} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def unpack(self, struct: Struct) -> tuple[Any, ...]:
        """The next numbers."""
        return struct.unpack(self.take(struct.size))

    def count(self) -> int:
        """A number of things, each of which has a byte at least."""
        (found,) = self.unpack(_COUNT)
        if found > self.left:
            raise FormError(f"{found} things are to follow, and {self.left} bytes are there")
        return int(found)

    def text(self) -> str:
        """A text."""
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError:
            raise FormError("a text is not UTF-8") from None


Parts = list[bytes | bytearray | memoryview]


def put_bytes(data: bytes | bytearray | memoryview, out: Parts) -> None:
    """Bytes with their length."""
    out.append(_COUNT.pack(len(data)))
    out.append(data)


def put_text(text: str, out: Parts) -> None:
    """A text with its length."""
    put_bytes(text.encode("utf-8", "backslashreplace"), out)


def _put_route(route: Route, out: Parts) -> None:
    grh = route.grh
    out.append(_ROUTE.pack(route.dlid, route.slid, route.sl, route.vl, grh is not None))
    if grh is not None:
        put_bytes(grh.sgid, out)
        put_bytes(grh.dgid, out)
        out.append(_GRH.pack(grh.tclass, grh.flow_label, grh.hop_limit))


def _take_route(source: Source) -> Route:
    dlid, slid, sl, vl, has_grh = source.unpack(_ROUTE)
    if not has_grh:
        return Route(dlid, slid, sl, vl)
    sgid, dgid = source.take(source.count()), source.take(source.count())
    return Route(dlid, slid, sl, vl, Grh(sgid, dgid, *source.unpack(_GRH)))


class Form:
    """How objects of one class are written: its numbers, then what has no fixed length."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self._numbers: list[tuple[str, bool]] = []
        self._rest: list[tuple[str, Callable[[Any, Parts], None], Callable[[Source], Any]]] = []
        layout = ">"
        self.words = kind.__name__
        for field in fields(kind):
            named = field.type
            self.words += f" {field.name}:{named}"
            if named in (int, bool):
                layout += "Q" if named is int else "?"
                self._numbers.append((field.name, False))
            elif set(get_args(named)) == {int, type(None)}:
                layout += "?Q"
                self._numbers.append((field.name, True))
            else:
                self._rest.append((field.name, *_unfixed(named)))
        self._struct = Struct(layout)

    def put(self, thing: Any, out: Parts) -> None:
        """Write an object. struct.error: a number has more than 64 bits."""
        numbers: list[int | bool] = []
        for name, optional in self._numbers:
            value = getattr(thing, name)
            if not optional:
                numbers.append(value)
            else:
                numbers += (False, 0) if value is None else (True, value)
        out.append(self._struct.pack(*numbers))
        for name, put, _ in self._rest:
            put(getattr(thing, name), out)

    def take(self, source: Source) -> Any:
        """Read an object."""
        numbers = iter(source.unpack(self._struct))
        found: dict[str, Any] = {}
        for name, optional in self._numbers:
            value = next(numbers)
            if optional:
                number = next(numbers)
                value = number if value else None
            found[name] = value
        for name, _, take in self._rest:
            found[name] = take(source)
        return self.kind(**found)


def _unfixed(named: Any) -> tuple[Callable[[Any, Parts], None], Callable[[Source], Any]]:
    if named is Packet:
        return (lambda packet, out: _PACKET.put(packet, out)), (lambda source: _PACKET.take(source))
    if named is Route:
        return _put_route, _take_route
    if named is str or get_origin(named) is Literal:
        return put_text, Source.text
    if get_origin(named) is list:
        return (lambda things, out: put_all(things, _ANSWER, out)), (lambda source: take_all(source, _ANSWER))
    assert bytes in (named, *get_args(named)), named
    return put_bytes, lambda source: source.take(source.count())


def put_all(things: list[Any], form: Form, out: Parts) -> None:
    """Several of one class."""
    out.append(_COUNT.pack(len(things)))
    for thing in things:
        form.put(thing, out)


def take_all(source: Source, form: Form) -> list[Any]:
    """Several of one class."""
    return [form.take(source) for _ in range(source.count())]


_ANSWER: Final = Form(Answer)
_PACKET: Final = Form(Packet)
# The place of a class in these is its number in a recording.
_EVENTS: Final = (
    events.Reset, events.InterfaceChange, events.CommandPosted, events.SqDoorbell, events.CqDoorbell,
    events.EqDoorbell, events.PacketIn, events.LinkChange, events.LinkCounted, events.CompletionDue, events.EventDue,
)  # fmt: skip
_EFFECTS: Final = (
    effects.DmaWrite, effects.DeviceWrite, effects.EntryWrite, effects.Transmit, effects.Loopback, effects.LinkControl,
    effects.RaiseIrq, effects.CommandDone, effects.HealthSet, effects.Told,
)  # fmt: skip
_INPUTS: Final = (Read, Limit, Asked)


class Family:
    """Classes one of which an object has; a byte says which."""

    def __init__(self, kinds: tuple[type[Any], ...]) -> None:
        self.forms = [Form(kind) for kind in kinds]
        self._number = {kind: (bytes((number,)), self.forms[number]) for number, kind in enumerate(kinds)}

    def put(self, thing: Any, out: Parts) -> None:
        """Write an object."""
        number, form = self._number[type(thing)]
        out.append(number)
        form.put(thing, out)

    def take(self, source: Source) -> Any:
        """Read an object."""
        number = source.take(1)[0]
        if number >= len(self.forms):
            raise FormError(f"there is nothing with the number {number}")
        return self.forms[number].take(source)

    def put_all(self, things: list[Any], out: Parts) -> None:
        """Write several."""
        out.append(_COUNT.pack(len(things)))
        for thing in things:
            self.put(thing, out)

    def take_all(self, source: Source) -> list[Any]:
        """Read several."""
        return [self.take(source) for _ in range(source.count())]


EVENTS: Final = Family(_EVENTS)
EFFECTS: Final = Family(_EFFECTS)
INPUTS: Final = Family(_INPUTS)
FORMS: Final = zlib.crc32(
    "; ".join(form.words for form in (*EVENTS.forms, *EFFECTS.forms, *INPUTS.forms, _PACKET, _ANSWER)).encode()
)
"""Of all classes that are written: another one if one of them has other fields."""

CALLS: Final = ("handle", "timer", "step", "boot", "inherit", "watch", "tamper", "note")
"""What a board does with a program, by number; a note is no step, but something that is good to know."""


@dataclass(slots=True)
class Step:
    """One call of the program: when, what it was told, what it asked for, what it did.

    `flag`: that of watch and tamper. `raised`: how the program failed, empty if it did not; of a note, its text.
    """

    call: str
    now_ns: int
    flag: bool
    event: Event | None
    inputs: list[Input]
    effects: list[Effect]
    raised: str


def put_head(call: str, now_ns: int, flag: bool, event: Event | None, out: Parts) -> None:
    """The beginning of a step, which is known before it is run."""
    out.append(_STEP.pack(CALLS.index(call), now_ns, flag))
    if event is not None:
        EVENTS.put(event, out)


def put_rest(inputs: list[Input], done: list[Effect], raised: str, out: Parts) -> None:
    """Its end."""
    INPUTS.put_all(inputs, out)
    EFFECTS.put_all(done, out)
    put_text(raised, out)


def take_step(source: Source) -> Step:
    """Read a step."""
    number, now_ns, flag = source.unpack(_STEP)
    if number >= len(CALLS):
        raise FormError(f"there is no step with the number {number}")
    call = CALLS[number]
    event = EVENTS.take(source) if call == "handle" else None
    return Step(call, now_ns, flag, event, INPUTS.take_all(source), EFFECTS.take_all(source), source.text())
