"""The opcode table of the base transport header: what each of the 256 values means and which headers follow it.

One row per opcode of the services RC, UC, UD and XRC (tables 35 and 38 of volume 1, annex A14 for XRC). The table is
derived from the operations, so that a row cannot disagree with another one. Reliable datagram is not modelled. The
dynamically connected transport (DC) belongs to a vendor who has not published its packets; those here are our own.
"""

from dataclasses import dataclass
from typing import Final

from vhca.wire import headers
from vhca.wire.packet import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    DC,
    FETCH_ADD,
    RC,
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    UC,
    UD,
    WRITE,
    XRC,
)

# Extended headers, as bits of `Opcode.headers`, in wire order from the low bit up.
XRCETH: Final = 1
DETH: Final = 2
RETH: Final = 4
ATOMIC_ETH: Final = 8
AETH: Final = 16
ATOMIC_ACK_ETH: Final = 32
IMMDT: Final = 64
IETH: Final = 128
# Stands in the place of XRCETH and DETH.
DCETH: Final = 256

HEADER_SIZE_BYTES: Final = {
    XRCETH: headers.Xrceth.SIZE,
    DETH: headers.Deth.SIZE,
    RETH: headers.Reth.SIZE,
    ATOMIC_ETH: headers.AtomicEth.SIZE,
    AETH: headers.Aeth.SIZE,
    ATOMIC_ACK_ETH: headers.AtomicAckEth.SIZE,
    IMMDT: headers.ImmDt.SIZE,
    IETH: headers.Ieth.SIZE,
    DCETH: headers.Dceth.SIZE,
}

SERVICE_NAMES: Final = {RC: "RC", UC: "UC", UD: "UD", XRC: "XRC", DC: "DC"}


@dataclass(frozen=True, slots=True)
class Opcode:
    """One row: `code` is the BTH byte, `headers` the OR of header bits, `payload` whether data may follow them."""

    code: int
    name: str
    service: int
    op: int
    start: bool
    end: bool
    immediate: bool
    invalidate: bool
    headers: int
    headers_size_bytes: int
    payload: bool


# Lower five bits of the opcode: (value, operation, start, end, immediate, invalidate, name).
_ROWS: Final = (
    (0x00, SEND, True, False, False, False, "SEND_FIRST"),
    (0x01, SEND, False, False, False, False, "SEND_MIDDLE"),
    (0x02, SEND, False, True, False, False, "SEND_LAST"),
    (0x03, SEND, False, True, True, False, "SEND_LAST_WITH_IMMEDIATE"),
    (0x04, SEND, True, True, False, False, "SEND_ONLY"),
    (0x05, SEND, True, True, True, False, "SEND_ONLY_WITH_IMMEDIATE"),
    (0x06, WRITE, True, False, False, False, "RDMA_WRITE_FIRST"),
    (0x07, WRITE, False, False, False, False, "RDMA_WRITE_MIDDLE"),
    (0x08, WRITE, False, True, False, False, "RDMA_WRITE_LAST"),
    (0x09, WRITE, False, True, True, False, "RDMA_WRITE_LAST_WITH_IMMEDIATE"),
    (0x0A, WRITE, True, True, False, False, "RDMA_WRITE_ONLY"),
    (0x0B, WRITE, True, True, True, False, "RDMA_WRITE_ONLY_WITH_IMMEDIATE"),
    (0x0C, READ_REQUEST, True, True, False, False, "RDMA_READ_REQUEST"),
    (0x0D, READ_RESPONSE, True, False, False, False, "RDMA_READ_RESPONSE_FIRST"),
    (0x0E, READ_RESPONSE, False, False, False, False, "RDMA_READ_RESPONSE_MIDDLE"),
    (0x0F, READ_RESPONSE, False, True, False, False, "RDMA_READ_RESPONSE_LAST"),
    (0x10, READ_RESPONSE, True, True, False, False, "RDMA_READ_RESPONSE_ONLY"),
    (0x11, ACKNOWLEDGE, True, True, False, False, "ACKNOWLEDGE"),
    (0x12, ATOMIC_ACKNOWLEDGE, True, True, False, False, "ATOMIC_ACKNOWLEDGE"),
    (0x13, COMPARE_SWAP, True, True, False, False, "COMPARE_SWAP"),
    (0x14, FETCH_ADD, True, True, False, False, "FETCH_ADD"),
    (0x16, SEND, False, True, False, True, "SEND_LAST_WITH_INVALIDATE"),
    (0x17, SEND, True, True, False, True, "SEND_ONLY_WITH_INVALIDATE"),
)

_RELIABLE: Final = frozenset(row[0] for row in _ROWS)
# Which lower bits exist for each service (9.2.1).
_SERVED: Final = {
    RC: _RELIABLE,
    XRC: _RELIABLE,
    DC: _RELIABLE,
    UC: frozenset(range(0x0C)),
    UD: frozenset((0x04, 0x05)),
}
_RESPONSES: Final = (READ_RESPONSE, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)
_WITHOUT_PAYLOAD: Final = (READ_REQUEST, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, COMPARE_SWAP, FETCH_ADD)


def _headers(service: int, op: int, start: bool, end: bool, immediate: bool, invalidate: bool) -> int:
    bits = 0
    if service == XRC and op not in _RESPONSES:
        bits |= XRCETH
    if service == DC and op not in _RESPONSES:
        bits |= DCETH
    if service == UD:
        bits |= DETH
    if op == READ_REQUEST or (op == WRITE and start):
        bits |= RETH
    if op in (COMPARE_SWAP, FETCH_ADD):
        bits |= ATOMIC_ETH
    if op in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE) or (op == READ_RESPONSE and (start or end)):
        bits |= AETH
    if op == ATOMIC_ACKNOWLEDGE:
        bits |= ATOMIC_ACK_ETH
    if immediate:
        bits |= IMMDT
    if invalidate:
        bits |= IETH
    return bits


def _build() -> tuple[Opcode | None, ...]:
    table: list[Opcode | None] = [None] * 256
    for service, served in _SERVED.items():
        for low, op, start, end, immediate, invalidate, name in _ROWS:
            if low not in served:
                continue
            headers = _headers(service, op, start, end, immediate, invalidate)
            table[service | low] = Opcode(
                code=service | low,
                name=f"{SERVICE_NAMES[service]}_{name}",
                service=service,
                op=op,
                start=start,
                end=end,
                immediate=immediate,
                invalidate=invalidate,
                headers=headers,
                headers_size_bytes=sum(size for bit, size in HEADER_SIZE_BYTES.items() if headers & bit),
                payload=op not in _WITHOUT_PAYLOAD,
            )
    return tuple(table)


OPCODES: Final[tuple[Opcode | None, ...]] = _build()
"""Indexed by the BTH opcode byte; None where the value is reserved or its service is not modelled."""

_BY_MEANING: Final = {
    (row.service, row.op, row.start, row.end, row.immediate, row.invalidate): row for row in OPCODES if row is not None
}


def lookup(
    service: int, op: int, start: bool, end: bool, immediate: bool = False, invalidate: bool = False
) -> Opcode | None:
    """The row for an operation at a place in its message, None if the service has no such packet."""
    return _BY_MEANING.get((service, op, start, end, immediate, invalidate))


def encode_opcode(
    service: int, op: int, start: bool, end: bool, immediate: bool = False, invalidate: bool = False
) -> int:
    """The BTH opcode byte of an operation at a place in its message; ValueError if the service has no such packet."""
    row = _BY_MEANING.get((service, op, start, end, immediate, invalidate))
    if row is None:
        raise ValueError(
            f"no opcode for service {service:#x} op {op} start {start} end {end} imm {immediate} inv {invalidate}"
        )
    return row.code


def decode_opcode(code: int) -> Opcode | None:
    """The row of a BTH opcode byte (0..255), None if it is reserved or its service is not modelled."""
    return OPCODES[code]


def opcode_name(code: int) -> str:
    """Readable name of a BTH opcode byte, for traces."""
    row = OPCODES[code & 0xFF]
    return row.name if row is not None else f"OPCODE_{code & 0xFF:#04x}"
