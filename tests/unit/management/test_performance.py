from hypothesis import given
from hypothesis import strategies as st

from vhca.layout import Layout
from vhca.management.performance import PerformanceAgent, PortCounters, data_words
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.mad import PerfMad
from vhca.wire.packet import RC, SEND, Packet, Route


def ask(
    agent: PerformanceAgent, method: int, attr_id: int, data: bytes | Layout = b"", modifier: int = 0, now_ns: int = 0
) -> PerfMad:
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
        now_ns,
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
    assert (info.capability_mask, info.capability_mask2) == (0x9300, 2)
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
    assert (info.base_version, info.class_version, info.capability_mask) == (1, 1, 0x9200)
    assert ask(agent, 2, madwire.ATTR_CLASS_PORT_INFO).status == 0x0C
    assert ask(agent, madwire.METHOD_GET_TABLE, perf.PORT_COUNTERS).status == 0x08
    assert ask(agent, 1, perf.PORT_COUNTERS, b"\0\2").status == 0x1C
    assert ask(agent, 1, perf.PORT_COUNTERS_EXTENDED, b"\0\1", 1).status == 0x1C
    assert ask(agent, 1, perf.PORT_COUNTERS, b"\0\xff").status == 0x1C, "AllPortSelect is not announced"
    assert agent.handle(bytes(256), 0) is None
    for method in (0x81, madwire.METHOD_TRAP, madwire.METHOD_TRAP_REPRESS):
        assert agent.handle(PerfMad(mgmt_class=4, method=method).to_bytes(), 0) is None
    bad = agent.handle(PerfMad(mgmt_class=4, method=1).to_bytes(), 0)
    assert bad is not None
    assert PerfMad.from_bytes(bad).status == 0x04


ATTRIBUTES = [
    *range(0x10, 0x20),
    *range(0x30, 0x38),
]
SUPPORTED = {0x10, 0x11, 0x12, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1D, 0x1E, 0x1F, 0x36, 0x37}


def test_every_attribute_is_there_or_refused() -> None:
    """Those of congestion control are not: there is none. Nor is what nobody counts."""
    agent = PerformanceAgent({1: PortCounters()})
    found = {attr for attr in ATTRIBUTES if ask(agent, 1, attr, b"\0\1").status == 0}
    assert found == SUPPORTED
    refused = {ask(agent, method, attr, b"\0\1").status for attr in set(ATTRIBUTES) - found for method in (1, 2)}
    assert refused == {0x0C}
    card = PerformanceAgent({1: PortCounters()}, by_lane=False)
    assert {attr for attr in ATTRIBUTES if ask(card, 1, attr, b"\0\1").status == 0} == SUPPORTED - {0x19, 0x1A}


def test_extended_errors_and_details_with_their_selects() -> None:
    names = perf.COUNTER_SELECT2_EXTENDED
    counters = PortCounters()
    for number, name in enumerate(names):
        setattr(counters, name, 2**33 + number)
    counters.mtu_discards, counters.looping_errors, counters.local_physical_errors = 7, 70_000, 3
    agent = PerformanceAgent({1: counters})
    shown = wide(agent)
    assert [getattr(shown, name) for name in names] == [2**33 + number for number in range(len(names))]
    shown = wide(agent, 2, counter_select2=1 << 13 | 1 << 2, link_downed=5)
    assert (shown.link_downed, shown.qp1_dropped, shown.symbol_errors) == (5, 0, 2**33)
    assert narrow(agent, 2, counter_select2=2).qp1_dropped == 0
    errors = perf.PortRcvErrorDetails.from_bytes(ask(agent, 1, perf.PORT_RCV_ERROR_DETAILS, b"\0\1").data)
    assert (errors.local_physical_errors, errors.looping_errors) == (3, 0xFFFF)
    reset = perf.PortXmitDiscardDetails(port_select=1, counter_select=2)
    discards = ask(agent, 2, perf.PORT_XMIT_DISCARD_DETAILS, reset).data
    assert perf.PortXmitDiscardDetails.from_bytes(discards).mtu_discards == 0
    counters.mtu_discards += 2
    discards = ask(agent, 1, perf.PORT_XMIT_DISCARD_DETAILS, b"\0\1").data
    assert perf.PortXmitDiscardDetails.from_bytes(discards).mtu_discards == 2


def lanes(agent: PerformanceAgent, attr: int, port: int = 1) -> list[int]:
    data = ask(agent, 1, attr, bytes((0, port))).data[4:68]
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, 64, 4)]


def test_what_passed_is_shown_by_service_level_and_lane() -> None:
    counters = PortCounters()
    agent = PerformanceAgent({1: counters})

    def packet(sl: int, vl: int) -> Packet:
        return Packet(Route(5, 6, sl, vl), RC, SEND, 1, 0, bytes(100), mtu=256)

    words = data_words(packet(0, 0))
    for sl, vl in ((0, 0), (0, 0), (5, 1), (5, 1), (15, 3)):
        counters.sent(packet(sl, vl), words)
        counters.received(packet(sl, vl), words)
    counters.sent_many(10, 1000, 5)
    counters.received_many(10, 1000, 0, 2)
    assert lanes(agent, perf.PORT_XMIT_DATA_SL) == [2 * words, *[0] * 4, 2 * words + 1000, *[0] * 9, words]
    assert lanes(agent, perf.PORT_RCV_DATA_SL) == [2 * words + 1000, *[0] * 4, 2 * words, *[0] * 9, words]
    assert lanes(agent, perf.PORT_VL_OP_DATA)[:4] == [2 * words, 2 * words, 1000, words]
    packets = ask(agent, 1, perf.PORT_VL_OP_PACKETS, b"\0\1").data[4:12]
    assert packets.hex() == "00020002000a0001"
    both = perf.PairOfCounters.from_bytes(ask(agent, 1, perf.PORT_OP_RCV_COUNTERS, b"\0\1").data)
    assert (both.first, both.second) == (counters.rcv_pkts, counters.rcv_data)
    reset = perf.LaneWords(port_select=1, counter_select=1 << 5 | 1, counters=(9).to_bytes(4, "big") + bytes(60))
    ask(agent, 2, perf.PORT_XMIT_DATA_SL, reset)
    assert lanes(agent, perf.PORT_XMIT_DATA_SL) == [9, *[0] * 14, words]
    assert sum(lanes(agent, perf.PORT_VL_OP_DATA)) == counters.rcv_data


def test_lanes_of_all_ports_are_a_sum_that_sticks() -> None:
    one, two = PortCounters(xmit_data=2**31), PortCounters(xmit_data=2**31 + 9)
    agent = PerformanceAgent({1: one, 2: two}, all_ports=True)
    assert lanes(agent, perf.PORT_XMIT_DATA_SL, 2)[0] == 2**31 + 9
    assert lanes(agent, perf.PORT_XMIT_DATA_SL, 255)[0] == 0xFFFFFFFF
    ask(agent, 2, perf.PORT_XMIT_DATA_SL, perf.LaneWords(port_select=255, counter_select=0xFFFF))
    assert lanes(agent, perf.PORT_XMIT_DATA_SL, 255) == [0] * 16


@given(
    st.binary(max_size=250),
    st.one_of(st.sampled_from([0x01, *ATTRIBUTES]), st.integers(0, 0xFF)),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_any_bytes_are_survived_and_a_refused_set_changes_nothing(
    data: bytes, attr: int, method: int, by_lane: bool
) -> None:
    counters = PortCounters(xmit_data=2**70, qp1_dropped=3)
    agent = PerformanceAgent({1: counters}, by_lane=by_lane)
    before = [ask(agent, 1, other, b"\0\1").data for other in SUPPORTED]
    mad = bytes((1, 4, 1, method)) + data[:12].ljust(13, b"\0") + bytes((attr,)) + data[12:]
    reply = agent.handle(mad.ljust(256, b"\0")[:256], 0)
    assert reply is not None
    assert len(reply) == 256
    if method == 1 or PerfMad.from_bytes(reply).status:
        assert [ask(agent, 1, other, b"\0\1").data for other in SUPPORTED] == before
