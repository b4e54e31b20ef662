"""What a card tells of itself in a capture: commands, doorbells, work requests, completions, events, interrupts.

Each record has a line for people and fields by name, with the names of the manual. There are no payloads, contexts or
page lists in them, and no keys: what identifies an object is there, what opens it is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final

from vhca.fabric.pcapng import INBOUND, OUTBOUND
from vhca.hw.effects import Told
from vhca.hw.events import CqDoorbell, EqDoorbell, Event, InterfaceChange, LinkChange, Reset, SqDoorbell
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status, dct
from vhca.wire.connectx.cqe import Cqe64, CqeFormat, CqeOpcode, CqeSyndrome, ErrCqe64
from vhca.wire.connectx.eqe import DATA_LAYOUTS, Eqe, EventType
from vhca.wire.connectx.wqe import WqeOpcode

KEPT_BYTES: Final = 64
"""Of a command's input, and of its output: the fields that come before its context."""
STATUS_BYTES: Final = 8
"""Status and syndrome: the least that any output holds."""
# Layouts that are not called like their command.
_OTHER_NAMES: Final = {
    "ACCESS_REG": "AccessRegister",
    "CREATE_GENERAL_OBJECT": "GeneralObject",
    "DESTROY_GENERAL_OBJECT": "GeneralObject",
    "DRAIN_DCT": "Dct",
    "DESTROY_DCT": "Dct",
    "QUERY_DCT": "Dct",
    "ARM_DCT_FOR_KEY_VIOLATION": "Dct",
    "INIT2INIT_QP": "Rst2initQp",
    "INIT2RTR_QP": "Rst2initQp",
    "RTR2RTS_QP": "Rst2initQp",
    "RTS2RTS_QP": "Rst2initQp",
    "SQERR2RTS_QP": "Rst2initQp",
    "SQD_RTS_QP": "Rst2initQp",
    "QP_2RST": "Qp2err",
}
_HEADER: Final = ("opcode", "uid", "op_mod", "status", "syndrome")
# Numbers of objects are written as Wireshark writes those of queue pairs.
_NUMBERS: Final = frozenset(("qpn", "input_qpn", "cqn", "srqn", "xrc_srqn", "rmpn", "dctn", "mkey_index", "qp_srq_n"))
_ERRORS: Final = (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR)

Fields = dict[str, object]
Words = tuple[str, Mapping[str, object]]


def _name(kind: type[IntEnum], code: int) -> str:
    """The name of a code, or its number."""
    try:
        return kind(code).name
    except ValueError:
        return f"{code:#04x}"


def _number(value: int) -> str:
    return f"{value:#08x}"


@cache
def layouts_of(op: str) -> tuple[type[Layout] | None, type[Layout] | None]:
    """Input and output of a command, as far as they are declared."""
    base = _OTHER_NAMES.get(op, "".join(part.capitalize() for part in op.split("_")))
    asked, answered = (getattr(cmd, base + end, None) or getattr(dct, base + end, None) for end in ("In", "Out"))
    return asked, answered


def _secret(name: str) -> bool:
    return "key" in name and not name.endswith("_index")


def _shown(layout: type[Layout], data: bytes, without: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """The numbers of a structure that are not zero, as far as `data` go; no embedded structure, no bytes, no keys."""
    view = layout.from_bytes(data[: layout.SIZE].ljust(layout.SIZE, b"\0"))
    for field in layout.fields():
        if field.is_integer and field.end <= 8 * len(data) and field.name not in without and not _secret(field.name):
            value: int = getattr(view, field.name)
            if field.name in _NUMBERS and value:
                yield field.name, _number(value)
            elif value:
                yield field.name, value


def _line(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command that has ended; `data` and `output` are the beginnings of both."""

    slot: int
    data: bytes
    input_bytes: int
    output: bytes
    direction: int = OUTBOUND

    def words(self) -> Words:
        """See :class:`vhca.fabric.capture.CardRecord`."""
        opcode = int.from_bytes(self.data[0:2], "big")
        op = _name(Op, opcode)
        status = _name(Status, self.output[0])
        asked, answered = layouts_of(op)
        fields: Fields = {"record": "command", "op": op, "opcode": f"{opcode:#x}", "slot": self.slot, "status": status}
        if self.output[0]:
            fields["syndrome"] = f"{int.from_bytes(self.output[4:8], 'big'):#010x}"
        for name, start in (("uid", 2), ("op_mod", 6)):
            if value := int.from_bytes(self.data[start : start + 2], "big"):
                fields[name] = value
        found: Fields = {}
        if asked is not None:
            found |= _shown(asked, self.data, _HEADER)
        if answered is not None and not self.output[0]:
            found |= _shown(answered, self.output, _HEADER)
        about = _line({key: value for key, value in found.items() if key in _NUMBERS} or found)
        end = f"{status}, syndrome {fields['syndrome']}" if self.output[0] else status
        fields["input_bytes"] = self.input_bytes
        return f"{op}: {end}{'; ' if about else ''}{about}", fields | found


@dataclass(frozen=True, slots=True)
class EventRecord:
    """What the host, the cable or the board did to the card."""

    event: Event
    direction: int = INBOUND

    def words(self) -> Words:
        """See :class:`vhca.fabric.capture.CardRecord`."""
        event = self.event
        fields: Fields
        if isinstance(event, SqDoorbell):
            opcode = _name(WqeOpcode, event.opmod_idx_opcode & 0xFF)
            index = event.opmod_idx_opcode >> 8 & 0xFFFF
            fields = {
                "record": "doorbell", "queue": "SQ", "qpn": _number(event.qpn_ds >> 8), "index": index,
                "opcode": opcode, "ds": event.qpn_ds & 0x3F, "uar": event.uar,
            }  # fmt: skip
            return f"doorbell SQ of QP {fields['qpn']}: up to WQE {index}, {opcode}", fields
        if isinstance(event, CqDoorbell):
            asked = "the next solicited" if event.solicited else "the next"
            fields = {
                "record": "doorbell", "queue": "CQ", "cqn": _number(event.cqn), "index": event.consumer_index,
                "arm": asked, "uar": event.uar,
            }  # fmt: skip
            return f"doorbell CQ {fields['cqn']}: seen up to {event.consumer_index}, wants {asked}", fields
        if isinstance(event, EqDoorbell):
            fields = {
                "record": "doorbell", "queue": "EQ", "eqn": event.eqn, "index": event.consumer_index,
                "arm": event.arm, "uar": event.uar,
            }  # fmt: skip
            return f"doorbell EQ {event.eqn}: seen up to {event.consumer_index}{', armed' * event.arm}", fields
        if isinstance(event, Reset):
            return f"reset: {event.reason}", {"record": "reset", "reason": event.reason}
        if isinstance(event, InterfaceChange):
            return f"interface: state {event.state}", {"record": "interface", "state": event.state}
        assert isinstance(event, LinkChange)
        up = "up" if event.up else "down"
        return f"link of port {event.port}: {up}", {"record": "link", "port": event.port, "link": up}


@dataclass(frozen=True, slots=True)
class InterruptRecord:
    """An MSI-X vector was signalled."""

    vector: int
    direction: int = OUTBOUND

    def words(self) -> Words:
        """See :class:`vhca.fabric.capture.CardRecord`."""
        return f"interrupt: vector {self.vector}", {"record": "interrupt", "vector": self.vector}


@dataclass(frozen=True, slots=True)
class ToldRecord:
    """What the program said that it does."""

    told: Told

    @property
    def direction(self) -> int:
        """Work requests come from the host, entries go there."""
        return INBOUND if self.told.what in ("send", "receive") else OUTBOUND

    def words(self) -> Words:
        """See :class:`vhca.fabric.capture.CardRecord`."""
        told = self.told
        if told.what == "send":
            return _send(told)
        if told.what == "receive":
            return _receive(told)
        return _completion(told) if told.what == "completion" else _event(told)


def _send(told: Told) -> Words:
    opcode = _name(WqeOpcode, told.code)
    qpn = _number(told.queue)
    fields: Fields = {"record": "send", "qpn": qpn, "index": told.index, "opcode": opcode, "length": told.size}
    if told.why:
        fields["error"] = told.why
    end = f"refused: {told.why}" if told.why else f"{told.size} bytes"
    return f"WQE {told.index} of QP {qpn}: {opcode}, {end}", fields


def _receive(told: Told) -> Words:
    kind = "srqn" if told.shared else "qpn"
    number = _number(told.queue)
    fields: Fields = {"record": "receive", kind: number, "index": told.index, "length": told.size}
    owner = "SRQ" if told.shared else "QP"
    return f"receive WQE {told.index} of {owner} {number}: room for {told.size} bytes", fields


def _completion(told: Told) -> Words:
    entry = told.data
    view = Cqe64.from_bytes(entry)
    opcode = _name(CqeOpcode, view.opcode)
    fields: Fields = {
        "record": "completion", "cqn": _number(told.queue), "index": told.index, "opcode": opcode,
        "qpn": _number(view.qpn), "wqe_counter": view.wqe_counter,
    }  # fmt: skip
    what = f"CQE of CQ {fields['cqn']}: {opcode}, QP {fields['qpn']}, WQE {view.wqe_counter}"
    if view.opcode in (CqeOpcode.REQ, CqeOpcode.REQ_ERR):
        fields["send_wqe_opcode"] = _name(WqeOpcode, view.send_wqe_opcode)
        what += f", {fields['send_wqe_opcode']}"
    if view.opcode in _ERRORS:
        error = ErrCqe64.from_bytes(entry)
        fields["syndrome"] = _name(CqeSyndrome, error.syndrome)
        fields["vendor_error_syndrome"] = error.vendor_error_syndrome
        return f"{what}, {fields['syndrome']}", fields
    if view.inline_format == CqeFormat.COMPRESSED:
        fields["completions"] = view.byte_cnt
        return f"{what}, first of {view.byte_cnt}", fields
    fields["byte_cnt"] = view.byte_cnt
    if view.opcode == CqeOpcode.REQ:
        return what, fields
    fields["solicited"] = bool(view.se)
    return f"{what}, {view.byte_cnt} bytes", fields


def _event(told: Told) -> Words:
    view = Eqe.from_bytes(told.data)
    kind = _name(EventType, view.event_type)
    fields: Fields = {"record": "event", "eqn": told.queue, "index": told.index, "type": kind}
    if view.event_sub_type:
        fields["sub_type"] = view.event_sub_type
    found: Fields = {}
    try:
        layout = DATA_LAYOUTS.get(EventType(view.event_type))
    except ValueError:
        layout = None
    if layout is not None:
        found |= _shown(layout, view.event_data)
    about = _line(found)
    return f"EQE of EQ {told.queue}: {kind}{', ' if about else ''}{about}", fields | found
