import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire.strategies import bursts, packets
from vhca.wire import ib
from vhca.wire.ib import MalformedPacket, cut, decode, encode, split
from vhca.wire.packet import ACKNOWLEDGE, RC, READ_RESPONSE, SEND, UC, UD, WRITE, XRC, Grh, Packet, Route


@given(packets())
def test_decode_undoes_encode(packet: Packet) -> None:
    raw = encode(packet)
    assert len(raw) == ib.wire_size_bytes(packet)
    assert decode(raw) == packet


@given(st.binary(max_size=120))
def test_any_bytes_decode_or_are_malformed(raw: bytes) -> None:
    with contextlib.suppress(MalformedPacket):
        decode(raw)


@given(packets(), st.data())
def test_flipped_bits_are_noticed_or_malformed(packet: Packet, data: st.DataObject) -> None:
    packet.good = True
    raw = bytearray(encode(packet))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit >> 3] ^= 1 << (bit & 7)
    with contextlib.suppress(MalformedPacket):
        assert not decode(raw).good


def test_headers_where_the_book_puts_them() -> None:
    raw = encode(
        Packet(
            route=Route(0x1234, 0x5678, sl=3, vl=2),
            service=UD,
            op=SEND,
            dest_qp=1,
            psn=7,
            payload=b"abc",
            pkey=0x8001,
            solicited=True,
            qkey=0x80010000,
            src_qp=1,
        )
    )
    assert raw[:8].hex() == "2032123400095678"
    assert raw[8:20].hex() == "64d080010000000100000007"
    assert raw[20:28].hex() == "8001000000000001"
    assert raw[28:32] == b"abc\0"


def test_grh_lengths() -> None:
    raw = encode(Packet(Route(1, 2, grh=Grh(bytes(15) + b"\1", bytes(15) + b"\2", 1, 2, 3)), RC, ACKNOWLEDGE, 3, 4))
    assert raw[1] & 3 == 3
    assert int.from_bytes(raw[2 + 2 : 6], "big") == (len(raw) - 2) // 4
    assert raw[8:16].hex() == "6010000200141b03"


def broken(raw: bytes, offset: int, value: int) -> bytes:
    return raw[:offset] + bytes([value]) + raw[offset + 1 :]


def test_malformed_headers_are_named() -> None:
    raw = encode(Packet(Route(1, 2), RC, ACKNOWLEDGE, 3, 4))
    routed = encode(Packet(Route(1, 2, grh=Grh(bytes(16), bytes(16))), RC, ACKNOWLEDGE, 3, 4))
    cases = {
        "shorter": raw[:20],
        "link version": broken(raw, 0, 1),
        "PktLen": broken(raw, 5, 8),
        "link next header": broken(raw, 1, 1),
        "reserved": broken(raw, 8, 0x1F),
        "transport version": broken(raw, 9, 0x41),
        "cut short": broken(raw, 9, 0x70),
        "payload": broken(encode(Packet(Route(1, 2), RC, SEND, 3, 4, b"x" * 8)), 8, 0x11),
        "GRH version": broken(routed, 8, 0x40),
        "GRH next header": broken(routed, 14, 6),
        "GRH.PayLen": broken(routed, 13, 6),
        "room for a GRH": broken(raw, 1, 3),
    }
    for text, data in cases.items():
        with pytest.raises(MalformedPacket, match=text):
            decode(data)


def test_encode_refuses_what_no_wire_carries() -> None:
    good = Packet(Route(1, 2), RC, SEND, 3, 4, b"x")
    for bad, text in (
        (replace(good, count=2), "burst"),
        (replace(good, payload=bytes(4097)), "cannot carry"),
        (replace(good, op=ACKNOWLEDGE), "cannot carry"),
        (replace(good, service=UD, end=False), "no opcode"),
    ):
        with pytest.raises(ValueError, match=text):
            encode(bad)


@given(bursts())
def test_split_keeps_data_psns_and_size(burst: Packet) -> None:
    parts = split(burst)
    assert len(parts) == burst.count
    assert b"".join(p.payload for p in parts) == burst.payload
    assert [p.psn for p in parts] == [(burst.psn + i) & 0xFFFFFF for i in range(burst.count)]
    assert [p.start for p in parts] == [burst.start] + [False] * (burst.count - 1)
    assert [p.end for p in parts] == [False] * (burst.count - 1) + [burst.end]
    wire = [encode(p) for p in parts]
    assert sum(map(len, wire)) == ib.wire_size_bytes(burst)
    if burst.count > 1:
        for raw, part in zip(wire, parts, strict=True):
            assert replace(decode(raw), mtu=part.mtu) == part


def test_split_names_of_a_write() -> None:
    burst = Packet(
        Route(1, 2),
        RC,
        WRITE,
        3,
        0xFFFFFE,
        bytes(600),
        3,
        mtu=256,
        va=9,
        rkey=8,
        dma_length=600,
        immediate=5,
        ack_req=True,
    )
    names = [(ib.opcode_of(p).name, p.ack_req, p.va, p.psn) for p in split(burst)]
    assert names == [
        ("RC_RDMA_WRITE_FIRST", False, 9, 0xFFFFFE),
        ("RC_RDMA_WRITE_MIDDLE", False, 0, 0xFFFFFF),
        ("RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", True, 0, 0),
    ]


def test_read_response_has_aeth_first_and_last() -> None:
    burst = Packet(Route(1, 2), RC, READ_RESPONSE, 3, 4, bytes(1024), 4, mtu=256, syndrome=0x1F, msn=6)
    assert [(p.syndrome, p.msn) for p in split(burst)] == [(0x1F, 6), (0, 0), (0, 0), (0x1F, 6)]


@given(bursts(), st.integers(0, 4))
def test_cut_is_the_tail_of_split(burst: Packet, n: int) -> None:
    if n >= burst.count:
        if n:
            with pytest.raises(ValueError, match="cannot drop"):
                cut(burst, n)
        return
    rest = cut(burst, n)
    assert (rest.va, rest.dma_length) == (burst.va, burst.dma_length)
    expected = split(burst)[n:]
    if n and rest.count == 1:
        assert encode(rest) == encode(expected[0])
    else:
        assert split(rest) == expected


def test_services_without_burst_forms() -> None:
    assert ib.mtu_for(0) == 256
    assert ib.mtu_for(4096) == 4096
    with pytest.raises(ValueError, match="any MTU"):
        ib.mtu_for(4097)
    assert split(Packet(Route(1, 2), UC, SEND, 3, 4))[0].count == 1
    assert ib.wire_size_bytes(Packet(Route(1, 2), XRC, SEND, 3, 4, bytes(768), 3, mtu=256)) == 3 * 30 + 768
    assert ib.wire_size_bytes(Packet(Route(1, 2), UD, WRITE, 3, 4)) == 26
    assert ib.transport_size_bytes(Packet(Route(1, 2), UD, SEND, 3, 4, b"x")) == 28
