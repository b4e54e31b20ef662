"""Sequence numbers, segmentation, WQE decoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware.model.lists import FEW_ENTRIES
from firmware.model.psn import distance, extend
from firmware.model.qp import ST_RC, ST_UD, ReadJob, Resource, Responder
from firmware.model.segment import packet_count, well_formed
from firmware.transport.port import gid_at, is_own_lid, pkey_at
from firmware.transport.replies import SPARE_REPLIES, _still_sends, too_many
from firmware.transport.retry import RNR_DELAY_NS
from firmware.transport.wqe import WqeError, parse
from tests.support.ports import port_with
from vhca.management.partitions import pkeys_match
from vhca.wire.connectx.wqe import CtrlSegment, DataSegment, RaddrSegment, WqeOpcode
from vhca.wire.packet import ACKNOWLEDGE, READ_REQUEST, Packet, Route


@given(st.integers(0, 1 << 30), st.integers(-(1 << 23), (1 << 23) - 1))
def test_extend_undoes_the_cut_to_24_bits(reference: int, step: int) -> None:
    assert extend(reference + step & 0xFFFFFF, reference) == reference + step
    assert distance(reference + step, reference) == step


@pytest.mark.parametrize(("length", "count"), [(0, 1), (1, 1), (1024, 1), (1025, 2), (1 << 31, 1 << 21)])
def test_packet_count(length: int, count: int) -> None:
    assert packet_count(length, 10) == count


@pytest.mark.parametrize(
    ("size", "count", "start", "end", "good"),
    [
        (0, 1, True, True, True),
        (1024, 1, True, True, True),
        (1025, 1, True, True, False),
        (0, 1, False, True, False),
        (1024, 1, True, False, True),
        (1023, 1, True, False, False),
        (1025, 2, True, True, True),
        (1024, 2, True, True, False),
        (2048, 2, False, False, True),
        (2047, 2, False, False, False),
        (0, 0, False, False, False),
        (0, 1, True, False, False),
        (2048, 2, True, True, True),
        (2049, 2, True, True, False),
        (1, 1, False, True, True),
        (0, 0, True, True, False),
    ],
)
def test_well_formed(size: int, count: int, start: bool, end: bool, good: bool) -> None:
    packet = Packet(Route(1, 2), 0, 1, 3, 0, bytes(size), count, start, end, 1024)
    assert well_formed(packet, 1024) is good


@pytest.mark.parametrize(
    ("count", "end", "good"), [(1, True, True), (1, False, True), (2, True, False), (2, False, False)]
)
def test_packets_of_a_burst_have_the_mtu_of_the_path(count: int, end: bool, good: bool) -> None:
    packet = Packet(Route(1, 2), 0, 1, 3, 0, bytes(1024 * count), count, True, end, 512)
    assert well_formed(packet, 1024) is good


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [
        (0xFFFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),
        (0x7FFF, 0x7FFF, False),
        (0x8001, 0x8002, False),
        (0x8000, 0x8000, False),
    ],
)
def test_pkeys(one: int, other: int, match: bool) -> None:
    assert pkeys_match(one, other) is match


@pytest.mark.parametrize(
    ("base", "lmc", "lid", "own"),
    [(8, 2, 7, False), (8, 2, 8, True), (8, 2, 11, True), (8, 2, 12, False), (1, 0, 1, True), (1, 1, 2, True),
     (0, 0, 0, False), (0, 3, 0, False), (0, 3, 1, False)],
)  # fmt: skip
def test_a_port_without_a_lid_has_none_of_those_behind_it_either(base: int, lmc: int, lid: int, own: bool) -> None:
    assert is_own_lid(port_with(base, lmc), lid) is own


@pytest.mark.parametrize(("index", "pkey", "gid"), [(0, 0xFFFF, b"a" * 16), (1, 0x8001, b"b" * 16), (2, 0, bytes(16))])
def test_behind_its_end_a_table_has_empty_entries(index: int, pkey: int, gid: bytes) -> None:
    port = port_with(1, pkeys=[0xFFFF, 0x8001], gids=[b"a" * 16, b"b" * 16])
    assert (pkey_at(port, index), gid_at(port, index)) == (pkey, gid)


def test_rnr_timer_codes() -> None:
    assert len(RNR_DELAY_NS) == 32
    assert (RNR_DELAY_NS[0], RNR_DELAY_NS[1], RNR_DELAY_NS[31]) == (655_360_000, 10_000, 491_520_000)
    assert list(RNR_DELAY_NS[1:]) == sorted(RNR_DELAY_NS[1:])


def wqe(*segments: bytes, opcode: int = WqeOpcode.RDMA_WRITE, **fields: int) -> bytes:
    body = b"".join(segments)
    ctrl = CtrlSegment(**{"opcode": opcode, "qpn": 7, "ds": 1 + len(body) // 16, "wqe_index": 3, **fields})
    raw = ctrl.to_bytes() + body
    return raw + bytes(-len(raw) % 64)


def test_write_wqe() -> None:
    raw = wqe(RaddrSegment(raddr=0x1234, rkey=0x55).to_bytes(), DataSegment(byte_count=9, lkey=6, addr=0x77).to_bytes())
    decoded = parse(raw, 0x10003, 7, ST_RC)
    assert (decoded.va, decoded.rkey, decoded.sges, decoded.length, decoded.blocks) == (
        0x1234,
        0x55,
        [(0x77, 9, 6)],
        9,
        1,
    )


def test_byte_count_zero_means_two_gib() -> None:
    assert parse(wqe(DataSegment().to_bytes(), opcode=WqeOpcode.SEND), 3, 7, ST_RC).length == 1 << 31


def test_inline_data_may_stand_next_to_pointers() -> None:
    inline = (1 << 31 | 4).to_bytes(4, "big") + b"abcd" + bytes(8)
    decoded = parse(
        wqe(inline, DataSegment(byte_count=9, lkey=6, addr=0x77).to_bytes(), opcode=WqeOpcode.SEND), 3, 7, ST_RC
    )
    assert (decoded.pieces, decoded.inline, decoded.length) == ([b"abcd", (0x77, 9, 6)], None, 13)


@pytest.mark.parametrize("size", [0, 1, 12, 28, 44])
def test_inline_data_may_fill_the_work_request(size: int) -> None:
    content = bytes(range(1, size + 1))
    body = (1 << 31 | size).to_bytes(4, "big") + content
    decoded = parse(wqe(body + bytes(-len(body) % 16), opcode=WqeOpcode.SEND), 3, 7, ST_RC)
    assert (decoded.inline, decoded.pieces, decoded.sges, decoded.length) == (content, None, [], size)


def test_pointers_alone_are_a_list() -> None:
    body = b"".join(DataSegment(byte_count=9, lkey=6, addr=at).to_bytes() for at in (0x77, 0x99))
    decoded = parse(wqe(body, opcode=WqeOpcode.SEND), 3, 7, ST_RC)
    assert (decoded.inline, decoded.pieces, decoded.sges) == (None, None, [(0x77, 9, 6), (0x99, 9, 6)])


@pytest.mark.parametrize("text", [b"text number %d", b"11 bytes, %d", b"12 bytes,  %d"])
@pytest.mark.parametrize(("texts", "pointers"), [(1, 3), (1, 4), (2, 3), (3, 3), (4, 1)])
def test_a_long_mix_of_inline_data_and_pointers_stays_packed(texts: int, pointers: int, text: bytes) -> None:
    # One of 12 bytes fills its unit to the end.
    parts: list[bytes | tuple[int, int, int]] = [text % number for number in range(texts)]
    parts += [(0x1000 + number, 8 + number, 9) for number in range(pointers)]
    parts = parts[1::2] + parts[::2]
    body = b""
    for part in parts:
        if isinstance(part, bytes):
            body += (0x80000000 | len(part)).to_bytes(4, "big") + part
            body += bytes(-len(body) % 16)
        else:
            body += DataSegment(addr=part[0], byte_count=part[1], lkey=part[2]).to_bytes()
    decoded = parse(wqe(body, opcode=WqeOpcode.SEND), 3, 7, ST_RC)
    assert decoded.pieces is not None
    assert list(decoded.pieces) == parts
    assert list(decoded.sges) == [part for part in parts if not isinstance(part, bytes)]
    assert isinstance(decoded.pieces, list) is (texts + pointers <= FEW_ENTRIES)


@pytest.mark.parametrize(
    "raw",
    [
        wqe(qpn=8),
        wqe(wqe_index=4),
        wqe(ds=0),
        wqe(ds=5),
        wqe(opcode=0x18),
        wqe(),
        wqe(bytes(16), opcode=WqeOpcode.ATOMIC_CS),
        wqe(bytes(32), opcode=WqeOpcode.ATOMIC_CS),
        wqe(bytes(16), (1 << 31 | 4).to_bytes(4, "big") + bytes(12), opcode=WqeOpcode.RDMA_READ),
        wqe((1 << 31 | 13).to_bytes(4, "big") + bytes(12), opcode=WqeOpcode.SEND),
    ],
)
def test_malformed_wqes_are_refused_with_a_reason(raw: bytes) -> None:
    with pytest.raises(WqeError, match=r"\w+"):
        parse(raw, 3, 7, ST_RC)


def test_datagram_needs_its_address_vector() -> None:
    with pytest.raises(WqeError, match="address vector"):
        parse(wqe(bytes(32), opcode=WqeOpcode.SEND), 3, 7, ST_UD)


def test_so_many_answers_wait_for_each_resource_and_some_beside_them() -> None:
    responder = Responder(resource_limit=4)
    acknowledgement = Packet(Route(1, 2), 0, ACKNOWLEDGE, 0, 0)
    responder.replies.extend([acknowledgement] * (4 * 4 + SPARE_REPLIES - 1))
    assert not too_many(responder)
    responder.replies.append(acknowledgement)
    assert too_many(responder)


@pytest.mark.parametrize(
    ("sent", "first", "size", "covered"),
    [(0, 0, 4096, True), (0, 1024, 3072, True), (1024, 1024, 3072, True), (1024, 1024, 1024, True),
     (2048, 1024, 3072, False), (0, 1024, 4096, False), (0, 3072, 1025, False)],
)  # fmt: skip
def test_what_is_not_sent_yet_covers_a_repeated_read(sent: int, first: int, size: int, covered: bool) -> None:
    job = ReadJob(Resource(0, READ_REQUEST, 0, 0, 0), 0, 0x10000, 4096, 1)
    job.offset = sent
    again = Packet(Route(1, 2), 0, READ_REQUEST, 0, 0, va=0x10000 + first, dma_length=size)
    assert _still_sends(job, again) is covered
