"""Datagrams of the connection manager as claims read them: bytes at the places that volume 1 gives."""

from __future__ import annotations

from acceptance.claims.cable import Seen
from acceptance.claims.cm import Reply, Request, is_cm, messages
from vhca.wire.packet import SEND, UD, Packet, Route

QP1 = 1


def datagram(attribute: int, said: dict[int, bytes], mgmt_class: int = 7, dest_qp: int = QP1) -> Packet:
    """A MAD with these bytes behind its common header."""
    mad = bytearray(256)
    mad[0:4] = bytes((1, mgmt_class, 2, 3))
    mad[16:18] = attribute.to_bytes(2, "big")
    for place, data in said.items():
        mad[24 + place : 24 + place + len(data)] = data
    return Packet(Route(dlid=2, slid=1), UD, SEND, dest_qp, 0, bytes(mad), src_qp=1)


def test_a_request_and_a_reply_are_read() -> None:
    request = {32: b"\x00\x00\x43\x08", 39: b"\x10", 44: b"\xa8\xe7\x98\x9d", 48: b"\xff\xff\x56"}
    reply = {12: b"\x00\x00\x44\x00", 20: b"\xda\x0c\xb9\x00", 24: b"\x04\x02\x00\x20"}
    passed = [datagram(0x10, request), datagram(0x13, reply), datagram(0x14, {}), datagram(0x10, {}, mgmt_class=4)]
    said = messages([Seen(0.0, number == 1, packet) for number, packet in enumerate(passed)])
    assert [(message.name, message.toward_card) for message in said] == [("REQ", False), ("REP", True), ("RTU", False)]
    asked, answered, ready = (message.said for message in said)
    assert isinstance(asked, Request)
    assert (asked.local_qpn, asked.responder_resources, asked.initiator_depth) == (0x43, 8, 16)
    assert (asked.starting_psn, asked.retry_count, asked.path_mtu, asked.rnr_retry_count) == (0xA8E798, 5, 5, 6)
    assert isinstance(answered, Reply)
    assert (answered.local_qpn, answered.starting_psn) == (0x44, 0xDA0CB9)
    assert (answered.responder_resources, answered.initiator_depth, answered.rnr_retry_count) == (4, 2, 1)
    assert ready is None


def test_other_datagrams_are_none_of_its() -> None:
    assert not is_cm(datagram(0x10, {}, dest_qp=0))
    assert not is_cm(Packet(Route(dlid=2, slid=1), UD, SEND, QP1, 0, b"short", src_qp=1))
