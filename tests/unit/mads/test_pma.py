from hypothesis import given
from hypothesis import strategies as st

from firmware.mads.pma import Pma, PortCounters
from vhca.layout import Layout
from vhca.wire import mad as madwire
from vhca.wire import perf
from vhca.wire.mad import PerfMad


def ask(pma: Pma, method: int, attr_id: int, data: bytes | Layout = b"", modifier: int = 0) -> PerfMad:
    reply = pma.handle(
        1,
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
    assert (answer.method, answer.tid) == (0x81, 5)
    return answer


def narrow(pma: Pma, method: int = 1, **fields: int) -> perf.PortCounters:
    answer = ask(pma, method, perf.PORT_COUNTERS, perf.PortCounters(port_select=1, **fields))
    assert answer.status == 0
    return perf.PortCounters.from_bytes(answer.data)


def wide(pma: Pma, method: int = 1, **fields: int) -> perf.PortCountersExtended:
    answer = ask(pma, method, perf.PORT_COUNTERS_EXTENDED, perf.PortCountersExtended(port_select=1, **fields))
    assert answer.status == 0
    return perf.PortCountersExtended.from_bytes(answer.data)


def test_counters_are_shown_and_stick() -> None:
    counters = PortCounters(xmit_data=2**33, rcv_data=7, rcv_pkts=3, vl15_dropped=2, link_downed=300, xmit_wait=1)
    pma = Pma({1: counters})
    shown = narrow(pma)
    assert (shown.xmit_data, shown.rcv_data, shown.rcv_pkts, shown.vl15_dropped) == (0xFFFFFFFF, 7, 3, 2)
    assert (shown.link_downed, shown.xmit_wait) == (255, 1)
    assert wide(pma).xmit_data == 2**33


def test_reset_by_select_mask_leaves_the_others() -> None:
    counters = PortCounters(xmit_pkts=10, rcv_pkts=20, multicast_rcv_pkts=4)
    pma = Pma({1: counters})
    assert narrow(pma, 2, counter_select=1 << 14).xmit_pkts == 0
    counters.xmit_pkts += 5
    counters.rcv_pkts += 5
    shown = narrow(pma)
    assert (shown.xmit_pkts, shown.rcv_pkts) == (5, 25)
    assert wide(pma).xmit_pkts == 15
    wide(pma, 2, counter_select=1 << 7)
    assert (wide(pma).multicast_rcv_pkts, wide(pma).rcv_pkts) == (0, 25)
    assert narrow(pma, 2, counter_select2=1).xmit_wait == 0


def test_class_port_info_and_errors() -> None:
    pma = Pma({1: PortCounters()})
    info = madwire.ClassPortInfo.from_bytes(ask(pma, 1, madwire.ATTR_CLASS_PORT_INFO).data)
    assert (info.base_version, info.class_version, info.capability_mask) == (1, 1, 0x200)
    assert ask(pma, 2, madwire.ATTR_CLASS_PORT_INFO).status == 0x08
    assert ask(pma, 1, perf.PORT_SAMPLES_CONTROL).status == 0x0C
    assert ask(pma, 5, perf.PORT_COUNTERS).status == 0x08
    assert ask(pma, 1, perf.PORT_COUNTERS, b"\0\2").status == 0x1C
    assert ask(pma, 1, perf.PORT_COUNTERS_EXTENDED, b"\0\1", 1).status == 0x1C
    assert pma.handle(2, bytes(256)) is None
    assert pma.handle(1, PerfMad(mgmt_class=4, method=0x81).to_bytes()) is None
    bad = pma.handle(1, PerfMad(mgmt_class=4, method=1).to_bytes())
    assert bad is not None
    assert PerfMad.from_bytes(bad).status == 0x04


@given(st.binary(max_size=250), st.sampled_from([0x01, 0x12, 0x1D]), st.sampled_from([1, 2]))
def test_any_bytes_are_survived(data: bytes, attr: int, method: int) -> None:
    pma = Pma({1: PortCounters(xmit_data=2**70)})
    mad = bytes((1, 4, 1, method)) + data[:12].ljust(13, b"\0") + bytes((attr,)) + data[12:]
    reply = pma.handle(1, mad.ljust(256, b"\0")[:256])
    assert reply is not None
    assert len(reply) == 256
