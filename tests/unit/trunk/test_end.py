"""Trunks between fabrics of one process: as cables to whoever looks, and nothing that a peer sends does harm."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fabric.bench import Card
from tests.unit.trunk.half import Racks
from vhca.fabric import shapes
from vhca.fabric.line import LineConfig
from vhca.fabric.link import FULL_BYTES
from vhca.trunk.counters import TrunkCount
from vhca.trunk.end import (
    BEAT_NS,
    DEAF_NS,
    MOST_OFFENCES,
    MOST_WAITING_FRAMES,
    SILENCE_NS,
    URGENT_FRAMES,
    WINDOW_BYTES,
    WINDOW_FRAMES,
    TrunkEnd,
)
from vhca.wire import smp
from vhca.wire.packet import MANAGEMENT_VL, RC, SEND, Packet, Route
from vhca.wire.trunk import FrameKind, TrunkCredit, TrunkHello, TrunkState, encode_frame, encode_packet

RING = shapes.ring(3, 6)
PARTS = (["s1"], ["s2"], ["s3"])


@pytest.fixture
def racks() -> Racks:
    """Three racks in a ring of three switches, with a card at each."""
    racks = Racks(RING, PARTS, (1, 1, 1))
    racks.pass_time(3)
    return racks


@pytest.fixture
def two() -> Racks:
    """Two racks and one trunk, with a card at each."""
    racks = Racks(shapes.torus((2,), 2), (["s1"], ["s2"]), (1, 1))
    racks.pass_time(3)
    return racks


def passes(racks: Racks, one: Card, two: Card) -> bool:
    two.inbox.clear()
    one.port.send(one.data(two.lid))
    racks.run()
    return bool(two.inbox)


def ends_of(racks: Racks) -> tuple[TrunkEnd, TrunkEnd]:
    one, other = racks.ends[0]
    return one, other


def test_one_manager_brings_up_the_switches_hosts_and_cards_of_all_racks(racks: Racks) -> None:
    found = racks.fabrics[0].manager.topology
    simulated = {host.guid for fabric in racks.fabrics for host in fabric.simulated()}
    assert len(simulated) == 3
    assert found.nodes.keys() == simulated | {switch.guid for switch in RING.switches} | {0x1000, 0x2000, 0x3000}
    cards = [card for (card,) in racks.cards]
    assert len({card.lid for card in cards}) == 3
    assert all(card.state == smp.PORT_ACTIVE for card in cards)
    for one in cards:
        for other in cards:
            assert one is other or passes(racks, one, other)
    assert "sm.refused_sets" not in racks.fabrics[0].counters()
    assert not any(name.startswith("sm.heavy") and n for name, n in racks.fabrics[1].counters().items())


def test_a_trunk_that_is_cut_is_a_cable_that_was_pulled_and_packets_go_around(racks: Racks) -> None:
    cards = [card for (card,) in racks.cards]
    for wires in racks.wires[:1]:
        for wire in wires:
            wire.cut = True
    racks.pass_time((SILENCE_NS + 2 * BEAT_NS) / 1e9)
    one, other = ends_of(racks)
    assert not one.connected
    assert not one.link.up
    assert not other.link.up
    racks.pass_time(2)
    for card in cards:
        for peer in cards:
            assert card is peer or passes(racks, card, peer)
    found = racks.fabrics[0].manager.topology
    cables = len({frozenset(pair) for pair in found.cables.items()})
    for wire in racks.wires[0]:
        wire.cut = False
    racks.pass_time(3)
    assert one.connected
    assert other.link.up
    assert one.counters[TrunkCount.SESSIONS] == 2
    found = racks.fabrics[0].manager.topology
    assert len({frozenset(pair) for pair in found.cables.items()}) == cables + 1


def test_what_happens_to_one_half_happens_to_the_other(two: Racks) -> None:
    one, other = ends_of(two)
    for racks_name, half in (("s1/1", one), ("s2/1", other)):
        fabric = two.fabrics[0 if half is one else 1]
        name = half.link.b.name
        fabric.link_down(name)
        two.run()
        assert not one.link.up
        assert not other.link.up
        fabric.link_up(name)
        two.run()
        assert one.link.up
        assert other.link.up
        downs = two.fabrics[0].switches["s1"].ports[1].counters.link_downed
        fabric.cables.set_disabled(name, True)
        two.pass_time(0.1)
        assert (one.link.up, other.link.up) == (False, False), racks_name
        fabric.cables.set_disabled(name, False)
        two.pass_time(0.1)
        assert (one.link.up, other.link.up) == (True, True)
        assert two.fabrics[0].switches["s1"].ports[1].counters.link_downed == downs + 1


def test_a_rack_that_stops_says_so(two: Racks) -> None:
    one, other = ends_of(two)
    other.close()
    two.run()
    assert not one.link.up
    assert one.counters[TrunkCount.LOST_SESSIONS] == 0


def bulk(racks: Racks, psn: int, size: int = 4096) -> Packet:
    (one,), (two,) = racks.cards
    return Packet(Route(two.lid, one.lid), RC, SEND, 0x100, psn, bytes(size), mtu=4096)


def test_packets_and_bursts_come_in_order_and_whole(two: Racks) -> None:
    (one,), (far,) = two.cards
    burst = replace(bulk(two, 0), payload=bytes(65536), count=16, end=False)
    one.port.send(burst)
    for psn in range(16, 1000):
        one.port.send(bulk(two, psn, psn))
    two.run()
    assert [(p.psn, p.count, len(p.payload)) for p in far.inbox] == [
        (0, 16, 65536),
        *((psn, 1, psn) for psn in range(16, 1000)),
    ]


def test_a_receiver_without_room_stops_the_sender_and_nothing_is_lost(two: Racks) -> None:
    (one,), (far,) = two.cards
    end, other = ends_of(two)
    blocked = True
    far.port.attach(far.receive, None, lambda: blocked)
    sent = 0
    for _ in range(20_000):
        if one.port.full:
            break
        one.port.send(bulk(two, sent))
        sent += 1
        if not sent % 16:
            two.pass_time(0.000_1)
    assert one.port.full
    most = WINDOW_BYTES + 4 * (FULL_BYTES + 65 * 4096)
    assert sent * 4096 < most
    assert end.counters[TrunkCount.WAITS] > 0
    assert end.counters[TrunkCount.XMIT_FRAMES] - other.counters[TrunkCount.RCV_FRAMES] <= WINDOW_FRAMES
    blocked = False
    two.pass_time(1)
    assert [p.psn for p in far.inbox] == list(range(sent))
    assert not one.port.full


def test_management_needs_no_room_and_is_lost_beyond_a_bound(two: Racks) -> None:
    end, _ = ends_of(two)
    two.wires[0][1].held = True  # no credits come back
    smp_packet = Packet(Route(0xFFFF, 0xFFFF, vl=MANAGEMENT_VL), 0x60, SEND, 0, 0, bytes(256), mtu=256)
    for _ in range(URGENT_FRAMES + 10):
        end.receive(replace(smp_packet))
    assert end.counters[TrunkCount.LOST_VL15] == 10
    assert end.blocked(bulk(two, 0))
    assert not end.blocked(smp_packet)


def test_a_line_of_a_trunk_delays_what_is_sent_there_and_not_what_comes(two: Racks) -> None:
    (one,), (far,) = two.cards
    end, _ = ends_of(two)
    two.fabrics[0].set_line(end.link.b.name, LineConfig(latency_ns=50_000_000))
    came: list[int] = []
    far.port.attach(lambda packet: came.append(two.clock.now_ns()))
    back: list[int] = []
    one.port.attach(lambda packet: back.append(two.clock.now_ns()))
    two.pass_time(0.2)
    came.clear()
    back.clear()
    began = two.clock.now_ns()
    one.port.send(bulk(two, 0))
    far.port.send(replace(bulk(two, 0), route=Route(one.lid, far.lid)))
    two.pass_time(0.1)
    assert (came[:1], back[:1]) == ([began + 50_000_000], [began])


# ---- hostile peers ----


def hostile(racks: Racks, kind: FrameKind, body: bytes = b"", number: int = 0) -> bytes:
    """A frame of the session that is there, as the peer of the first end could send it."""
    _, peer = ends_of(racks)
    return encode_frame(kind, peer._session, peer._peer, number, body)


def state(end: TrunkEnd) -> tuple[int, int, int]:
    return end._received, len(end._waiting), end._waiting_bytes


NONSENSE = [
    lambda r: b"",
    lambda r: b"\0" * 16,
    lambda r: b"VT\1\x09" + bytes(12),
    lambda r: hostile(r, FrameKind.BURST),
    lambda r: hostile(r, FrameKind.BURST, encode_packet(bulk(r, 0)), 77),
    lambda r: hostile(r, FrameKind.BURST, encode_packet(bulk(r, 0))[:-1], ends_of(r)[0]._received),
    lambda r: hostile(r, FrameKind.CREDIT, TrunkCredit(frames=1 << 40, bytes=0).to_bytes()),
    lambda r: hostile(r, FrameKind.CREDIT, TrunkCredit(frames=0, bytes=0).to_bytes()),
    lambda r: hostile(r, FrameKind.CREDIT, b"x"),
    lambda r: hostile(r, FrameKind.STATE, b""),
    lambda r: hostile(r, FrameKind.STATE, b"\0\0\0\2"),
    lambda r: hostile(r, FrameKind.BYE, b"x"),
    lambda r: encode_frame(FrameKind.HELLO, 0, 0, 0, hello()),
    lambda r: encode_frame(FrameKind.HELLO, 5, 0, 0, b"x"),
]


def hello(name: bytes = b"", digest: bytes = b"d" * 32) -> bytes:
    return TrunkHello(digest=digest, name=(name or NAME).ljust(160, b"\0")).to_bytes()


NAME = str(shapes.torus((2,), 2).cables[0].a).encode()


@pytest.mark.parametrize("frame", NONSENSE)
def test_nonsense_is_a_counted_drop_and_the_trunk_stays(two: Racks, frame: object) -> None:
    (one,), (far,) = two.cards
    end, _ = ends_of(two)
    passes(two, far, one)
    before = state(end)
    end.frame_in(frame(two))  # type: ignore[operator]
    two.run()
    assert end.counters[TrunkCount.MALFORMED] == 1
    assert end.connected
    assert state(end) == before
    assert passes(two, one, far)
    assert passes(two, far, one)


def test_one_that_goes_on_is_not_listened_to_for_a_while_and_may_come_again(two: Racks) -> None:
    end, _ = ends_of(two)
    for _ in range(MOST_OFFENCES):
        end.frame_in(b"nonsense")
    assert end.deaf
    assert not end.link.up
    heard = end.counters[TrunkCount.MALFORMED]
    for _ in range(100):
        end.frame_in(b"nonsense")
    assert end.counters[TrunkCount.IGNORED] == 100
    assert end.counters[TrunkCount.MALFORMED] == heard
    two.pass_time((DEAF_NS + SILENCE_NS + 3 * BEAT_NS) / 1e9)
    assert end.connected
    assert end.link.up


def test_a_wrong_frame_now_and_then_is_forgotten(two: Racks) -> None:
    end, _ = ends_of(two)
    for _ in range(3 * MOST_OFFENCES):
        end.frame_in(hostile(two, FrameKind.STATE))
        two.pass_time(BEAT_NS / 1e9)
    assert end.connected
    assert not end.deaf
    assert end.counters[TrunkCount.MALFORMED] == 3 * MOST_OFFENCES


def test_one_that_sends_more_than_it_was_granted_loses_that_and_then_the_session(two: Racks) -> None:
    end, _ = ends_of(two)
    received = end._received
    for number in range(MOST_WAITING_FRAMES + MOST_OFFENCES):
        end.frame_in(hostile(two, FrameKind.BURST, encode_packet(bulk(two, 0, 0)), received + number))
    assert end.counters[TrunkCount.OVERRUN] == MOST_OFFENCES
    assert not end.connected
    assert len(end._waiting) == 0


def test_frames_of_other_sessions_and_strangers_change_nothing(two: Racks) -> None:
    end, peer = ends_of(two)
    down = TrunkState(enabled=0).to_bytes()
    end.frame_in(encode_frame(FrameKind.STATE, peer._session + 1, end._session, 0, down))
    end.frame_in(encode_frame(FrameKind.STATE, peer._session, end._session + 1, 0, down))
    assert end.counters[TrunkCount.STALE] == 2
    end.frame_in(encode_frame(FrameKind.HELLO, 99, 0, 0, hello(digest=b"e" * 32)))
    end.frame_in(encode_frame(FrameKind.HELLO, 99, 0, 0, hello(name=b"elsewhere")))
    assert end.counters[TrunkCount.STRANGERS] == 2
    assert end.connected
    assert end.link.up


def test_many_hellos_begin_few_sessions(two: Racks) -> None:
    end, _ = ends_of(two)
    sent = len(two.wires[0][0].frames)
    for session in range(1, 200):
        end.frame_in(encode_frame(FrameKind.HELLO, session, 0, 0, hello()))
    assert len(two.wires[0][0].frames) - sent <= 2
    two.pass_time(5)
    assert end.connected


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 8), st.binary(max_size=150), st.integers(0, 3)), max_size=40), st.integers())
def test_whatever_a_peer_sends_the_rack_goes_on_and_the_other_cables_are_untouched(
    frames: list[tuple[int, bytes, int]], seed: int
) -> None:
    racks = Racks(shapes.torus((2,), 4), (["s1"], ["s2"]), (2, 1))
    racks.pass_time(2)
    end, _ = ends_of(racks)
    chance = Random(seed)
    for kind, body, how in frames:
        head = bytearray(hostile(racks, FrameKind.STATE))
        head[3] = kind
        if how == 1:
            head[chance.randrange(16)] ^= 1 << chance.randrange(8)
        if how == 2:
            body = encode_packet(Packet(Route(1, 2), RC, SEND, 3, 0, body, mtu=256))
            head[12:16] = (end._received & 0xFFFFFFFF).to_bytes(4, "big")
        end.frame_in(bytes(head) + body if how != 3 else body)
    racks.run()
    one, two = racks.cards[0]
    assert passes(racks, one, two)
    racks.pass_time(6)
    assert end.connected
