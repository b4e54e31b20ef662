"""Measurements of a port's counters for a while."""

from tests.unit.management.test_performance import ask
from vhca.management.performance import PerformanceAgent, PortCounters
from vhca.management.samples import QUANTITIES, TICK_NS
from vhca.wire import perf
from vhca.wire.perf import PortSamplesControl, PortSamplesResult, PortSamplesResultExtended


def control(agent: PerformanceAgent, method: int = 1, now: int = 0, **fields: int) -> PortSamplesControl:
    """PortSamplesControl at a time in ticks, with all five quantities selected."""
    select = b"".join(number.to_bytes(2, "big") for number in QUANTITIES).ljust(30, b"\0")
    wanted = PortSamplesControl(**{"port_select": 1, **fields})
    wanted.counter_select = select
    answer = ask(agent, method, perf.PORT_SAMPLES_CONTROL, wanted, now_ns=now * TICK_NS)
    assert answer.status == 0
    return PortSamplesControl.from_bytes(answer.data)


def result(agent: PerformanceAgent, now: int) -> tuple[int, int, list[int]]:
    view = PortSamplesResult.from_bytes(ask(agent, 1, perf.PORT_SAMPLES_RESULT, now_ns=now * TICK_NS).data)
    values = [int.from_bytes(view.counters[at : at + 4], "big") for at in range(0, 60, 4)]
    return view.tag, view.sample_status, values[:5]


def test_a_measurement_begins_and_ends_in_its_time() -> None:
    counters = PortCounters(xmit_data=1000, rcv_pkts=5)
    agent = PerformanceAgent({1: PortCounters(), 2: counters}, all_ports=True)
    shown = control(agent, 2, 0, port_select=2, sample_start=10, sample_interval=20, tag=7)
    assert (shown.port_select, shown.sample_status, shown.tag) == (2, perf.SAMPLE_STARTED, 7)
    assert (shown.tick, shown.counter_width, shown.sample_start, shown.sample_interval) == (0, 4, 10, 20)
    assert agent.deadline_ns == 10 * TICK_NS
    counters.xmit_data += 100
    assert result(agent, 9) == (7, perf.SAMPLE_STARTED, [0] * 5)
    agent.run(10 * TICK_NS)
    assert agent.deadline_ns == 30 * TICK_NS
    counters.xmit_data += 23
    counters.rcv_pkts += 4
    assert result(agent, 15) == (7, perf.SAMPLE_RUNNING, [23, 0, 0, 4, 0])
    counters.xmit_data += 1
    agent.run(30 * TICK_NS)
    assert agent.deadline_ns is None
    counters.xmit_data += 5000
    assert result(agent, 99) == (7, perf.SAMPLE_DONE, [24, 0, 0, 4, 0])
    data = ask(agent, 1, perf.PORT_SAMPLES_RESULT_EXTENDED).data
    wide = PortSamplesResultExtended.from_bytes(data)
    assert (wide.tag, wide.sample_status, wide.extended_width) == (7, 0, 2)
    assert int.from_bytes(wide.counters[:8], "big") == 24


def test_one_that_is_under_way_is_not_disturbed() -> None:
    agent = PerformanceAgent({1: PortCounters()})
    control(agent, 2, 0, sample_interval=20, tag=1)
    assert control(agent, 2, 5, sample_interval=5, tag=2).tag == 1
    assert control(agent, 2, 20, sample_interval=5, tag=2).tag == 2
    assert control(agent, 1, 21).sample_status == perf.SAMPLE_RUNNING
    assert control(agent, 1, 25).sample_status == perf.SAMPLE_DONE


def test_the_longest_time_is_waited_for_by_one_deadline() -> None:
    agent = PerformanceAgent({1: PortCounters()})
    control(agent, 2, 0, sample_start=0xFFFFFFFF, sample_interval=0xFFFFFFFF)
    assert agent.deadline_ns == 0xFFFFFFFF * TICK_NS
    assert control(agent, 2, 3, sample_interval=1).sample_start == 0xFFFFFFFF


def test_what_is_refused_begins_nothing() -> None:
    agent = PerformanceAgent({1: PortCounters()})
    wanted = PortSamplesControl(port_select=1, sample_interval=5)
    wanted.counter_select = (6).to_bytes(2, "big") + bytes(28)
    assert ask(agent, 2, perf.PORT_SAMPLES_CONTROL, wanted).status == 0x1C
    assert ask(agent, 2, perf.PORT_SAMPLES_CONTROL, PortSamplesControl(port_select=2)).status == 0x1C
    assert ask(agent, 1, perf.PORT_SAMPLES_RESULT, modifier=1).status == 0x1C
    assert ask(agent, 2, perf.PORT_SAMPLES_RESULT).status == 0x0C
    assert agent.deadline_ns is None
