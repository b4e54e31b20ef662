"""Where a playback is to stop: conditions on what a step was told, read and did, such as `cqe.syndrome=0x13`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from vhca.hw.effects import CommandDone, DmaWrite, EntryWrite, HealthSet, RaiseIrq, Told, Transmit
from vhca.hw.events import CommandPosted, CqDoorbell, EqDoorbell, PacketIn, Reset, SqDoorbell
from vhca.replay.forms import Read
from vhca.replay.player import Played
from vhca.replay.words import opcode_in, packet_opcode
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqe import Cqe64, CqeOpcode, CqeSyndrome, ErrCqe64
from vhca.wire.connectx.eqe import Eqe, EventType
from vhca.wire.packet import Packet

_ERRORS: Final = (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR)


@dataclass(frozen=True, slots=True)
class Field:
    """What can be asked for: its meaning, and the names of its numbers, if there are any."""

    help: str
    names: type[IntEnum] | None = None
    text: bool = False


FIELDS: Final = {
    "command.opcode": Field("a command is executed", Op),
    "command.status": Field("a command ends with this status", Status),
    "command.syndrome": Field("a command ends with this syndrome"),
    "doorbell.sq": Field("the send queue of this queue pair is rung for"),
    "doorbell.cq": Field("this completion queue is armed"),
    "doorbell.eq": Field("this event queue is updated"),
    "packet.opcode": Field("a packet comes or goes: RC_ACKNOWLEDGE, or the beginning of such a name", text=True),
    "packet.qpn": Field("a packet for this queue pair comes or goes"),
    "packet.psn": Field("a packet or burst with this sequence number comes or goes"),
    "cqe.opcode": Field("a completion is written", CqeOpcode),
    "cqe.syndrome": Field("a completion with this error is written", CqeSyndrome),
    "cqe.qpn": Field("a completion of this queue pair is written"),
    "cqe.cqn": Field("a completion is written into this queue"),
    "event.type": Field("an event is written", EventType),
    "event.eqn": Field("an event is written into this queue"),
    "write.address": Field("this byte of the host's memory is written"),
    "read.address": Field("this byte of the host's memory is read"),
    "interrupt.vector": Field("this interrupt is raised"),
    "health.field": Field("this field of the health buffer is set: synd, rfr ...", text=True),
    "reset.reason": Field("the card is reset: flr, software, lost_connection ...", text=True),
}
"""By name, in the order in which they are told."""

Fact = tuple[str, int | str, int]
"""A field, its value, and for how many numbers from there on that holds."""


class BreakError(ValueError):
    """There is no such condition; the text says what there is."""


def condition(text: str) -> Callable[[Played], bool]:
    """What stops a playback, from `FIELD=VALUE`.

    :raises BreakError: there is no such field, or no such value of it.
    """
    name, equals, value = text.partition("=")
    field = FIELDS.get(name)
    if field is None or not equals or not value:
        raise BreakError(f"{text!r}: give FIELD=VALUE; fields are {', '.join(FIELDS)}")
    if field.text:
        wanted = value.upper() if name == "packet.opcode" else value
        return lambda played: any(fact[0] == name and str(fact[1]).startswith(wanted) for fact in facts(played))
    number = _number(field, value, text)
    return lambda played: any(fact[0] == name and _holds(fact, number) for fact in facts(played))


def _holds(fact: Fact, number: int) -> bool:
    first = fact[1]
    return isinstance(first, int) and first <= number < first + fact[2]


def _number(field: Field, value: str, text: str) -> int:
    if field.names is not None and value.upper() in field.names.__members__:
        return int(field.names[value.upper()])
    try:
        return int(value, 0)
    except ValueError:
        names = "" if field.names is None else f", or a name such as {', '.join(list(field.names.__members__)[:3])}"
        raise BreakError(f"{text!r}: {value} is no number{names}") from None


def facts(played: Played) -> Iterator[Fact]:
    """All that can be asked for of a step."""
    yield from _event_facts(played)
    for given in played.step.inputs:
        if isinstance(given, Read) and not given.device:
            yield "read.address", given.addr, given.size
    for effect in played.done:
        if isinstance(effect, DmaWrite | EntryWrite):
            yield "write.address", effect.addr, len(effect.data)
        elif isinstance(effect, Transmit):
            yield from _packet_facts(effect.packet)
        elif isinstance(effect, RaiseIrq):
            yield "interrupt.vector", effect.vector, 1
        elif isinstance(effect, HealthSet):
            yield "health.field", effect.field, 1
        elif isinstance(effect, CommandDone):
            yield "command.status", int.from_bytes(effect.output[:1], "big"), 1
            yield "command.syndrome", int.from_bytes(effect.output[4:8], "big"), 1
        elif isinstance(effect, Told):
            yield from _told_facts(effect)


def _event_facts(played: Played) -> Iterator[Fact]:
    event = played.step.event
    if isinstance(event, CommandPosted):
        yield "command.opcode", opcode_in(event), 1
    elif isinstance(event, SqDoorbell):
        yield "doorbell.sq", event.qpn_ds >> 8, 1
    elif isinstance(event, CqDoorbell):
        yield "doorbell.cq", event.cqn, 1
    elif isinstance(event, EqDoorbell):
        yield "doorbell.eq", event.eqn, 1
    elif isinstance(event, PacketIn):
        yield from _packet_facts(event.packet)
    elif isinstance(event, Reset):
        yield "reset.reason", event.reason, 1


def _packet_facts(packet: Packet) -> Iterator[Fact]:
    yield "packet.opcode", packet_opcode(packet), 1
    yield "packet.qpn", packet.dest_qp, 1
    yield "packet.psn", packet.psn, packet.count


def _told_facts(told: Told) -> Iterator[Fact]:
    if told.what == "event":
        yield "event.type", Eqe.from_bytes(told.data).event_type, 1
        yield "event.eqn", told.queue, 1
    elif told.what == "completion":
        view = Cqe64.from_bytes(told.data[-Cqe64.SIZE :])
        yield "cqe.opcode", view.opcode, 1
        yield "cqe.qpn", view.qpn, 1
        yield "cqe.cqn", told.queue, 1
        if view.opcode in _ERRORS:
            yield "cqe.syndrome", ErrCqe64.from_bytes(told.data[-Cqe64.SIZE :]).syndrome, 1
