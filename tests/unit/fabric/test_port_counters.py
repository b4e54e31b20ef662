"""What ports of a switch count and measure, read as a monitor reads it."""

import pytest

from tests.unit.fabric.bench import Bench
from tests.unit.fabric.test_general_services import MonitorBench, question
from tests.unit.fabric.test_switch import SwitchBench, data
from tests.unit.fabric.test_through import ways
from tests.unit.mads.smps import port_info
from vhca.management.performance import data_words
from vhca.management.samples import TICK_NS
from vhca.wire import perf, smp
from vhca.wire.mad import METHOD_SET
from vhca.wire.packet import RC, SEND, Packet, Route


def test_why_packets_were_errors_or_discarded() -> None:
    bench = SwitchBench()
    for packet in (data(50), data(0), data(0xC001), data(11), data(12, good=False), data(12, sl=1)):
        bench.smp(1, METHOD_SET, smp.SL_TO_VL, 0x0102, bytes((0x0F, *[0] * 7)))
        bench.send(1, packet)
    arrival = bench.switch.ports[1].counters
    assert (arrival.dlid_mapping_errors, arrival.looping_errors, arrival.vl_mapping_errors) == (3, 1, 1)
    assert arrival.rcv_switch_relay_errors == 5
    assert (arrival.local_physical_errors, arrival.malformed_errors, arrival.rcv_errors) == (1, 0, 1)
    departure = bench.switch.ports[2].counters
    bench.send(1, data(12, payload=bytes(4096), mtu=4096))
    bench.switch.ports[2].set_mtu(smp.MTU_2048)
    bench.send(1, data(12, payload=bytes(4096), mtu=4096))
    bench.switch.ports[2].move(smp.PORT_ARMED)
    bench.send(1, data(12))
    assert (departure.mtu_discards, departure.inactive_discards, departure.xmit_discards) == (1, 1, 2)


@pytest.mark.parametrize(("code", "lanes"), [(1, 1), (2, 2), (3, 4)])
def test_lanes_that_are_not_operational_pass_nothing(code: int, lanes: int) -> None:
    """OperationalVLs of the port of arrival, and of the port of departure."""
    for port in (1, 2):
        bench = SwitchBench()
        answer = bench.smp(1, METHOD_SET, smp.PORT_INFO, port, port_info(operational_vls=code).to_bytes())
        assert smp.PortInfo.from_bytes(answer.data).operational_vls == code
        came = [bool(bench.send(1, data(12, sl=vl, vl=vl if port == 1 else 0))) for vl in range(5)]
        # Of service level 4 the lane is 0 again; lane 4 was never there.
        assert came == [vl < lanes for vl in range(4)] + [port == 2]
        dropped = sum(not passed for passed in came)
        counters = bench.switch.ports[1].counters
        if port == 1:
            assert bench.switch.dropped() == ({"vl": dropped} if dropped else {})
            assert counters.malformed_errors == counters.rcv_errors == dropped
        else:
            assert bench.switch.dropped() == ({"sl_to_vl": dropped} if dropped else {})
            assert counters.vl_mapping_errors == counters.rcv_switch_relay_errors == dropped
    bench = SwitchBench()
    assert bench.smp(1, METHOD_SET, smp.PORT_INFO, 2, port_info(operational_vls=4).to_bytes()).status & 0x7FFF == 0x1C


def test_a_way_closes_for_service_levels_without_an_operational_lane() -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    for sl in (0, 1):
        found = a.port.through(Route(b.lid, a.lid, sl), Route(a.lid, b.lid, sl))
        assert found is not None
        assert found[0].is_open(4096)
        b.port.switch_port.set_data_vls(1)
        assert found[0].is_open(4096) is (sl == 0)
        b.port.switch_port.set_data_vls(3)


def test_what_a_train_passes_is_counted_by_service_level_and_lane() -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    found = a.port.through(Route(b.lid, a.lid, 5), Route(a.lid, b.lid, 5))
    assert found is not None
    packet = Packet(Route(b.lid, a.lid, 5), RC, SEND, 5, 0, bytes(100), mtu=256)
    words = data_words(packet)
    a.port.send(packet)
    bench.run()
    near, far = a.port.switch_port.counters.lanes, b.port.switch_port.counters.lanes
    assert near is not None
    assert far is not None
    assert (near.rcv_sl[5], far.xmit_sl[5], near.rcv_vl_pkts[1:4]) == (words, words, [0, 0, 0])
    found[0].passed(10, 10 * words, 4, 40)
    bench.fabric.wires.settle()
    assert (near.rcv_sl[5], far.xmit_sl[5]) == (11 * words, 11 * words)
    assert (far.rcv_sl[5], near.xmit_sl[5]) == (40, 40)
    way, _ = ways(bench)
    way.passed(1, words, 0, 0)
    bench.fabric.wires.settle()
    assert near.rcv_sl[5] == 11 * words, "service level 0 is what is left"


def jammed() -> tuple[SwitchBench, list[int]]:
    """A switch with packets that cannot leave at port 2, and its clock."""
    bench = SwitchBench()
    now = [0]
    bench.switch._now_ns = lambda: now[0]
    bench.plugs[1].full = True
    for _ in range(600):
        bench.plugs[0].link.a.send(data(12, payload=bytes(4096), mtu=4096))
    for _ in range(40):
        bench.turns.one()
    assert bench.switch.ports[2].full
    return bench, now


def test_data_that_waits_for_a_full_cable_is_counted_in_ticks() -> None:
    bench, now = jammed()
    out = bench.switch.ports[2]
    now[0] = 40 * TICK_NS
    out.settle_wait(now[0])
    assert out.counters.xmit_wait == 40
    now[0] = 55 * TICK_NS
    bench.plugs[1].full = False
    bench.turns.run()
    assert out.counters.xmit_wait == 55
    now[0] = 99 * TICK_NS
    out.settle_wait(now[0])
    assert out.counters.xmit_wait == 55, "nothing waits"


def test_what_waits_for_longer_than_hoq_life_is_dropped_one_by_one_and_then_all() -> None:
    bench, now = jammed()
    out = bench.switch.ports[2]
    life = 4096 << 10

    def dropped_by(time_ns: int) -> int:
        now[0] = time_ns
        for _ in range(60):
            bench.turns.one()
        return out.counters.hoq_discards

    assert dropped_by(1 << 60) == 0, "for ever, until a manager says otherwise"
    out.info.hoq_life, out.info.vl_stall_count = 10, 3
    start = now[0] = 2 << 60
    out.give_up(start)
    out._given_up = 0
    assert dropped_by(start + life - 1) == 0
    assert dropped_by(start + life) == 1
    assert dropped_by(start + 2 * life - 1) == 1
    assert dropped_by(start + 2 * life) == 2
    # The third one stalls the port: all go that come.
    assert dropped_by(start + 3 * life) > 20
    waiting = dropped_by(start + 3 * life + 1)
    assert bench.switch.dropped() == {"hoq": waiting}
    assert out.counters.xmit_discards == waiting
    bench.plugs[1].full = False
    bench.turns.run()
    assert len(bench.plugs[1].inbox) == 600 - out.counters.hoq_discards


def test_a_switch_measures_for_a_while_by_the_clock_of_a_cable() -> None:
    bench = MonitorBench(2)
    one, two = bench.cards
    control = perf.PortSamplesControl(port_select=2, sample_start=250_000, sample_interval=500_000, tag=9)
    control.counter_select = (4).to_bytes(2, "big") + bytes(28)

    def result() -> perf.PortSamplesResult:
        (answer,) = bench.ask(one, question(perf.PORT_SAMPLES_RESULT))
        return perf.PortSamplesResult.from_bytes(answer.data)

    (answer,) = bench.ask(one, question(perf.PORT_SAMPLES_CONTROL, control, method=METHOD_SET))
    assert answer.status == 0
    for _ in range(3):
        two.port.send(two.data(one.lid))
    bench.run()
    assert result().sample_status == perf.SAMPLE_STARTED
    bench.pass_time(0.002)
    for _ in range(5):
        two.port.send(two.data(one.lid))
    bench.pass_time(0.002)
    for _ in range(7):
        two.port.send(two.data(one.lid))
    bench.run()
    shown = result()
    assert (shown.tag, shown.sample_status, shown.counters[:4].hex()) == (9, perf.SAMPLE_DONE, "00000005")
    (answer,) = bench.ask(one, question(perf.PORT_SAMPLES_CONTROL, perf.PortSamplesControl(port_select=2)))
    assert perf.PortSamplesControl.from_bytes(answer.data).tag == 9
