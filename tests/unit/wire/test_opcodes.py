import pytest

from vhca.wire import opcodes
from vhca.wire.packet import RC, SEND, UC, UD, WRITE, XRC


@pytest.mark.parametrize(
    ("code", "name", "size"),
    [
        (0x00, "RC_SEND_FIRST", 0),
        (0x05, "RC_SEND_ONLY_WITH_IMMEDIATE", 4),
        (0x06, "RC_RDMA_WRITE_FIRST", 16),
        (0x0B, "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", 20),
        (0x0C, "RC_RDMA_READ_REQUEST", 16),
        (0x0E, "RC_RDMA_READ_RESPONSE_MIDDLE", 0),
        (0x0F, "RC_RDMA_READ_RESPONSE_LAST", 4),
        (0x11, "RC_ACKNOWLEDGE", 4),
        (0x12, "RC_ATOMIC_ACKNOWLEDGE", 12),
        (0x13, "RC_COMPARE_SWAP", 28),
        (0x17, "RC_SEND_ONLY_WITH_INVALIDATE", 4),
        (0x2A, "UC_RDMA_WRITE_ONLY", 16),
        (0x64, "UD_SEND_ONLY", 8),
        (0x65, "UD_SEND_ONLY_WITH_IMMEDIATE", 12),
        (0xA1, "XRC_SEND_MIDDLE", 4),
        (0xAB, "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", 24),
        (0xB1, "XRC_ACKNOWLEDGE", 4),
    ],
)
def test_rows_of_the_book(code: int, name: str, size: int) -> None:
    row = opcodes.decode_opcode(code)
    assert row is not None
    assert (row.name, row.headers_size_bytes) == (name, size)


def test_every_row_translates_back() -> None:
    rows = [row for row in opcodes.OPCODES if row is not None]
    assert len(rows) == 23 + 12 + 2 + 23 + 23
    for row in rows:
        assert opcodes.encode_opcode(row.service, row.op, row.start, row.end, row.immediate, row.invalidate) == row.code


def test_reserved_values_have_no_row() -> None:
    for code in (0x15, 0x18, 0x1F, 0x2C, 0x40, 0x60, 0x66, 0x81, 0xB5, 0xFF):
        assert opcodes.decode_opcode(code) is None
        assert opcodes.opcode_name(code) == f"OPCODE_{code:#04x}"
    assert opcodes.opcode_name(0x04) == "RC_SEND_ONLY"


def test_impossible_meanings_are_refused() -> None:
    assert opcodes.lookup(UD, SEND, True, False) is None
    with pytest.raises(ValueError, match="no opcode"):
        opcodes.encode_opcode(UD, WRITE, True, True)
    with pytest.raises(ValueError, match="no opcode"):
        opcodes.encode_opcode(UC, SEND, True, True, invalidate=True)
    with pytest.raises(ValueError, match="no opcode"):
        opcodes.encode_opcode(RC, SEND, True, False, immediate=True)
    assert opcodes.encode_opcode(XRC, SEND, True, True, invalidate=True) == 0xB7
