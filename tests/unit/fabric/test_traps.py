"""What ports of a switch, cards and simulated hosts tell their manager, and how often."""

import pytest

from tests.unit.fabric.bench import Bench
from tests.unit.fabric.test_switch import SwitchBench, data
from tests.unit.mads.smps import port_info
from tests.unit.mads.smps import smp as smp_request
from vhca.management.notices import TIMES
from vhca.management.packets import smp_packet
from vhca.wire import smp
from vhca.wire.mad import ATTR_NOTICE, METHOD_GET, METHOD_SET, METHOD_TRAP, METHOD_TRAP_REPRESS, Notice, Smp
from vhca.wire.notices import MKeyDetails, PortErrorDetails

MANAGER = 9


def managed(num_ports: int = 4) -> SwitchBench:
    """A switch whose manager sits at its port 0, and only listens."""
    bench = SwitchBench(num_ports)
    zero = bench.switch.ports[0].info
    zero.lid = zero.sm_lid = MANAGER
    bench.switch.lft[MANAGER] = 0
    return bench


def told(bench: SwitchBench) -> list[Smp]:
    return [Smp.from_bytes(p.payload) for p in bench.managed if p.payload[3] == METHOD_TRAP]


def number_of(trap: Smp) -> int:
    return Notice.from_bytes(trap.data + bytes(16)).trap_number


def pass_calls(bench: SwitchBench) -> int:
    """Run what waits for a time at any cable; gives how many calls there were."""
    calls = [fn for plug in bench.plugs for fn in plug.later]
    for plug in bench.plugs:
        plug.later.clear()
    for fn in calls:
        fn()
    bench.turns.run()
    return len(calls)


def test_a_link_that_falls_is_told_until_the_manager_says_that_it_knows() -> None:
    bench = Bench(2)
    bench.run()
    agent, zero = bench.fabric.switch.agent, bench.fabric.switch.ports[0]
    before = bench.fabric.counters().get("sm.traps", 0)
    bench.fabric.link_down("hca1")
    bench.run()
    assert bench.fabric.counters().get("sm.traps", 0) == before + 1
    assert not zero.notices, "repressed"
    bench.pass_time(20)
    assert bench.fabric.counters().get("sm.traps", 0) == before + 1
    assert agent.traps(zero, bench.clock.now_ns()) == []


def test_a_manager_that_is_silent_hears_it_again_and_again_and_then_no_more() -> None:
    bench = Bench(2)
    bench.run()
    heard: list[int] = []
    bench.fabric.switch.management = lambda packet, port: heard.append(packet.payload[3])
    bench.fabric.link_down("hca1")
    bench.pass_time(2)
    assert 2 <= heard.count(METHOD_TRAP) <= 3
    bench.pass_time(60)
    assert heard.count(METHOD_TRAP) == TIMES


def test_more_damaged_packets_than_the_threshold_are_told_with_their_port() -> None:
    bench = managed()
    bench.smp(1, METHOD_SET, smp.PORT_INFO, 1, port_info(local_phy_errors=5).to_bytes())
    for _ in range(5):
        bench.send(1, data(12, good=False))
    for _ in range(3):
        bench.send(1, data(12))
    for _ in range(3):
        bench.send(1, data(12, good=False))
    counters = bench.switch.ports[1].counters
    assert (told(bench), counters.local_link_integrity_errors) == ([], 0), "each good packet takes one away"
    bench.send(1, data(12, good=False))
    (trap,) = told(bench)
    details = PortErrorDetails.from_bytes(trap.data)
    assert (number_of(trap), details.lid, details.port) == (129, MANAGER, 1)
    assert (counters.local_link_integrity_errors, counters.local_physical_errors, counters.rcv_errors) == (1, 9, 9)


def test_a_wrong_key_is_told_with_the_route_that_it_came_by() -> None:
    bench = managed()
    zero = bench.switch.ports[0].info
    zero.mkey, zero.mkey_protect_bits = 0x1234, 2
    request = smp_request(METHOD_SET, smp.PORT_INFO, 2, port_info(), mkey=0x4321, directed=True)
    assert bench.send(3, smp_packet(request, 0xFFFF, 0xFFFF)) == []
    (trap,) = told(bench)
    details = MKeyDetails.from_bytes(trap.data)
    assert (number_of(trap), details.lid, details.mkey) == (256, 0xFFFF, 0x4321)
    assert (details.method, details.attr_id, details.attr_mod) == (METHOD_SET, smp.PORT_INFO, 2)
    assert (details.hops, details.return_path[0], details.dr_slid) == (0x81, 3, 0xFFFF)
    request = smp_request(METHOD_GET, smp.PORT_INFO, 2, mkey=1)
    bench.send(3, smp_packet(request, MANAGER, 13))
    details = MKeyDetails.from_bytes(told(bench)[-1].data)
    assert (details.lid, details.hops, details.return_path) == (13, 0, bytes(30))


def test_only_who_has_the_key_represses_and_reads_notices() -> None:
    bench = managed()
    zero = bench.switch.ports[0]
    zero.info.mkey, zero.info.mkey_protect_bits = 0x1234, 2
    bench.send(3, smp_packet(smp_request(METHOD_GET, smp.PORT_INFO, 0, mkey=1), MANAGER, 13))
    (trap,) = told(bench)

    def repress(mkey: int) -> None:
        trap.method, trap.mkey = METHOD_TRAP_REPRESS, mkey
        bench.send(3, smp_packet(trap.to_bytes(), MANAGER, 13))

    repress(5)
    assert len(zero.notices) == 1
    reading = Smp.from_bytes(smp_request(METHOD_GET, ATTR_NOTICE, mkey=0x1234))
    assert bench.send(3, smp_packet(reading.to_bytes(), MANAGER, 13)) == [3]
    shown = Smp.from_bytes(bench.plugs[2].inbox[-1].payload)
    assert (shown.status, number_of(shown)) == (0, 256)
    taking = Smp.from_bytes(smp_request(METHOD_SET, ATTR_NOTICE, 0, shown.data, mkey=0x1234))
    bench.send(3, smp_packet(taking.to_bytes(), MANAGER, 13))
    assert len(zero.notices) == 0
    bench.send(3, smp_packet(smp_request(METHOD_GET, smp.PORT_INFO, 0, mkey=1), MANAGER, 13))
    trap = told(bench)[-1]
    repress(0x1234)
    assert len(zero.notices) == 0


def test_whatever_comes_one_call_of_a_cable_s_clock_waits_for_each_port() -> None:
    bench = managed()
    zero = bench.switch.ports[0].info
    zero.mkey, zero.mkey_protect_bits = 0x1234, 2
    wrong = smp_packet(smp_request(METHOD_GET, smp.PORT_INFO, 0, mkey=1), MANAGER, 13)
    for _ in range(200):
        bench.send(3, wrong)
        for _ in range(16):
            bench.send(1, data(12, good=False))
    assert len(told(bench)) <= 16
    assert sum(len(plug.later) for plug in bench.plugs) == 1


@pytest.mark.parametrize("mask", [0, smp.CAP_TRAP])
def test_a_port_tells_only_if_it_can_and_has_a_manager(mask: int) -> None:
    bench = managed()
    zero = bench.switch.ports[0].info
    zero.capability_mask = mask
    zero.sm_lid = MANAGER if not mask else 0
    bench.plugs[0].link.a.set_enabled(False)
    bench.turns.run()
    assert told(bench) == []
    assert bench.switch.agent.info.port_state_change == 1
    assert pass_calls(bench) == 0
