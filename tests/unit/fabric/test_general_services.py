"""What answers on QP1 of the switch besides subnet administration, and on QP1 of cards that no driver runs."""

import pytest

from tests.support.driver import Driver
from tests.unit.fabric.bench import Bench, Card
from vhca.fabric.counters import Drop
from vhca.fabric.general_services import QUESTIONS_PER_PORT
from vhca.layout import Layout
from vhca.wire import mad as m
from vhca.wire import perf
from vhca.wire import smp as w
from vhca.wire.mad import PerfMad
from vhca.wire.notices import KeyDetails
from vhca.wire.packet import SEND, UD, Packet, Route


def question(
    attr_id: int = perf.PORT_COUNTERS, data: Layout | bytes = b"", mgmt_class: int = m.CLASS_PERF, method: int = 1
) -> bytes:
    return PerfMad(
        base_version=1,
        mgmt_class=mgmt_class,
        class_version=1,
        method=method,
        tid=0x55,
        attr_id=attr_id,
        data=bytes(data).ljust(192, b"\0"),
    ).to_bytes()


class MonitorBench(Bench):
    def __init__(self, cards: int = 2) -> None:
        super().__init__(cards, num_ports=4)
        self.run()

    def ask(self, card: Card, mad: bytes, **fields: int) -> list[PerfMad]:
        card.inbox.clear()
        fields = {"dest_qp": 1, "src_qp": 0x77, "qkey": m.QP1_QKEY} | fields
        card.port.send(card.data(self.fabric.manager.lid, mad, **fields))
        self.run()
        for packet in card.inbox:
            assert (packet.dest_qp, packet.src_qp, packet.route.slid) == (0x77, 1, self.fabric.manager.lid)
        return [PerfMad.from_bytes(packet.payload) for packet in card.inbox]

    def counters(self, card: Card, method: int = 1, **fields: int) -> perf.PortCounters:
        (answer,) = self.ask(card, question(data=perf.PortCounters(**fields), method=method))
        assert (answer.method, answer.status, answer.tid) == (0x81, 0, 0x55)
        return perf.PortCounters.from_bytes(answer.data)


def test_every_port_of_the_switch_shows_its_counters() -> None:
    bench = MonitorBench()
    one, two = bench.cards
    ports = {card: bench.fabric.ports[f"hca{n}"].switch_port for n, card in enumerate(bench.cards)}
    for _ in range(5):
        two.port.send(two.data(one.lid, bytes(64)))
    two.port.send(two.data(0x4000))
    bench.run()
    for card, port in ports.items():
        # The question itself arrived before it was answered.
        asked = int(card is one)
        before = port.counters.rcv_pkts, port.counters.xmit_pkts
        shown = bench.counters(one, port_select=port.number)
        assert (shown.rcv_pkts, shown.xmit_pkts) == (before[0] + asked, before[1])
    assert bench.counters(one, port_select=ports[two].number).rcv_switch_relay_errors == 1
    assert bench.counters(one, port_select=0).rcv_pkts > 0, "what the manager sent"
    assert bench.counters(one, port_select=0).xmit_pkts > 0, "what the manager got"
    assert bench.counters(one, port_select=4).rcv_pkts == 0, "a port without a cable"
    (answer,) = bench.ask(one, question(data=perf.PortCounters(port_select=5)))
    assert answer.status == 0x1C


def test_counters_of_all_ports_are_summed_and_reset_by_select() -> None:
    bench = MonitorBench()
    one, two = bench.cards
    total = bench.counters(one, port_select=0xFF)
    each = [bench.counters(one, port_select=port) for port in range(5)]
    assert total.rcv_pkts <= sum(shown.rcv_pkts for shown in each)
    two.port.send(two.data(0x4000))
    bench.run()
    assert bench.counters(one, port_select=0xFF).rcv_switch_relay_errors == 1
    bench.counters(one, 2, port_select=0xFF, counter_select=1 << 5)
    assert bench.counters(one, port_select=0xFF).rcv_switch_relay_errors == 0
    assert bench.counters(one, port_select=0xFF).rcv_pkts >= total.rcv_pkts, "the others stay"
    (answer,) = bench.ask(one, question(perf.PORT_COUNTERS_EXTENDED, perf.PortCountersExtended(port_select=0xFF)))
    wide = perf.PortCountersExtended.from_bytes(answer.data)
    assert answer.status == 0
    assert wide.unicast_rcv_pkts + wide.multicast_rcv_pkts == wide.rcv_pkts > 0
    (answer,) = bench.ask(one, question(m.ATTR_CLASS_PORT_INFO))
    assert m.ClassPortInfo.from_bytes(answer.data).capability_mask == 0x9300


# congestion control, and the attributes of one vendor
@pytest.mark.parametrize("attr_id", [perf.SW_PORT_VL_CONGESTION, perf.PORT_RCV_CON_CTRL, 0x0035, 0xFF00])
def test_attributes_that_it_lacks_get_a_status(attr_id: int) -> None:
    bench = MonitorBench(1)
    (answer,) = bench.ask(bench.cards[0], question(attr_id))
    assert (answer.method, answer.status, answer.attr_id) == (0x81, 0x0C, attr_id)


@pytest.mark.parametrize("mgmt_class", [0x05, 0x06, 0x08, 0x09, 0x0A, 0x21, 0x32])
def test_classes_that_it_lacks_get_a_status(mgmt_class: int) -> None:
    bench = MonitorBench(1)
    (answer,) = bench.ask(bench.cards[0], question(0x0011, mgmt_class=mgmt_class))
    assert (answer.method, answer.status, answer.mgmt_class) == (0x81, 0x0C, mgmt_class)


@pytest.mark.parametrize(
    ("mad", "fields"),
    [
        (question(), {"qkey": 1}),
        (question(), {"pkey": 0x8001}),
        (question()[:200], {}),
        (question(mgmt_class=m.CLASS_SUBN_LID), {}),
        (question(method=0x81), {}),
        (question(mgmt_class=0x07, method=m.METHOD_SEND), {}),
    ],
)
def test_what_is_no_question_to_it_is_dropped(mad: bytes, fields: dict[str, int]) -> None:
    bench = MonitorBench(1)
    assert bench.ask(bench.cards[0], mad, **fields) == []


@pytest.mark.parametrize(
    ("fields", "trap", "key", "counter"),
    [({"qkey": 1}, 258, 1, "qkey_violations"), ({"pkey": 0x8001}, 257, 0x8001, "pkey_violations")],
)
def test_wrong_keys_are_violations_of_the_management_port(
    fields: dict[str, int], trap: int, key: int, counter: str
) -> None:
    bench = MonitorBench(1)
    (card,) = bench.cards
    switch = bench.fabric.switch
    heard: list[Packet] = []
    switch.management = lambda packet, port: heard.append(packet)
    for _ in range(3):
        assert bench.ask(card, question(mgmt_class=m.CLASS_SUBN_ADM), **fields) == []
    assert (getattr(switch.ports[0].info, counter), switch.dropped()[Drop.KEYS]) == (3, 3)
    notice = m.Smp.from_bytes(heard[0].payload).data
    details = KeyDetails.from_bytes(notice)
    assert m.Notice.from_bytes(notice + bytes(16)).trap_number == trap
    assert (details.lid1, details.lid2, details.key) == (card.lid, bench.fabric.manager.lid, key)
    assert (details.qp1, details.qp2) == (0x77, 1)
    # In whatever partition of port 0 it is asked, it answers.
    switch.ports[0].pkeys = (0xFFFF, 0x8001, *[0] * 6)
    assert len(bench.ask(card, question(data=b"\0\1"), pkey=0x8001)) == 1
    assert len(bench.ask(card, question(data=b"\0\1"), pkey=0x0001)) == 1


def test_who_asks_without_end_keeps_no_other_port_waiting() -> None:
    bench = MonitorBench()
    flood, polite = bench.cards
    switch = bench.fabric.switch
    one, two = (bench.fabric.ports[f"hca{n}"].switch_port for n in (0, 1))
    mad = question(data=perf.PortCounters(port_select=0xFF))

    def ask(card: Card) -> Packet:
        return card.data(bench.fabric.manager.lid, mad, dest_qp=1, src_qp=0x77, qkey=m.QP1_QKEY)

    flood.inbox.clear()
    # All have arrived, none has had its turn.
    for _ in range(QUESTIONS_PER_PORT + 9):
        switch.receive(one, ask(flood))
    switch.receive(two, ask(polite))
    assert one.dropped[Drop.GMP_BUSY] == 9
    before = two.counters.xmit_pkts
    for _ in range(3):
        # between the two turns, the cable's own
        bench.turns.one()
    assert two.counters.xmit_pkts == before + 1, "the second turn is the other port's"
    bench.run()
    assert len(flood.inbox) == QUESTIONS_PER_PORT


def test_a_switch_without_a_manager_has_no_administration() -> None:
    bench = MonitorBench(1)
    bench.fabric.switch.management = None
    (answer,) = bench.ask(bench.cards[0], question(0x0011, mgmt_class=m.CLASS_SUBN_ADM))
    assert (answer.method, answer.status) == (0x81, 0x0C)
    assert bench.counters(bench.cards[0], port_select=1).rcv_pkts > 0


class BareCard(Driver):
    """A card with power and a LID, but without a driver."""

    def __init__(self) -> None:
        super().__init__()
        self.board.link_change(1, True)
        self.run_deferred()
        info = w.PortInfo(lid=5, sm_lid=1, gid_prefix=w.DEFAULT_GID_PREFIX)
        for state in (w.PORT_ARMED, w.PORT_ACTIVE):
            info.port_state = state
            (answer,) = self.management(self._set(info))
            assert answer[4:6] == bytes(2)

    @staticmethod
    def _set(info: w.PortInfo) -> bytes:
        return m.Smp(
            base_version=1,
            mgmt_class=m.CLASS_SUBN_LID,
            class_version=1,
            method=m.METHOD_SET,
            attr_id=w.PORT_INFO,
            attr_mod=1,
            data=info.to_bytes(),
        ).to_bytes()

    def management(self, mad: bytes, qp: int = 0, **fields: int) -> list[bytes]:
        self.cable.packets.clear()
        packet = Packet(Route(0xFFFF if not qp else 5, 1, vl=0 if qp else 15), UD, SEND, qp, 3, mad, mtu=256, src_qp=qp)
        packet.qkey = m.QP1_QKEY if qp else 0
        for name, value in fields.items():
            setattr(packet, name, value)
        self.board.packet_in(1, packet)
        self.run_deferred()
        for answer in self.cable.packets:
            assert (answer.route.dlid, answer.route.slid, answer.dest_qp) == (1, 5, qp)
        return [answer.payload for answer in self.cable.packets]


def test_a_card_without_a_driver_shows_its_counters() -> None:
    card = BareCard()
    (answer,) = card.management(question(data=perf.PortCounters(port_select=1)), 1)
    assert answer[3:6] == b"\x81\0\0"
    assert perf.PortCounters.from_bytes(answer[64:]).rcv_pkts == 3


@pytest.mark.parametrize(
    ("mad", "qp"),
    [
        (question(perf.PORT_RCV_CON_CTRL), 1),
        (question(perf.PORT_VL_OP_DATA), 1),
        (question(0x0011, mgmt_class=0x21), 1),
        (question(0x0011, mgmt_class=0x0A), 1),
        (question(0x0035, mgmt_class=m.CLASS_SUBN_ADM), 1),
        (question(w.SM_INFO, mgmt_class=m.CLASS_SUBN_LID), 0),
    ],
)
def test_a_card_without_a_driver_says_what_it_lacks(mad: bytes, qp: int) -> None:
    (answer,) = BareCard().management(mad, qp)
    assert answer[3:6] == b"\x81\0\x0c"


@pytest.mark.parametrize(
    ("mad", "qp", "fields"),
    [
        (question(), 1, {"qkey": 7}),
        (question(), 1, {"pkey": 0x8001}),
        (question(method=0x81), 1, {}),
        (question(mgmt_class=0x07, method=m.METHOD_SEND), 1, {}),
        (question(w.SM_INFO, mgmt_class=m.CLASS_SUBN_LID, method=0x81), 0, {}),
        (question(0x0002, mgmt_class=m.CLASS_SUBN_LID, method=m.METHOD_TRAP), 0, {}),
    ],
)
def test_a_card_without_a_driver_drops_the_rest(mad: bytes, qp: int, fields: dict[str, int]) -> None:
    card = BareCard()
    assert card.management(mad, qp, **fields) == []
    assert card.board.counters()["rx_drop_no_management_qp"] == 1
