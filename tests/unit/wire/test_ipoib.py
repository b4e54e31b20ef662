"""IP over InfiniBand: checksums against a plain sum, large sends against what a receiver puts together again."""

from random import Random

import pytest

from tests.support.ip import Ip, ip_packet, plain_checksum
from vhca.wire.ipoib import checked, folded, look, segment, segment_headers, with_checksums

SEEDS = range(30)


@pytest.mark.parametrize("data", [b"", b"\0", bytes(64), b"\xff\xff", b"\xff\xff" * 9, b"\x12", bytes(range(255))])
def test_the_sum_is_the_plain_one(data: bytes) -> None:
    assert folded(data) == 0xFFFF - plain_checksum(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_filled_in_holds(seed: int) -> None:
    random = Random(seed)
    ip = Ip(random)
    packet = ip_packet(random, ip, random.randbytes(random.choice((0, 1, 2, 3, 100, 1001))))
    right = with_checksums(packet, True, True)
    assert right == with_checksums(with_checksums(packet, True, False), False, True)
    assert ip.holds(right)
    assert checked(right) == (True, True)
    at = random.randrange(ip.transport, len(right))
    broken = bytearray(right)
    broken[at] ^= 0x10
    assert checked(bytes(broken)) == (True, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_make_up_the_large_send(seed: int) -> None:
    random = Random(seed)
    ip = Ip(random, protocol=6)
    header = ip_packet(random, ip, b"")
    data = random.randbytes(random.randrange(1, 5000))
    mss = random.randrange(1, 2000)
    assert segment_headers(header) == ""
    got = b""
    count = -(-len(data) // mss)
    first = ip.tcp(header)
    for number in range(count):
        part = data[number * mss : (number + 1) * mss]
        packet = with_checksums(segment(header, number, number * mss, part, number == count - 1), True, True)
        assert ip.holds(packet)
        assert ip.length(packet) == len(packet)
        seen = ip.tcp(packet)
        assert seen.sequence == (first.sequence + len(got)) % (1 << 32)
        assert seen.flags & 0x09 == (first.flags & 0x09 if number == count - 1 else 0)
        assert seen.flags & 0x80 == (first.flags & 0x80 if number == 0 else 0)
        assert seen.flags & 0x76 == first.flags & 0x76
        if ip.version == 4:
            assert ip.identification(packet) == (ip.identification(header) + number) % (1 << 16)
        got += packet[len(header) :]
    assert got == data


def test_what_is_not_ip_stays_as_it_is() -> None:
    arp = bytes.fromhex("08060000") + bytes(48)
    assert with_checksums(arp, True, True) == arp
    assert checked(arp) == (False, False)


def test_a_packet_whose_length_is_another_is_not_looked_into() -> None:
    random = Random(1)
    packet = with_checksums(ip_packet(random, Ip(random, version=4), b"data"), True, True)
    assert look(packet, len(packet)) is not None
    assert checked(packet + b"\0") == (False, False)
    assert with_checksums(packet + b"\0", True, True) == packet + b"\0"


def test_fragments_have_no_transport_checksum() -> None:
    random = Random(2)
    packet = bytearray(ip_packet(random, Ip(random, version=4, protocol=17), b"data"))
    packet[4 + 6] |= 0x20
    right = with_checksums(bytes(packet), True, True)
    assert checked(right) == (True, False)
    assert right[4 + 20 :] == bytes(packet[4 + 20 :])


def test_udp_without_a_checksum_is_not_called_good() -> None:
    random = Random(3)
    ip = Ip(random, version=4, protocol=17)
    packet = bytearray(with_checksums(ip_packet(random, ip, b"data"), True, True))
    packet[ip.transport + 6 : ip.transport + 8] = bytes(2)
    assert checked(bytes(packet)) == (True, False)


def test_a_udp_checksum_is_never_zero() -> None:
    random = Random(4)
    ip = Ip(random, version=4, protocol=17)
    packet = with_checksums(ip_packet(random, ip, bytes(4)), True, True)
    value = int.from_bytes(packet[ip.transport + 6 : ip.transport + 8], "big")
    # With this word of data, the sum is 0xffff and the checksum would be 0.
    packet = packet[:-4] + value.to_bytes(2, "big") + bytes(2)
    right = with_checksums(packet, True, True)
    assert right[ip.transport + 6 : ip.transport + 8] == b"\xff\xff"
    assert checked(right) == (True, True)


def test_a_udp_length_of_its_own_is_not_called_good() -> None:
    random = Random(5)
    ip = Ip(random, version=4, protocol=17)
    packet = bytearray(with_checksums(ip_packet(random, ip, b"data"), True, True))
    packet[ip.transport + 5] -= 1
    assert checked(bytes(packet)) == (True, False)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(4),
        bytes(64),
        ip_packet(Random(6), Ip(Random(6), protocol=17), b""),
        ip_packet(Random(7), Ip(Random(7), version=4, protocol=6), b"")[:-1],
        ip_packet(Random(8), Ip(Random(8), version=6, protocol=6), b"") + b"\0",
        ip_packet(Random(9), Ip(Random(9), version=4, protocol=6), b"x"),
    ],
)
def test_what_cannot_be_cut_is_refused(header: bytes) -> None:
    assert segment_headers(header) != ""
