from hypothesis import given
from hypothesis import strategies as st

from vhca.layout import Layout
from vhca.management.performance import PerformanceAgent, PortCounters
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.mad import PerfMad


def ask(agent: PerformanceAgent, method: int, attr_id: int, data: bytes | Layout = b"", modifier: int = 0) -> PerfMad:
    reply = agent.handle(
        PerfMad(
            base_version=1,
            mgmt_class=madwire.CLASS_PERF,
            class_version=1,
            method=method,
            tid=5,
            attr_id=attr_id,
            attr_mod=modifier,
            data=bytes(data).ljust(192, b"\0"),
        ).to_bytes(),
    )
    assert reply is not None
    answer = PerfMad.from_bytes(reply)
    assert (answer.method, answer.tid) == (0x81 if method == 2 else method | 0x80, 5)
    return answer


def narrow(agent: PerformanceAgent, method: int = 1, **fields: int) -> perf.PortCounters:
    answer = ask(agent, method, perf.PORT_COUNTERS, perf.PortCounters(**({"port_select": 1} | fields)))
    assert answer.status == 0
    return perf.PortCounters.from_bytes(answer.data)


def wide(agent: PerformanceAgent, method: int = 1, **fields: int) -> perf.PortCountersExtended:
    answer = ask(agent, method, perf.PORT_COUNTERS_EXTENDED, perf.PortCountersExtended(**({"port_select": 1} | fields)))
    assert answer.status == 0
    return perf.PortCountersExtended.from_bytes(answer.data)


def test_counters_are_shown_and_stick() -> None:
    counters = PortCounters(xmit_data=2**33, rcv_data=7, rcv_pkts=3, vl15_dropped=2, link_downed=300, xmit_wait=1)
    agent = PerformanceAgent({1: counters})
    shown = narrow(agent)
    assert (shown.xmit_data, shown.rcv_data, shown.rcv_pkts, shown.vl15_dropped) == (0xFFFFFFFF, 7, 3, 2)
    assert (shown.link_downed, shown.xmit_wait) == (255, 1)
    assert wide(agent).xmit_data == 2**33


def test_reset_by_select_mask_leaves_the_others() -> None:
    counters = PortCounters(xmit_pkts=10, rcv_pkts=20, multicast_rcv_pkts=4)
    agent = PerformanceAgent({1: counters})
    assert narrow(agent, 2, counter_select=1 << 14).xmit_pkts == 0
    counters.xmit_pkts += 5
    counters.rcv_pkts += 5
    shown = narrow(agent)
    assert (shown.xmit_pkts, shown.rcv_pkts) == (5, 25)
    assert wide(agent).xmit_pkts == 15
    wide(agent, 2, counter_select=1 << 7)
    assert (wide(agent).multicast_rcv_pkts, wide(agent).rcv_pkts) == (0, 25)
    assert narrow(agent, 2, counter_select2=1).xmit_wait == 0


def test_all_ports_at_once_are_a_sum_that_sticks_and_a_write_to_each() -> None:
    one, two = PortCounters(xmit_pkts=3, symbol_errors=0xFFFE, rcv_data=2**63), PortCounters(symbol_errors=4)
    two.rcv_data = 2**63 + 5
    agent = PerformanceAgent({0: one, 1: two}, all_ports=True)
    info = madwire.ClassPortInfo.from_bytes(ask(agent, 1, madwire.ATTR_CLASS_PORT_INFO).data)
    assert info.capability_mask == 0x300
    shown = narrow(agent, port_select=0xFF)
    assert (shown.port_select, shown.xmit_pkts, shown.symbol_errors) == (0xFF, 3, 0xFFFF)
    assert wide(agent, port_select=0xFF).rcv_data == 5, "64-bit counters wrap"
    assert narrow(agent, 2, port_select=0xFF, counter_select=1, symbol_errors=7).symbol_errors == 14
    assert [narrow(agent, port_select=port).symbol_errors for port in (0, 1)] == [7, 7]
    assert narrow(agent, port_select=0xFF).xmit_pkts == 3
    assert wide(agent, 2, port_select=0xFF, counter_select=0xFF).rcv_data == 0


def test_class_port_info_and_errors() -> None:
    agent = PerformanceAgent({1: PortCounters()})
    info = madwire.ClassPortInfo.from_bytes(ask(agent, 1, madwire.ATTR_CLASS_PORT_INFO).data)
    assert (info.base_version, info.class_version, info.capability_mask) == (1, 1, 0x200)
    assert ask(agent, 2, madwire.ATTR_CLASS_PORT_INFO).status == 0x0C
    assert ask(agent, 1, perf.PORT_SAMPLES_CONTROL).status == 0x0C
    assert ask(agent, madwire.METHOD_GET_TABLE, perf.PORT_COUNTERS).status == 0x08
    assert ask(agent, 1, perf.PORT_COUNTERS, b"\0\2").status == 0x1C
    assert ask(agent, 1, perf.PORT_COUNTERS_EXTENDED, b"\0\1", 1).status == 0x1C
    assert ask(agent, 1, perf.PORT_COUNTERS, b"\0\xff").status == 0x1C, "AllPortSelect is not announced"
    assert agent.handle(bytes(256)) is None
    for method in (0x81, madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS):
        assert agent.handle(PerfMad(mgmt_class=4, method=method).to_bytes()) is None
    bad = agent.handle(PerfMad(mgmt_class=4, method=1).to_bytes())
    assert bad is not None
    assert PerfMad.from_bytes(bad).status == 0x04


@given(st.binary(max_size=250), st.sampled_from([0x01, 0x12, 0x1D]), st.sampled_from([1, 2]))
def test_any_bytes_are_survived(data: bytes, attr: int, method: int) -> None:
    agent = PerformanceAgent({1: PortCounters(xmit_data=2**70)})
    mad = bytes((1, 4, 1, method)) + data[:12].ljust(13, b"\0") + bytes((attr,)) + data[12:]
    reply = agent.handle(mad.ljust(256, b"\0")[:256])
    assert reply is not None
    assert len(reply) == 256
