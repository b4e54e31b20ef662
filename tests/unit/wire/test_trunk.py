"""Bursts leave the process as frames and come back as they were; any other bytes are no frame."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packets import changed
from tests.unit.wire.strategies import bursts, packets
from vhca.layout import Layout
from vhca.wire import trunk
from vhca.wire.ib import decode, encode, split
from vhca.wire.packet import RC, SEND, WRITE, Grh, Packet, Route
from vhca.wire.trunk import (
    MAX_FRAME_BYTES,
    MAX_PACKETS,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameKind,
    MalformedFrame,
    TrunkBurst,
    TrunkCredit,
    TrunkHello,
    TrunkState,
    decode_credit,
    decode_frame,
    decode_hello,
    decode_packet,
    decode_state,
    encode_frame,
    encode_packet,
)

BURST = Packet(Route(1, 2), RC, WRITE, 3, 0xFFFFFE, bytes(600), 3, mtu=256)


@given(bursts())
def test_a_burst_comes_back_as_it_was(burst: Packet) -> None:
    burst = replace(burst, good=True)
    back = decode_packet(encode_packet(burst))
    # Of a message that goes on, what is at its end is told with its end.
    assert back == (burst if burst.end else replace(burst, immediate=None, invalidate_rkey=None))
    assert [decode(encode(part)) for part in split(back)] == [decode(encode(part)) for part in split(burst)]


@given(packets())
def test_a_packet_comes_back_as_it_was(packet: Packet) -> None:
    assert decode_packet(encode_packet(packet)) == packet


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_malformed(raw: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        decode_frame(raw)
    for decode_body in (decode_state, decode_credit, decode_hello, decode_packet):
        with contextlib.suppress(MalformedFrame):
            decode_body(memoryview(raw))


@given(bursts(), st.data())
def test_a_changed_head_is_another_packet_that_a_cable_could_carry_or_malformed(
    burst: Packet, data: st.DataObject
) -> None:
    """And then the changed one comes back as it is, too: each form means one thing."""
    raw = bytearray(encode_packet(burst))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, TrunkBurst.SIZE * 8 - 1))
        raw[bit >> 3] ^= 1 << (bit & 7)
    with contextlib.suppress(MalformedFrame):
        packet = decode_packet(bytes(raw))
        for part in split(packet):
            encode(part)
        assert decode_packet(encode_packet(packet)) == packet


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": 2},
        {"count": 4},
        {"count": MAX_PACKETS + 1},
        {"mtu": 300},
        {"mtu": 512},
        {"op": 15},
        {"service": 0x60},
        {"payload": bytes(512)},
        {"payload": bytes(769)},
        {"payload": b""},
        {"count": 1},
    ],
)
def test_what_no_cable_could_carry_is_malformed(change: dict[str, object]) -> None:
    raw = encode_packet(BURST)
    view = TrunkBurst.from_bytes(raw[: TrunkBurst.SIZE])
    payload = change.pop("payload", BURST.payload)
    assert isinstance(payload, bytes)
    for name, value in change.items():
        setattr(view, name, value)
    view.payload_bytes = len(payload)
    with pytest.raises(MalformedFrame):
        decode_packet(view.to_bytes() + payload)


def test_lengths_must_fit() -> None:
    raw = encode_packet(replace(BURST, route=Route(1, 2, grh=Grh(bytes(16), bytes(16)))))
    assert decode_packet(raw).route.grh is not None
    for bad in (raw[:-1], raw + b"\0", raw[: TrunkBurst.SIZE], raw[:-600], b""):
        with pytest.raises(MalformedFrame):
            decode_packet(bad)


def test_reserved_bits_are_0() -> None:
    raw = bytearray(encode_packet(replace(BURST, route=Route(1, 2, grh=Grh(bytes(16), bytes(16))))))
    for at in (0x0E, TrunkBurst.SIZE):
        changed_raw = bytearray(raw)
        changed_raw[at] |= 0x10
        with pytest.raises(MalformedFrame):
            decode_packet(bytes(changed_raw))
    with pytest.raises(MalformedFrame):
        decode_state(memoryview(b"\0\0\0\2"))


def test_what_is_more_than_a_frame_takes_is_refused_where_it_is_sent() -> None:
    most = Packet(Route(1, 2), RC, WRITE, 3, 0, bytes(MAX_PAYLOAD_BYTES), MAX_PACKETS // 4, mtu=4096)
    frame = encode_frame(FrameKind.BURST, 1, 2, 3, encode_packet(most))
    assert len(frame) <= MAX_FRAME_BYTES
    assert decode_packet(decode_frame(frame).body) == most
    for bad in (
        replace(most, payload=bytes(MAX_PAYLOAD_BYTES + 1)),
        replace(most, count=MAX_PACKETS + 1),
        replace(most, rkey=1 << 32),
        changed(most, dlid=1 << 16),
    ):
        with pytest.raises(ValueError, match=r"more than|\d"):
            encode_packet(bad)


def test_frames_have_heads() -> None:
    frame = encode_frame(FrameKind.CREDIT, 7, 8, 9, TrunkCredit(frames=1, bytes=2).to_bytes())
    assert decode_frame(frame) == Frame(FrameKind.CREDIT, 7, 8, 9, memoryview(frame)[16:])
    assert decode_credit(decode_frame(frame).body) == (1, 2)
    bodies: list[tuple[Layout, object, object]] = [
        (TrunkState(enabled=1), decode_state, True),
        (
            TrunkHello(digest=b"d" * 32, name=b"a - b".ljust(trunk.NAME_BYTES, b"\0")),
            decode_hello,
            (b"d" * 32, b"a - b"),
        ),
    ]
    for body, decode_body, said in bodies:
        assert decode_body(memoryview(body.to_bytes())) == said  # type: ignore[operator]
        with pytest.raises(MalformedFrame):
            decode_body(memoryview(body.to_bytes()[1:]))  # type: ignore[operator]
    for at, value in ((0, 0), (2, trunk.VERSION + 1), (3, 0), (3, 9)):
        bad = bytearray(frame)
        bad[at] = value
        with pytest.raises(MalformedFrame, match=r"version|kind"):
            decode_frame(bytes(bad))
    with pytest.raises(MalformedFrame):
        decode_frame(frame[:15])


def test_one_packet_is_no_larger_than_a_packet() -> None:
    one = Packet(Route(1, 2), RC, SEND, 3, 0, bytes(4096), mtu=4096)
    raw = encode_packet(one)
    assert decode_packet(raw) == one
    with pytest.raises(MalformedFrame):
        decode_packet(encode_packet(replace(one, payload=bytes(4097))))
    with pytest.raises(MalformedFrame):
        decode_packet(encode_packet(replace(one, payload=bytes(1025), mtu=1024)))
