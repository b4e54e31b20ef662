"""Bursts leave the process as the packets that they stand for, and come back as bursts."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packets import changed
from tests.unit.wire.strategies import bursts
from vhca.wire.burst import decode_burst, encode_burst, join
from vhca.wire.ib import MalformedPacket, decode, encode, split
from vhca.wire.packet import RC, SEND, WRITE, Packet, Route


@given(bursts())
def test_what_comes_back_stands_for_the_same_packets(burst: Packet) -> None:
    burst = replace(burst, good=True)
    back = decode_burst(encode_burst(burst))
    assert (back.count, back.payload, back.psn) == (burst.count, burst.payload, burst.psn)
    assert [decode(encode(part)) for part in split(back)] == [decode(encode(part)) for part in split(burst)]


@given(bursts(), st.data())
def test_a_burst_with_a_flipped_bit_is_corrupt_or_malformed(burst: Packet, data: st.DataObject) -> None:
    raw = bytearray(encode_burst(replace(burst, good=True)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit >> 3] ^= 1 << (bit & 7)
    with contextlib.suppress(MalformedPacket):
        assert not decode_burst(raw).good


@given(st.binary(max_size=200))
def test_any_bytes_are_a_burst_or_malformed(raw: bytes) -> None:
    with contextlib.suppress(MalformedPacket):
        decode_burst(raw)


def parts() -> list[Packet]:
    """Three packets of a message."""
    return [decode(encode(part)) for part in split(Packet(Route(1, 2), RC, WRITE, 3, 0xFFFFFE, bytes(600), 3, mtu=256))]


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, {"psn": 5}),
        (1, {"dlid": 7}),
        (1, {"op": SEND}),
        (1, {"start": True}),
        (1, {"end": True}),
        (1, {"ack_req": True}),
        (1, {"payload": bytes(255)}),
        (2, {"payload": bytes(257)}),
        (2, {"dest_qp": 9}),
        (0, {"end": True}),
    ],
)
def test_packets_that_do_not_belong_together_are_no_burst(number: int, change: dict[str, object]) -> None:
    packets = parts()
    assert join(packets).count == 3
    packets[number] = changed(packets[number], **change)
    with pytest.raises(MalformedPacket, match=f"packet {max(number, 1) if 'end' not in change else number}"):
        join(packets)


def test_a_burst_has_packets_of_a_legal_size() -> None:
    packets = [replace(packet, payload=bytes(100)) for packet in parts()]
    with pytest.raises(MalformedPacket, match="no MTU"):
        join(packets)
    with pytest.raises(MalformedPacket, match="without a packet"):
        join([])
