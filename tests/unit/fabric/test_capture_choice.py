"""What a capture has: any cable, any port, and of what passes there only what was asked for."""

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.unit.fabric.bench import Bench, Card, Turns
from tests.unit.fabric.test_capture import blocks, recorded
from vhca.fabric.capture import INBOUND, OUTBOUND, Capture, CaptureLimits
from vhca.fabric.capture_filter import CaptureFilter
from vhca.fabric.captures import CaptureChoice
from vhca.fabric.fabric import Fabric
from vhca.fabric.topology_toml import read
from vhca.sim.clock import VirtualClock
from vhca.wire.packet import ACKNOWLEDGE, RC, SEND, UC, WRITE, Packet, Route


def stopped(fabric: Fabric, capture: Capture) -> Path:
    fabric.stop_capture(capture)
    assert capture.wait()
    return Path(capture.name)


def interfaces(path: Path) -> dict[str, tuple[str, int]]:
    """Description and speed of each interface, by name."""
    found = {}
    for kind, body in blocks(path.read_bytes()):
        if kind == 1:
            options, at = {}, 8
            while at < len(body):
                code, size = struct.unpack_from("<HH", body, at)
                options[code] = body[at + 4 : at + 4 + size]
                at += 4 + size + (-size & 3)
            found[options[2].decode()] = (
                options.get(3, b"").decode(),
                int.from_bytes(options.get(8, b""), "little"),
            )
    return found


TOPOLOGY = """
switch = [{name = "leaf1", ports = 8}, {name = "leaf2", ports = 8}]
host = [{name = "n1"}, {name = "n2"}, {name = "n3"}]
cable = [
    {ends = ["leaf1/1", "n1/1"]},
    {ends = ["leaf1/2", "n3/1"]},
    {ends = ["leaf1/8", "leaf2/8"], speed = "HDR"},
    {ends = ["leaf2/1", "n2/1"]},
]
"""


class Two(Bench):
    """Cards in the places of n1 and n2, a simulated host, two switches."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.clock = VirtualClock(1)
        self.fabric = Fabric(self.turns.call_soon, self.clock, topology=read(TOPOLOGY), random=Random(1))
        self.cards = []
        for number, host in enumerate(("n1", "n2")):
            self.cards.append(Card(self.fabric, f"h{number}", 0x1000 + number, self.clock.now_ns, 4096, host))
        self.run()


def test_every_cable_of_the_fabric_has_each_packet_once(tmp_path: Path) -> None:
    bench = Two()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "all.pcapng", CaptureChoice(["all"]))
    a.port.send(a.data(b.lid, psn=5))
    bench.run()
    path = stopped(bench.fabric, capture)
    rows = [(name, way, packet.psn) for name, way, packet in recorded(path)]
    assert rows == [("h0", OUTBOUND, 5), ("leaf1/8", OUTBOUND, 5), ("leaf2/1", OUTBOUND, 5)]
    found = interfaces(path)
    assert found["leaf1/8"] == ("to leaf2/8, 4xHDR", 200_000_000_000)
    assert found["h0"] == ("to leaf1/1, 4xEDR", 100_000_000_000)


def test_both_ends_of_a_trunk(tmp_path: Path) -> None:
    bench = Two()
    a, b = bench.cards
    choice = CaptureChoice(["leaf1/8", "leaf2/8"])
    once = bench.fabric.capture(tmp_path / "once.pcapng", choice)
    both = bench.fabric.capture(tmp_path / "both.pcapng", replace(choice, both_ends=True))
    one = bench.fabric.capture(tmp_path / "one.pcapng", CaptureChoice(["leaf2/8"]))
    a.port.send(a.data(b.lid, psn=5))
    b.port.send(b.data(a.lid, psn=6))
    bench.run()
    rows = {
        name: sorted((where, way, packet.psn) for where, way, packet in recorded(stopped(bench.fabric, capture)))
        for name, capture in (("once", once), ("both", both), ("one", one))
    }
    assert rows["once"] == [("leaf1/8", OUTBOUND, 5), ("leaf2/8", OUTBOUND, 6)]
    assert rows["both"] == sorted([*rows["once"], ("leaf1/8", INBOUND, 6), ("leaf2/8", INBOUND, 5)])
    assert rows["one"] == [("leaf2/8", INBOUND, 5), ("leaf2/8", OUTBOUND, 6)]


def test_a_switch_a_simulated_host_and_a_card_by_their_names(tmp_path: Path) -> None:
    bench = Two()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(["leaf2", "n3", "n1"]))
    a.port.send(a.data(b.lid, psn=5))
    bench.fabric.manager.sweep()
    bench.run()
    path = stopped(bench.fabric, capture)
    assert [(name, way) for name, way, _ in recorded(path)] == [
        ("h0", OUTBOUND),
        ("leaf2/8", INBOUND),
        ("leaf2/1", OUTBOUND),
    ]
    assert {"h0", "leaf2/8", "leaf2/1", "n3/1"} <= set(interfaces(path))
    bench.fabric.cables.add_card("h1", b.port, "g1/1")
    alias = bench.fabric.capture(tmp_path / "alias.pcapng", CaptureChoice(["g1/1"]))
    b.port.send(b.data(a.lid, psn=6))
    bench.run()
    assert [row[:2] for row in recorded(stopped(bench.fabric, alias))] == [("h1", OUTBOUND)]
    for name in ("leaf3", "leaf1/9", "h7", "leaf1/", ""):
        with pytest.raises(KeyError):
            bench.fabric.capture(tmp_path / "none.pcapng", CaptureChoice([name]))
    assert not (tmp_path / "none.pcapng").exists()


def test_management_is_recorded_on_every_cable_of_its_way(tmp_path: Path) -> None:
    bench = Two()
    only = CaptureFilter(management_class=0x81)
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(["all"], only=only))
    bench.fabric.manager.sweep()
    bench.run()
    named = interfaces(stopped(bench.fabric, capture))
    assert {"leaf1/8", "leaf2/8", "leaf2/1", "h1", "n3/1"} <= set(named)
    assert capture.packets >= 8


def test_many_cables_are_tapped_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhca.fabric.recording.ENDS_PER_TURN", 2)
    bench = Two()
    a, b = bench.cards

    def tapped() -> int:
        return sum(bool(end.sent_taps) for link in bench.fabric.cables for end in (link.a, link.b))

    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(["all"]))
    assert tapped() == 2 + 2  # of eight: the cards, and two more
    bench.run()
    assert tapped() == 8
    a.port.send(a.data(b.lid, psn=5))
    bench.run()
    assert [name for name, _, _ in recorded(stopped(bench.fabric, capture))] == ["h0", "leaf1/8", "leaf2/1"]
    ended = bench.fabric.capture(tmp_path / "e.pcapng", CaptureChoice(["all"]))
    stopped(bench.fabric, ended)
    bench.run()
    assert tapped() == 0


def test_cards_hold_back_for_a_capture_of_switches_only(tmp_path: Path) -> None:
    bench = Two()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(["leaf1/8"]))
    assert [len(card.port.recordings) for card in bench.cards] == [1, 1]
    recording, _ = bench.fabric.captures.running[capture]
    burst = Packet(Route(b.lid, a.lid), RC, WRITE, 0x40, 1, bytes(256 * 1024), 1024, mtu=256, dma_length=256 * 1024)
    a.port.send(burst)
    while not recording.full:
        bench.turns.one()
    assert a.port.full
    stopped(bench.fabric, capture)
    assert not a.port.full
    assert [card.port.recordings for card in bench.cards] == [[], []]


def test_what_cannot_be_held_back_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vhca.fabric.recording.MOST_WAITING", 10)
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng")
    for psn in range(100):
        a.port.send(a.data(b.lid, psn=psn))
    assert (capture.packets, capture.dropped) == (11, 89)
    path = stopped(bench.fabric, capture)
    assert len(recorded(path)) == 11
    statistics = {struct.unpack_from("<I", body)[0]: body for kind, body in blocks(path.read_bytes()) if kind == 5}
    assert struct.pack("<HHQ", 4, 8, 100) + struct.pack("<HHQ", 5, 8, 89) in statistics[0]


DATA = Packet(Route(2, 1), RC, SEND, 0x40, 1, b"data")
ACK = Packet(Route(1, 2), RC, ACKNOWLEDGE, 0x41, 1)


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (CaptureFilter(), "dauwms"),
        (CaptureFilter(direction="in"), ""),
        (CaptureFilter(direction="out"), "dauwms"),
        (CaptureFilter(lids=frozenset({7})), "u"),
        (CaptureFilter(lids=frozenset({2, 7})), "dauwms"),
        (CaptureFilter(qpns=frozenset({0x41})), "a"),
        (CaptureFilter(qpns=frozenset({0x40, 0x99})), "du"),
        (CaptureFilter(qpns=frozenset({1})), "s"),
        (CaptureFilter(service="UD"), "ums"),
        (CaptureFilter(service="RC", acknowledgements=False), "d"),
        (CaptureFilter(acknowledgements=False), "duwms"),
        (CaptureFilter(management=True), "ms"),
        (CaptureFilter(management=False), "dauw"),
        (CaptureFilter(management_class=0x81), "m"),
        (CaptureFilter(management_class=3), "s"),
        (CaptureFilter(management_class=4), ""),
    ],
)
def test_filters(only: CaptureFilter, wanted: str) -> None:
    bench = Bench(1)
    (card,) = bench.cards
    smp = replace(card.data(0, bytes((1, 0x81)) + bytes(254)), route=Route(2, 1, vl=15), dest_qp=0, src_qp=0)
    packets = {
        "d": DATA,
        "a": ACK,
        "u": replace(card.data(7), route=Route(7, 2), src_qp=0x99),
        "w": Packet(Route(2, 1), UC, WRITE, 0x50, 1, b"x", va=1, rkey=1, dma_length=1),
        "m": smp,
        "s": replace(smp, dest_qp=1, src_qp=1, payload=bytes((1, 3)) + bytes(254)),
    }
    assert "".join(name for name, packet in packets.items() if only.wants(packet, OUTBOUND)) == wanted


def test_opcodes_are_looked_for_in_bursts(tmp_path: Path) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    only = CaptureFilter(opcode="RC_RDMA_WRITE_LAST")
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(only=only))
    a.port.send(Packet(Route(b.lid, a.lid), RC, WRITE, 0x40, 1, bytes(1024), 4, mtu=256, va=1, dma_length=1024))
    a.port.send(Packet(Route(b.lid, a.lid), RC, SEND, 0x40, 1 << 40, bytes(10)))  # what no wire carries
    a.port.send(Packet(Route(b.lid, a.lid), UC, 99, 0x40, 1))
    bench.run()
    rows = recorded(stopped(bench.fabric, capture))
    assert [packet.psn for _, _, packet in rows] == [4]
    assert (capture.packets, capture.dropped) == (1, 0)


@pytest.mark.parametrize("words", [{"service": "RD"}, {"direction": "up"}, {"opcode": "RC_FLY"}])
def test_filters_that_cannot_be(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no (service|direction|opcode)"):
        CaptureFilter(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [{"packets": 0}, {"seconds": 0}, {"seconds": 1e12}, {"snap_bytes": 7}])
def test_limits_that_cannot_be(words: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(words))):
        CaptureLimits(**words)


def test_a_capture_ends_at_its_number_of_packets(tmp_path: Path) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(limits=CaptureLimits(packets=3)))
    a.port.send(Packet(Route(b.lid, a.lid), RC, WRITE, 0x40, 1, bytes(512), 2, mtu=256, va=1, dma_length=512))
    a.port.send(Packet(Route(b.lid, a.lid), RC, WRITE, 0x40, 3, bytes(512), 2, mtu=256, va=1, dma_length=512))
    bench.run()
    assert capture.wait()
    assert not bench.fabric.captures.running
    assert a.port.sent_taps == []
    assert [packet.psn for _, _, packet in recorded(Path(capture.name))] == [1, 2, 3]


def test_a_capture_ends_at_its_time(tmp_path: Path) -> None:
    bench = Bench(2)
    bench.run()
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(limits=CaptureLimits(seconds=5)))
    bench.pass_time(4.9)
    assert bench.fabric.captures.running
    bench.pass_time(0.2)
    assert not bench.fabric.captures.running
    assert capture.wait()


def test_a_snap_length_keeps_the_beginning(tmp_path: Path) -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(limits=CaptureLimits(snap_bytes=20)))
    a.port.send(Packet(Route(b.lid, a.lid), RC, SEND, 0x40, 1, bytes(200), mtu=256))
    bench.run()
    path = stopped(bench.fabric, capture)
    (frame,) = [body for kind, body in blocks(path.read_bytes()) if kind == 6]
    captured, size = struct.unpack_from("<II", frame, 12)
    assert (captured, size) == (16 + 20, 16 + 8 + 12 + 200 + 6)
    assert len(frame) < 100


def test_a_card_that_tells_much_does_not_take_the_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vhca.fabric.recording.MOST_RECORDS", 5)
    bench = Bench(2)
    bench.run()
    listeners: Counter[str] = Counter()

    class Record:
        direction = INBOUND

        def words(self) -> tuple[str, dict[str, object]]:
            return "a word", {"said": "word"}

    tell = {}
    for card in bench.cards:

        def watch(listen, name=card.port.name):  # type: ignore[no-untyped-def]
            listeners[name] += 1
            tell[name] = listen

            def end() -> None:
                listeners[name] -= 1

            return end

        card.port.watch = watch
    capture = bench.fabric.capture(tmp_path / "c.pcapng", CaptureChoice(records=True))
    for _ in range(50):
        tell["hca0"](Record())
    tell["hca1"](Record())
    assert (capture.packets, capture.dropped) == (6, 45)
    bench.run()
    tell["hca0"](Record())
    path = stopped(bench.fabric, capture)
    assert capture.packets == 7
    assert listeners == {"hca0": 0, "hca1": 0}
    assert set(interfaces(path)) == {"hca0", "hca1", "hca0-card", "hca1-card"}
    assert path.read_bytes().count(b'{"said": "word"}') == 7
