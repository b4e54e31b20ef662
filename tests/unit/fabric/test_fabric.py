import pytest

from tests.unit.fabric.bench import Bench
from vhca.sim.loop import Loop
from vhca.wire.packet import Packet


def test_ports_have_unique_names_and_the_switch_has_an_end() -> None:
    bench = Bench(1, num_ports=2)
    with pytest.raises(ValueError, match="already"):
        bench.fabric.add_port("hca0")
    bench.add_card()
    with pytest.raises(LookupError, match="taken"):
        bench.add_card()


def test_counters_are_those_of_the_card() -> None:
    bench = Bench(2)
    bench.run()
    before = bench.fabric.counters()
    a, b = bench.cards
    for _ in range(3):
        a.port.send(a.data(b.lid, bytes(100)))
    a.port.send(a.data(0x4000))
    bench.run()
    after = bench.fabric.counters()
    gained = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    words = (8 + 12 + 8 + 100 + 4) // 4
    assert gained == {
        "hca0.xmit_pkts": 4,
        "hca0.xmit_data": 3 * words + 9,
        "hca1.rcv_pkts": 3,
        "hca1.rcv_data": 3 * words,
        "hca0.dropped.no_route": 1,
        "switch.dropped.no_route": 1,
    }


def test_smps_on_a_data_lane_do_not_reach_the_manager() -> None:
    bench = Bench(1)
    bench.run()
    card = bench.cards[0]
    before = dict(bench.fabric.manager.counters)
    card.port.send(card.data(bench.fabric.manager.lid, bytes(256), dest_qp=0, vl=0))
    bench.run()
    assert dict(bench.fabric.manager.counters) == before
    assert bench.fabric.counters()["sa.bad_packet"] == 1


def test_it_runs_in_the_real_loop() -> None:
    from firmware.mads import packets
    from firmware.mads.sma import Sma, owns
    from vhca.fabric.fabric import Fabric
    from vhca.hw.hardware import BoardInfo

    loop = Loop()
    fabric = Fabric(loop.call_soon, loop.clock)
    loop.add_timer_source(fabric)
    sma = Sma(BoardInfo(1, 1, (1,)))
    port = fabric.add_port("h0")

    def receive(packet: Packet) -> None:
        if owns(packet.payload):
            reply, _ = sma.handle(1, packet.payload)
            if reply is not None:
                port.send(packets.reply_packet(packet, reply, sma.port(1).lid))

    port.attach(receive, lambda up: (sma.link_up(1, up), None)[1], port_info=lambda: sma.port(1).info)
    for _ in range(200):
        if fabric.active("h0"):
            break
        loop.run_once(1_000_000)
    assert fabric.active("h0")
    assert fabric.lid("h0") == sma.port(1).lid != 0
    assert loop.errors == 0
    loop.close()


@pytest.mark.parametrize("cards", [64, 254])
def test_a_full_switch_comes_up_and_every_card_reaches_every_other(cards: int) -> None:
    bench = Bench(cards, num_ports=cards)
    bench.pass_time(5)
    assert bench.fabric.active()
    assert len({card.lid for card in bench.cards}) == cards
    last = bench.cards[-1]
    for card in bench.cards[:-1]:
        card.port.send(card.data(last.lid))
        last.port.send(last.data(card.lid))
    bench.run()
    assert len(last.inbox) == cards - 1
    assert all(len(card.inbox) == 1 for card in bench.cards[:-1])
