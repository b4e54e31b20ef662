"""A way through the switch is open only while nothing happens to packets on it, and counts as packets do."""

from collections.abc import Callable

import pytest

from tests.unit.fabric.bench import Bench
from vhca.fabric.faults import Fault
from vhca.fabric.through import Way
from vhca.fabric.wires import MOST_OWED
from vhca.management.performance import data_words
from vhca.wire.packet import RC, SEND, Packet, Route
from vhca.wire.smp import PORT_ARMED


def ways(bench: Bench) -> tuple[Way, Route]:
    """The way from the first card to the second one."""
    a, b = bench.cards
    route = Route(b.lid, a.lid)
    found = a.port.through(route, Route(a.lid, b.lid))
    assert found is not None
    way, far = found
    assert far is b.port
    return way, route


@pytest.fixture
def bench() -> Bench:
    bench = Bench(2)
    bench.run()
    return bench


def test_a_way_is_open_once_the_manager_has_led_both_ports_up(bench: Bench) -> None:
    way, _ = ways(bench)
    assert way.is_open(4096)
    fresh = Bench(2)
    assert fresh.cards[0].port.through(Route(2, 1), Route(1, 2)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: bench.fabric.link_down(bench.cards[0].port.name),
        lambda bench: bench.fabric.link_down(bench.cards[1].port.name),
        lambda bench: bench.fabric.add_fault(bench.cards[0].port.name, Fault("drop"), "to_card"),
        lambda bench: bench.fabric.add_fault(bench.cards[1].port.name, Fault("drop"), "from_card"),
        lambda bench: bench.cards[0].port.sent_taps.append(lambda packet: None),
        lambda bench: bench.cards[1].port.arrival_taps.append(lambda packet: None),
        lambda bench: bench.cards[1].port.switch_port.move(PORT_ARMED),
        lambda bench: bench.cards[1].port.switch_port.set_mtu(4),
        lambda bench: bench.cards[0].port.switch_port.set_source(99, 0),
        lambda bench: bench.cards[1].port.switch_port.set_source(99, 0),
        lambda bench: bench.fabric.switch.set_linear(bench.cards[1].lid, bytes([9])),
        lambda bench: bench.fabric.switch.set_linear(bench.cards[0].lid, bytes([9])),
        lambda bench: bench.cards[1].port.switch_port.set_lanes(1, bytes([15] * 16)),
        lambda bench: [bench.cards[0].port.send(_packet(bench, bytes(4096))) for _ in range(600)],
    ],
)
def test_anything_on_the_way_closes_it(bench: Bench, change: Callable[[Bench], object]) -> None:
    way, _ = ways(bench)
    assert bench.cards[0].port.switch_port.number == 1
    assert way.is_open(4096)
    change(bench)
    assert not way.is_open(4096)


def _packet(bench: Bench, payload: bytes) -> Packet:
    a, b = bench.cards
    return Packet(Route(b.lid, a.lid), RC, SEND, 5, 0, payload, mtu=4096)


def test_a_way_closes_for_packets_that_are_too_large(bench: Bench) -> None:
    way, _ = ways(bench)
    bench.cards[1].port.switch_port.set_mtu(3)
    assert [way.is_open(mtu) for mtu in (256, 1024, 2048)] == [True, True, False]


def test_there_is_no_way_to_oneself_to_groups_or_to_nobody(bench: Bench) -> None:
    a = bench.cards[0]
    for dlid in (a.lid, 0, 0xC000, 0xFFFF, 0x777, bench.fabric.manager.lid):
        assert a.port.through(Route(dlid, a.lid), Route(a.lid, dlid)) is None


def test_what_passes_is_counted_as_packets_are(bench: Bench) -> None:
    way, _ = ways(bench)
    a, b = bench.cards
    packet = _packet(bench, bytes(1000))
    words = data_words(packet)

    def counted() -> list[dict[str, int]]:
        return [card.port.counters() for card in bench.cards]

    start = counted()
    a.port.send(packet)
    b.port.send(Packet(Route(a.lid, b.lid), RC, SEND, 5, 0, bytes(1000), mtu=4096))
    bench.run()
    sent = counted()
    way.passed(1, words, 1, words)
    passed = counted()
    for before, middle, after in zip(start, sent, passed, strict=True):
        moved = {name: middle[name] - before[name] for name in middle if middle[name] != before.get(name)}
        assert moved == {name: after[name] - middle[name] for name in after if after[name] != middle.get(name)}
        assert moved


def test_what_passes_is_counted_whole_on_however_many_ways(bench: Bench) -> None:
    """As many ways as there are between connected queue pairs, of which the last one may never be used again."""
    a, b = bench.cards
    before = a.port.counters()["xmit_pkts"], b.port.counters()["rcv_pkts"]
    for _ in range(MOST_OWED):
        way, _ = ways(bench)
        way.passed(1, 10, 0, 0)
    assert (a.port.counters()["xmit_pkts"], b.port.counters()["rcv_pkts"]) == tuple(n + MOST_OWED for n in before)
