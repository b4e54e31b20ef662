import pytest

from vhca.management.refusal import refusal
from vhca.wire import mad as m
from vhca.wire.mad import MadHeader


def datagram(method: int, base_version: int = 1) -> bytes:
    header = MadHeader(base_version=base_version, mgmt_class=0x21, class_version=2, method=method, tid=9, attr_id=0x11)
    return header.to_bytes().ljust(256, b"\x5a")


@pytest.mark.parametrize(
    ("method", "response"),
    [
        (m.METHOD_GET, m.METHOD_GET_RESP),
        (m.METHOD_SET, m.METHOD_GET_RESP),
        (m.METHOD_REPORT, m.METHOD_REPORT_RESP),
        (m.METHOD_GET_TABLE, m.METHOD_GET_TABLE_RESP),
        (m.METHOD_DELETE, m.METHOD_DELETE_RESP),
        (0x3F, 0xBF),
    ],
)
def test_questions_get_their_status(method: int, response: int) -> None:
    asked = datagram(method)
    answer = refusal(asked)
    assert answer is not None
    head = MadHeader.from_bytes(answer[:24])
    assert (head.method, head.status, head.tid, head.mgmt_class, head.attr_id) == (response, 0x0C, 9, 0x21, 0x11)
    assert answer[24:] == asked[24:]


def test_an_unknown_base_version_is_told_as_such() -> None:
    answer = refusal(datagram(m.METHOD_GET, base_version=0x80))
    assert answer is not None
    assert MadHeader.from_bytes(answer[:24]).status == 0x04


@pytest.mark.parametrize("method", [m.METHOD_SEND, m.METHOD_TRAP, m.METHOD_TRAP_REPRESS, 0x81, 0x86, 0xFF])
def test_nobody_waits_for_an_answer_to_these(method: int) -> None:
    assert refusal(datagram(method)) is None
