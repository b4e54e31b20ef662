"""Captures are read back by decoders that share no code with vhca: tshark, and scapy for transport headers."""

import os
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.packets import divert
from tests.unit.fabric.bench import Bench
from vhca.fabric import Action, Direction, Fault
from vhca.fabric.capture import INBOUND, LINKTYPE_ERF, LINKTYPE_INFINIBAND, OUTBOUND, Capture, Item
from vhca.fabric.captures import CaptureChoice
from vhca.lab.cache import Cache
from vhca.lab.tshark import frame_trouble, ready_tshark
from vhca.wire import ib
from vhca.wire.icrc import icrc
from vhca.wire.packet import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    RC,
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    UC,
    UD,
    WRITE,
    Grh,
    Packet,
    Route,
)

TSHARK = ready_tshark(Cache())
needs_tshark = pytest.mark.skipif(
    TSHARK is None, reason="no tshark on the host or in the cache (vhca fetch): no independent decoder"
)

GID_A = bytes.fromhex("fe800000000000000000000000000001")
GID_B = bytes.fromhex("fe800000000000000000000000000002")
SAMPLES = [
    Packet(Route(2, 1), RC, SEND, 0x11, 1, b"hello", ack_req=True),
    Packet(Route(2, 1), RC, SEND, 0x11, 2, b"x" * 600, 3, mtu=256, immediate=0xDEAD),
    Packet(Route(2, 1), RC, WRITE, 0x11, 5, b"y" * 512, 2, mtu=256, va=0x1122334455667788, rkey=0x99, dma_length=512),
    Packet(
        Route(2, 1, grh=Grh(GID_A, GID_B)), RC, WRITE, 0x11, 7, b"z" * 3, immediate=7, va=0x1000, rkey=5, dma_length=3
    ),
    Packet(Route(2, 1), RC, READ_REQUEST, 0x11, 8, va=0x2000, rkey=6, dma_length=700),
    Packet(Route(1, 2), RC, READ_RESPONSE, 0x12, 8, b"r" * 700, 3, mtu=256, syndrome=0x1F, msn=4),
    Packet(Route(1, 2), RC, ACKNOWLEDGE, 0x12, 12, syndrome=0x60, msn=5),
    Packet(Route(2, 1), RC, COMPARE_SWAP, 0x11, 13, va=0x3000, rkey=7, swap_add=8, compare=9),
    Packet(Route(2, 1), RC, FETCH_ADD, 0x11, 14, va=0x3000, rkey=7, swap_add=1),
    Packet(Route(1, 2), RC, ATOMIC_ACKNOWLEDGE, 0x12, 13, syndrome=0x1F, msn=6, original=10),
    Packet(Route(2, 1), UC, WRITE, 0x21, 1, b"u" * 4096, mtu=4096, va=1, rkey=2, dma_length=4096),
    Packet(Route(2, 1, grh=Grh(GID_A, GID_B, 1, 2, 3)), UD, SEND, 0x31, 1, b"datagram", qkey=0x1234, src_qp=0x32),
    Packet(Route(2, 1), UD, SEND, 0x31, 1, b"datagram", qkey=0x1234, src_qp=0x32, immediate=3),
]


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    out, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        assert size % 4 == 0
        assert struct.unpack_from("<I", data, at + size - 4)[0] == size
        out.append((kind, data[at + 8 : at + size - 4]))
        at += size
    return out


def fields(path: Path, *names: str) -> list[dict[str, str]]:
    """The named fields of each frame, and whether it is malformed. One run: tshark takes a second to start."""
    assert TSHARK is not None
    rows = TSHARK.fields(path, *names, "_ws.malformed")
    assert frame_trouble(rows) == []
    return rows


def numbers(rows: list[dict[str, str]], *names: str) -> list[tuple[int, ...]]:
    """The rows that have the first of these fields, as numbers."""
    return [tuple(int(row[name], 0) for name in names) for row in rows if row[names[0]]]


@pytest.fixture
def sample_capture(tmp_path: Path) -> Path:
    path = tmp_path / "samples.pcapng"
    capture = Capture.to_file(path, lambda: 1_700_000_000_123_456_789)
    one, two = capture.interface("hca0"), capture.interface("hca1")
    for number, packet in enumerate(SAMPLES):
        capture.record(one if number % 2 else two, packet, OUTBOUND if number % 2 else INBOUND, "note")
    capture.close()
    capture.close()
    assert capture.wait()
    capture.record(one, SAMPLES[0], INBOUND)
    return path


def test_file_structure(sample_capture: Path) -> None:
    found = blocks(sample_capture.read_bytes())
    assert [kind for kind, _ in found[:3]] == [0x0A0D0D0A, 1, 1]
    assert struct.unpack_from("<H", found[1][1])[0] == LINKTYPE_ERF
    parts = [part for packet in SAMPLES for part in ib.split(packet)]
    frames = [body for kind, body in found if kind == 6]
    assert len(frames) == len(parts)
    for body, part in zip(frames, parts, strict=True):
        interface, high, low, captured, size = struct.unpack_from("<IIIII", body)
        assert captured == size
        assert high << 32 | low == 1_700_000_000_123_456_789
        raw = ib.encode(part)
        assert body[36 : 20 + size] == raw
        stamp, kind, _, record_size, _, wire_size = struct.unpack(">8sBBHHH", body[20:36])
        assert (kind, record_size, wire_size) == (21, len(raw) + 16, len(raw))
        assert stamp[4:] == (1_700_000_000).to_bytes(4, "little")
        flags = body[20 + size + (-size & 3) :]
        assert struct.unpack_from("<HHI", flags) == (2, 4, 2 if interface == 0 else 1)


def test_a_new_capture_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        capture = Capture.to_file(tmp_path / "new.pcapng", lambda: 0)
        capture.close()
        assert capture.wait()
    finally:
        os.umask(before)
    assert (tmp_path / "new.pcapng").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_ends_the_capture_alone(caplog: pytest.LogCaptureFixture) -> None:
    capture = Capture.to_file("/dev/full", lambda: 0)
    interface = capture.interface("h0")
    for _ in range(1000):
        for packet in SAMPLES:
            capture.record(interface, packet, INBOUND)
    capture.flush()
    capture.close()
    assert capture.wait()
    assert [record.message for record in caplog.records] == ["the capture /dev/full ends here: No space left on device"]


def test_packets_that_no_wire_carries_take_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    capture = Capture.to_file(tmp_path / "c.pcapng", lambda: 0)
    for number in range(100):
        capture.record(capture.interface("h0"), Packet(Route(1 << 20, 1), RC, SEND, number, 1, b"x"), INBOUND)
    capture.close()
    assert capture.wait()
    assert capture.unencodable == 100
    assert len(caplog.records) == 1


def test_bare_link_type(tmp_path: Path) -> None:
    capture = Capture.to_file(tmp_path / "bare.pcapng", lambda: 0, LINKTYPE_INFINIBAND)
    interface = capture.interface("hca0")
    capture.record(interface, SAMPLES[0], OUTBOUND)
    capture.record(interface, Packet(Route(2, 1), UD, WRITE, 0x11, 1), OUTBOUND)
    capture.record(interface, Packet(Route(2, 1), RC, SEND, 0x11, 1 << 40), OUTBOUND)
    assert (capture.packets, capture.unencodable) == (1, 2)
    capture.close()
    assert capture.wait()
    (_, described), (_, frame), (kind, _) = blocks((tmp_path / "bare.pcapng").read_bytes())[1:]
    assert kind == 5
    assert struct.unpack_from("<H", described)[0] == 247
    raw = ib.encode(SAMPLES[0])
    assert frame[20 : 20 + len(raw)] == raw


@needs_tshark
def test_tshark_reads_every_header(sample_capture: Path) -> None:
    parts = [part for packet in SAMPLES for part in ib.split(packet)]
    lrh_bth = [f"infiniband.{name}" for name in ("lrh.slid", "lrh.dlid", "bth.opcode", "bth.destqp", "bth.psn")]
    # tshark shows address and key of atomics in the same fields, so the length tells a RETH.
    reth = ["infiniband.reth.dmalen", "infiniband.reth.va", "infiniband.reth.r_key"]
    aeth = ["infiniband.aeth.syndrome", "infiniband.aeth.msn"]
    deth = ["infiniband.deth.q_key", "infiniband.deth.srcqp"]
    grh = ["infiniband.grh.sgid", "infiniband.grh.dgid"]
    crcs = ["infiniband.invariant.crc", "infiniband.variant.crc"]
    names = [*lrh_bth, "infiniband.bth.padcnt", *reth, *aeth, *deth, *grh, *crcs, "frame.interface_name"]
    rows = fields(sample_capture, *names)
    assert numbers(rows, *lrh_bth, "infiniband.bth.padcnt") == [
        (p.route.slid, p.route.dlid, ib.opcode_of(p).code, p.dest_qp, p.psn, -len(p.payload) & 3) for p in parts
    ]
    assert numbers(rows, *crcs) == [
        (int.from_bytes(raw[-6:-2], "big"), int.from_bytes(raw[-2:], "big")) for raw in map(ib.encode, parts)
    ]
    assert {row["frame.interface_name"] for row in rows} == {"hca0", "hca1"}
    assert numbers(rows, *reth) == [
        (512, 0x1122334455667788, 0x99),
        (3, 0x1000, 5),
        (700, 0x2000, 6),
        (4096, 1, 2),
    ]
    assert numbers(rows, *aeth) == [(0x1F, 4), (0x1F, 4), (0x60, 5), (0x1F, 6)]
    assert numbers(rows, *deth) == [(0x1234, 0x32)] * 2
    assert [tuple(row[name] for name in grh) for row in rows if row[grh[0]]] == [("fe80::1", "fe80::2")] * 2


def test_bursts_are_recorded_in_turns_and_the_cables_are_full_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng")
    written: list[int] = []
    write = Capture.write

    def watched(self: Capture, frames: Item, most: int = 1 << 30) -> int:
        written.append(write(self, frames, most))
        return written[-1]

    monkeypatch.setattr(Capture, "write", watched)
    burst = Packet(Route(b.lid, a.lid), RC, WRITE, 0x40, 1, bytes(256 * 1024), 1024, mtu=256, dma_length=256 * 1024)
    assert not a.port.full
    before = capture.packets
    a.port.send(burst)
    assert (capture.packets - before, written) == (1024, [])
    assert a.port.full
    data, management = (
        Packet(Route(a.lid, b.lid), RC, SEND, 0x40, 1),
        Packet(Route(a.lid, b.lid, vl=15), UD, SEND, 0, 1, bytes(256)),
    )
    assert [a.port.blocked(packet) for packet in (data, management)] == [True, False]
    bench.run()
    assert (capture.packets - before, sum(written)) == (1024, 1024)
    assert max(written) <= 1024 // 32
    assert not a.port.full
    assert not a.port.blocked(data)
    # What waits is in the file when somebody asks, and at the end.
    a.port.send(replace(burst, payload=bytes(512), count=2, dma_length=512))
    bench.fabric.captures.finish(capture)
    assert sum(written) == 1026
    a.port.send(replace(burst, payload=bytes(512), count=2, dma_length=512))
    bench.fabric.stop_capture(capture)
    assert capture.wait()
    assert sum(written) == capture.packets == 1028
    assert a.port.recordings == []


def test_a_packet_is_recorded_as_it_was(tmp_path: Path) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(["hca0"]))
    packet = Packet(Route(b.lid, a.lid), RC, SEND, 0x40, 1, b"data")
    sent = ib.encode(packet)
    at_ns = bench.clock.now_ns()
    a.port.send(packet)
    # Whoever is next on the way owns it.
    divert(packet, vl=3)
    bench.clock.advance(1_000_000)
    bench.fabric.stop_capture(capture)
    assert capture.wait()
    frame = [body for kind, body in blocks(Path(capture.name).read_bytes()) if kind == 6][-1]
    high, low = struct.unpack_from("<II", frame, 4)
    start = 20 + 16
    assert frame[start : start + len(sent)] == sent
    assert (high << 32 | low) - at_ns == pytest.approx(time.time_ns() - bench.clock.now_ns(), abs=10**11)


@needs_tshark
def test_tshark_reads_a_subnet_coming_up(tmp_path: Path) -> None:
    bench = Bench(2)
    path = tmp_path / "sweep.pcapng"
    capture = bench.fabric.capture(path)
    bench.run()
    late = bench.add_card()
    bench.run()
    a, b = bench.cards
    a.port.send(a.data(b.lid, b"ping"))
    late.port.send(Packet(Route(a.lid, late.lid), RC, SEND, 0x40, 2, b"x" * 1000, 4, mtu=256))
    bench.run()
    capture.flush()
    assert blocks(path.read_bytes())
    bench.fabric.stop_capture(capture)
    assert capture.wait()
    a.port.send(a.data(b.lid, b"not recorded"))
    bench.run()
    bench.fabric.close()
    assert a.port.sent_taps == a.port.arrival_taps == a.port.loopback_taps == []
    mad = [f"infiniband.mad.{name}" for name in ("mgmtclass", "method", "attributeid")]
    rows = fields(path, *mad, "infiniband.portinfo.lid", "infiniband.smpdirected.hopcount")
    assert len(rows) == capture.packets
    assert {(0x81, 1, 0x10), (0x81, 1, 0x11), (0x81, 2, 0x15)} <= set(numbers(rows, *mad))
    sets = [row for row in rows if row[mad[1]] and int(row[mad[1]], 0) == 2 and row["infiniband.portinfo.lid"]]
    assert {lid for (lid,) in numbers(sets, "infiniband.portinfo.lid")} == {a.lid, b.lid, late.lid}


def test_scapy_agrees_on_base_and_ack_headers() -> None:
    roce = pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed: no independent decoder")
    for packet in SAMPLES:
        for part in ib.split(packet):
            raw = ib.encode(part)
            offset = 8 if part.route.grh is None else 48
            bth = roce.BTH(raw[offset:-2])
            assert (bth.opcode, bth.dqpn, bth.psn, bth.pkey, bth.padcount, bth.ackreq) == (
                ib.opcode_of(part).code,
                part.dest_qp,
                part.psn,
                part.pkey,
                -len(part.payload) & 3,
                part.ack_req,
            )
            if part.route.grh is not None:
                grh = roce.GRH(raw[8:48])
                assert (grh.ipver, grh.nexthdr, grh.paylen) == (6, 0x1B, len(raw) - 50)
                assert grh.sgid.to_bytes(16, "big") == part.route.grh.sgid
            if part.op == ACKNOWLEDGE:
                assert (bth[roce.AETH].syndrome, bth[roce.AETH].msn) == (part.syndrome, part.msn)


def test_scapy_computes_the_same_icrc() -> None:
    """A RoCEv2 frame has IPv6 and UDP where InfiniBand has a GRH: scapy's CRC checks the masks of both."""
    roce = pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed: no independent decoder")
    from scapy.layers.inet6 import UDP, IPv6

    frame = IPv6(src="fe80::1", dst="fe80::2", hlim=3, tc=5) / UDP(sport=1, dport=4791)
    wire = bytes(frame / roce.BTH(opcode=4, dqpn=0x11, psn=9, becn=1) / b"0123456789abcdef")
    ip, udp, bth, crc = wire[:40], wire[40:48], wire[48:-4], wire[-4:]
    # Undo UDP's eight bytes: CRC of the frame as it is, then of the same bytes without UDP, by zlib alone.
    masked = b"\xff" * 8 + b"\x6f\xff\xff\xff" + ip[4:7] + b"\xff" + ip[8:]
    transport = bth[:4] + b"\xff" + bth[5:]
    assert zlib.crc32(masked + udp[:6] + b"\xff\xff" + transport).to_bytes(4, "little") == crc
    assert icrc(b"\x00\x03" + bytes(6) + ip + bth) == zlib.crc32(masked + transport)


def recorded(path: Path) -> list[tuple[str, int, Packet]]:
    """(interface, direction, packet) of each packet of a file, management left out."""
    names, found = [], []
    for kind, body in blocks(path.read_bytes()):
        if kind == 1:
            size = struct.unpack_from("<HH", body, 8)[1]
            names.append(body[12 : 12 + size].decode())
        elif kind == 6:
            interface, _, _, size, _ = struct.unpack_from("<IIIII", body)
            packet = ib.decode(body[36 : 20 + size])
            direction = struct.unpack_from("<HHI", body, 20 + size + (-size & 3))[2]
            if packet.dest_qp > 1:
                found.append((names[interface], direction, packet))
    return found


@pytest.mark.parametrize("action", ["drop", "corrupt", "duplicate", "delay"])
@pytest.mark.parametrize("place", [("hca0", "from_card"), ("hca1", "to_card")])
def test_what_a_fault_does_is_seen_behind_it_only(tmp_path: Path, action: Action, place: tuple[str, Direction]) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    bench.fabric.add_fault(place[0], Fault(action, nth=2, delay_ns=1000), place[1])
    with_both = bench.fabric.capture(tmp_path / "both.pcapng", CaptureChoice(both_ends=True))
    once = bench.fabric.capture(tmp_path / "once.pcapng")
    for psn in (1, 2, 3):
        a.port.send(a.data(b.lid, psn=psn))
    bench.run()
    bench.pass_time(0.001)
    bench.fabric.stop_capture(with_both)
    assert with_both.wait()
    bench.fabric.stop_capture(once)
    assert once.wait()
    sent = [("hca0", OUTBOUND, psn, True) for psn in (1, 2, 3)]
    found = [(name, way, packet.psn, packet.good) for name, way, packet in recorded(tmp_path / "once.pcapng")]
    assert found == sent
    found = [(name, way, packet.psn, packet.good) for name, way, packet in recorded(tmp_path / "both.pcapng")]
    assert [row for row in found if row[0] == "hca0"] == sent
    lost_by_crc = action == "corrupt" and place[0] == "hca0"  # the switch drops it
    behind = {
        "drop": [(1, True), (3, True)],
        "corrupt": [(1, True), (3, True)] if lost_by_crc else [(1, True), (2, False), (3, True)],
        "duplicate": [(1, True), (2, True), (2, True), (3, True)],
        "delay": [(1, True), (3, True), (2, True)],
    }[action]
    assert [row[2:] for row in found if row[:2] == ("hca1", INBOUND)] == behind
    assert len(found) == len(sent) + len(behind)


def test_ports_of_a_capture(tmp_path: Path) -> None:
    bench = Bench(3)
    bench.run()
    a, b, c = bench.cards
    with pytest.raises(KeyError):
        bench.fabric.capture(tmp_path / "none.pcapng", CaptureChoice(["hca7"]))
    assert not (tmp_path / "none.pcapng").exists()
    capture = bench.fabric.capture(tmp_path / "one.pcapng", CaptureChoice(["hca1"]))
    a.port.send(a.data(b.lid, psn=1))
    b.port.send(b.data(c.lid, psn=2))
    c.port.send(c.data(a.lid, psn=3))
    bench.add_card()
    bench.run()
    bench.fabric.stop_capture(capture)
    assert capture.wait()
    assert [(name, way, packet.psn) for name, way, packet in recorded(Path(capture.name))] == [
        ("hca1", OUTBOUND, 2),
        ("hca1", INBOUND, 1),
    ]


def test_management_from_the_switch_is_recorded_where_it_arrives(tmp_path: Path) -> None:
    bench = Bench(2)
    capture = bench.fabric.capture(tmp_path / "sweep.pcapng")
    bench.run()
    bench.fabric.stop_capture(capture)
    assert capture.wait()
    ways = {INBOUND: 0, OUTBOUND: 0}
    for kind, body in blocks(Path(capture.name).read_bytes()):
        if kind == 6:
            size = struct.unpack_from("<I", body, 12)[0]
            ways[struct.unpack_from("<I", body, 24 + size + (-size & 3))[0]] += 1
    assert min(ways.values()) > 5


def test_what_a_card_sends_to_itself_has_an_interface(tmp_path: Path) -> None:
    bench = Bench(1)
    bench.run()
    (a,) = bench.cards
    capture = bench.fabric.capture(tmp_path / "self.pcapng")
    both = bench.fabric.capture(tmp_path / "both.pcapng", CaptureChoice(both_ends=True))
    burst = Packet(Route(a.lid, a.lid), RC, WRITE, 0x11, 5, b"y" * 512, 2, mtu=256, va=1, rkey=2, dma_length=512)
    a.port.looped(burst)
    a.port.looped(Packet(Route(0xC001, a.lid), UD, SEND, 0xFFFFFF, 9, b"to a group"))
    bench.fabric.close()
    assert capture.wait()
    assert both.wait()
    a.port.looped(burst)
    rows = [(name, way, packet.psn) for name, way, packet in recorded(Path(capture.name))]
    assert rows == [("hca0-loopback", OUTBOUND, 5), ("hca0-loopback", OUTBOUND, 6)]
    assert len(recorded(Path(both.name))) == 3
