"""Steps, inputs and effects for people, with the names of the manual."""

from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum
from typing import Any, Final

from vhca.chip.card_records import EventRecord, ToldRecord, layouts_of
from vhca.hw.effects import (
    CommandDone,
    DeviceWrite,
    DmaWrite,
    Effect,
    EntryWrite,
    HealthSet,
    LinkControl,
    Loopback,
    RaiseIrq,
    Told,
    Transmit,
)
from vhca.hw.events import CommandPosted, CompletionDue, Event, EventDue, LinkCounted, PacketIn
from vhca.replay.forms import Input, Limit, Read, Step
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.ib import opcode_of
from vhca.wire.opcodes import opcode_name
from vhca.wire.packet import Packet

_SHOWN_BYTES: Final = 16


def name_of(kind: type[IntEnum], code: int) -> str:
    """The name of a code, or its number."""
    try:
        return kind(code).name
    except ValueError:
        return f"{code:#x}"


def packet_opcode(packet: Packet) -> str:
    """The name of its opcode, as Wireshark has it."""
    try:
        return opcode_name(opcode_of(packet).code)
    except (KeyError, ValueError, LookupError, AttributeError):
        return f"service {packet.service:#x} operation {packet.op}"


def about_packet(packet: Packet) -> str:
    """A packet or burst in one line."""
    burst = f" in {packet.count} packets" if packet.count > 1 else ""
    return (
        f"{packet_opcode(packet)} to QP {packet.dest_qp:#08x}, PSN {packet.psn:#x}, {len(packet.payload)} bytes{burst},"
        f" LID {packet.route.slid} to {packet.route.dlid}"
    )


def opcode_in(event: Event | None) -> int:
    """The opcode of a command; 0 if it is none."""
    return int.from_bytes(event.data[:2], "big") if isinstance(event, CommandPosted) else 0


def about_event(event: Event) -> str:
    """What happened to the card, in one line."""
    if isinstance(event, CommandPosted):
        op = name_of(Op, opcode_in(event))
        return f"command {op} in slot {event.slot}: {len(event.data)} bytes, room for {event.out_size}"
    if isinstance(event, PacketIn):
        return f"packet {'of its own ' * event.looped}at port {event.port}: {about_packet(event.packet)}"
    if isinstance(event, LinkCounted):
        return f"the cable of port {event.port} counts {event.what}: {event.count}"
    if isinstance(event, CompletionDue):
        return f"a late completion of CQ {event.cqn:#08x}"
    if isinstance(event, EventDue):
        return f"a late event {event.event_type:#x} of EQ {event.eqn}"
    return EventRecord(event).words()[0]


def about_step(step: Step) -> str:
    """A call of the program in one line."""
    if step.event is not None:
        return about_event(step.event)
    words = {
        "timer": "timers are due",
        "step": "a piece of its own work",
        "boot": "power: the program boots",
        "inherit": "the program that failed is cleared away",
        "watch": f"it is watched: {step.flag}",
        "tamper": f"faults change its entries: {step.flag}",
    }
    return words.get(step.call, step.raised)


def about_input(given: Input) -> str:
    """What the program was given, or asks for, in one line."""
    if isinstance(given, Read):
        where = "of the card's memory " if given.device else ""
        return f"read of {given.size} bytes {where}at {given.addr:#x}{': failed' * bool(given.why)}"
    if isinstance(given, Limit):
        return f"its objects may take {given.limit_bytes} bytes"
    return f"{given.what} of queue {given.queue:#x} ({given.first:#x}, {given.data[:8].hex()} ...) may be changed"


def about_effect(effect: Effect) -> str:
    """What the program does, in one line."""
    if isinstance(effect, DmaWrite):
        return f"write of {len(effect.data)} bytes at {effect.addr:#x}"
    if isinstance(effect, DeviceWrite):
        return f"write of {len(effect.data)} bytes of the card's memory at {effect.offset:#x}"
    if isinstance(effect, EntryWrite):
        return f"entry of {len(effect.data)} bytes at {effect.addr:#x}"
    if isinstance(effect, Transmit):
        return f"sends at port {effect.port}: {about_packet(effect.packet)}"
    if isinstance(effect, Loopback):
        return f"sends to itself: {about_packet(effect.packet)}"
    if isinstance(effect, LinkControl):
        return f"transmitter of port {effect.port}: {'on' if effect.enabled else 'off'}"
    if isinstance(effect, RaiseIrq):
        return f"interrupt: vector {effect.vector}"
    if isinstance(effect, CommandDone):
        status = name_of(Status, effect.output[0]) if effect.output else "no output"
        syndrome = int.from_bytes(effect.output[4:8], "big")
        return f"command in slot {effect.slot} ends: {status}{f', syndrome {syndrome:#010x}' if syndrome else ''}"
    if isinstance(effect, HealthSet):
        return f"health buffer: {effect.field} = {effect.value:#x}"
    assert isinstance(effect, Told)
    return ToldRecord(effect).words()[0]


def effect_difference(step: Step, expected: Effect, got: Effect) -> tuple[str, str]:
    """Two effects for people: in what they differ first."""
    if type(expected) is not type(got):
        return about_effect(expected), about_effect(got)
    name, one, other = next(values for values in _values(expected, got) if values[1] != values[2])
    if isinstance(one, bytes | bytearray | memoryview):
        name, one, other = _bytes_difference(step, expected, name, bytes(one), bytes(other))
    return f"{about_effect(expected)}; {name} {_short(one)}", f"{about_effect(got)}; {name} {_short(other)}"


def _values(expected: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in fields(expected):
        one, other = getattr(expected, field.name), getattr(got, field.name)
        if isinstance(one, Packet):
            yield from _values(one, other)
        else:
            yield field.name, one, other


def _short(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else hex(value) if type(value) is int else repr(value)[:200]


def _bytes_difference(
    step: Step, effect: Effect, name: str, one: bytes, other: bytes
) -> tuple[str, bytes | int, bytes | int]:
    if len(one) != len(other):
        return f"length of {name}", len(one), len(other)
    at = next(number for number, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    where = f"{name} from byte {at:#x} on"
    if isinstance(effect, CommandDone) and (layout := layouts_of(name_of(Op, opcode_in(step.event)))[1]) is not None:
        found = [field.name for field in layout.fields() if field.start // 8 <= at < -(-field.end // 8)]
        where += f" ({', '.join(found)})" if found else ""
    return where, one[at : at + _SHOWN_BYTES], other[at : at + _SHOWN_BYTES]
