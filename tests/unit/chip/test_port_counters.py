"""Port counters of a whole card: announced violations are counted, and the link's counters know the link only."""

import pytest

from firmware.port_view import VIOLATIONS_MAX
from tests.packets import packet_of
from tests.support.driver import Driver
from vhca.management.notices import AT_ONCE, TIMES
from vhca.management.performance import PortCounters
from vhca.wire import smp
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.wqe import CtrlSegment, DatagramSegment, WqeOpcode
from vhca.wire.mad import (
    METHOD_TRAP,
    METHOD_TRAP_REPRESS,
    TRAP_BAD_PKEY,
    TRAP_BAD_QKEY,
    TRAP_LINK_INTEGRITY,
    Notice,
    Smp,
)
from vhca.wire.notices import KeyDetails
from vhca.wire.packet import MANAGEMENT_VL, MULTICAST_LID_FIRST, SEND, UD, Route

LID, PEER = 7, 9
QKEY = 5
GROUP = bytes.fromhex("ff12401bffff000000000000ffffffff")
ST_UD = 2
LOG_QUEUE = 4


class DatagramCard:
    """A card with an active port and one datagram queue pair in RTS, without receives."""

    def __init__(self) -> None:
        self.driver = driver = Driver()
        driver.probe()
        driver.board.link_change(1, True)
        hca = driver.board.firmware.hca  # type: ignore[attr-defined]
        self.port = hca.ports[1]
        self.info = info = self.port.managed.info
        info.lid, info.sm_lid, info.port_state = LID, 1, smp.PORT_ACTIVE
        self.port.refresh()
        self.announced = hca.capabilities.general
        self.counters: PortCounters = self.port.counters
        pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
        view = cmd.CreateQpIn()
        self.record, ring = driver.alloc(64), driver.alloc(8192)
        self.sq = ring + (16 << LOG_QUEUE + 2)
        cqn = self._cq()
        for name, value in {"st": ST_UD, "pd": pd, "uar_page": driver.uar, "log_sq_size": LOG_QUEUE,
                            "log_rq_size": LOG_QUEUE, "log_rq_stride": 2, "cqn_snd": cqn, "cqn_rcv": cqn,
                            "dbr_addr": self.record}.items():  # fmt: skip
            setattr(view.qpc, name, value)
        self.qpn = cmd.CreateQpOut.from_bytes(driver.run(Op.CREATE_QP, view, driver.pages(ring, 8192))).qpn
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            step = cmd.Rst2initQpIn(qpn=self.qpn)
            step.qpc.q_key, step.qpc.mtu, step.qpc.log_msg_max = QKEY, 5, 12
            step.qpc.primary_address_path.vhca_port_num = 1
            driver.run(op, step)
        self.posted = 0

    def _cq(self) -> int:
        driver = self.driver
        eqn, _ = driver.create_eq(4, 0, vector=1)
        view = cmd.CreateCqIn()
        view.cq_context.log_cq_size, view.cq_context.c_eqn_or_apu_element = 4, eqn
        view.cq_context.uar_page, view.cq_context.dbr_addr = driver.uar, driver.alloc(64)
        return cmd.CreateCqOut.from_bytes(driver.run(Op.CREATE_CQ, view, driver.pages(driver.alloc(4096), 4096))).cqn

    def send(self, lid: int, qpn: int, group: bytes = b"") -> None:
        """An empty datagram, with a global route if it is for a multicast group."""
        av = DatagramSegment(q_key=QKEY, ext=1, dqpn=qpn, rlid=lid, grh=int(bool(group)), rgid=group or bytes(16))
        wqe = CtrlSegment(opcode=WqeOpcode.SEND, qpn=self.qpn, ds=4, wqe_index=self.posted).to_bytes() + av.to_bytes()
        self.driver.memory.write(self.sq + self.posted * 64, wqe)
        self.posted += 1
        self.driver.memory.write(self.record + 4, self.posted.to_bytes(4, "big"))
        self.driver.bar_write(self.driver.uar * 4096 + 0x800, bytes(4) + (self.qpn << 8 | 4).to_bytes(4, "big"))
        self.driver.run_deferred()

    def receive(self, **fields: int) -> None:
        """A datagram from the link."""
        base = {"dlid": LID, "slid": PEER, "service": UD, "op": SEND, "dest_qp": self.qpn, "psn": 0, "qkey": QKEY}
        self.driver.board.packet_in(1, packet_of(**{**base, "payload": bytes(8), **fields}))
        self.driver.run_deferred()


@pytest.fixture
def card() -> DatagramCard:
    return DatagramCard()


def test_violations_that_are_announced_are_counted_and_stay_at_their_largest_value(card: DatagramCard) -> None:
    assert card.announced.qkv
    assert card.announced.pkv
    card.receive()
    assert (card.info.qkey_violations, card.info.pkey_violations) == (0, 0)
    card.receive(qkey=QKEY + 1)
    card.receive(pkey=0x8123)
    card.receive(pkey=0x8123)
    assert (card.info.qkey_violations, card.info.pkey_violations) == (1, 2)
    card.info.qkey_violations = card.info.pkey_violations = VIOLATIONS_MAX - 1
    for _ in range(3):
        card.receive(qkey=QKEY + 1)
        card.receive(pkey=0x8123)
    assert (card.info.qkey_violations, card.info.pkey_violations) == (VIOLATIONS_MAX, VIOLATIONS_MAX)


def test_what_turns_round_inside_the_card_was_never_on_the_link(card: DatagramCard) -> None:
    card.send(LID, card.qpn)
    assert not card.driver.cable.packets
    # It did arrive: there was no receive for it.
    assert card.driver.board.counters()["rx_drop_no_receive"] == 1
    assert card.counters == PortCounters()


def test_the_copy_of_a_multicast_for_members_at_the_own_port_was_not_either(card: DatagramCard) -> None:
    driver = card.driver
    driver.run(Op.ATTACH_TO_MCG, cmd.AttachToMcgIn(qpn=card.qpn, multicast_gid=GROUP))
    card.send(MULTICAST_LID_FIRST, 0xFFFFFF, GROUP)
    assert len(driver.cable.packets) == 1
    assert driver.board.counters()["rx_drop_no_receive"] == 1
    assert (card.counters.xmit_pkts, card.counters.rcv_pkts) == (1, 0)
    assert (card.counters.multicast_xmit_pkts, card.counters.multicast_rcv_pkts) == (1, 0)


def test_what_leaves_and_arrives_is_counted_once(card: DatagramCard) -> None:
    card.send(PEER, 0x99)
    card.receive()
    assert (card.counters.xmit_pkts, card.counters.rcv_pkts) == (1, 1)
    assert card.counters.xmit_data > 0
    assert card.counters.rcv_data == card.counters.xmit_data + 2


def test_what_cannot_leave_is_a_discard(card: DatagramCard) -> None:
    card.info.port_state = smp.PORT_INIT
    card.port.refresh()
    card.send(PEER, 0x99)
    assert not card.driver.cable.packets
    assert (card.counters.xmit_pkts, card.counters.xmit_discards) == (0, 1)


def test_what_the_cable_noticed_and_damaged_packets_are_counted_and_the_manager_hears_of_too_many(
    card: DatagramCard,
) -> None:
    card.driver.board.link_count(1, "symbol_errors", 3)
    card.driver.board.link_count(1, "xmit_wait", 5)
    card.driver.run_deferred()
    assert (card.counters.symbol_errors, card.counters.xmit_wait) == (3, 5)
    threshold = card.info.local_phy_errors
    for _ in range(threshold):
        card.receive(good=False)
    assert (card.counters.rcv_errors, card.counters.local_link_integrity_errors) == (threshold, 0)
    assert not card.driver.cable.packets
    card.receive(good=False)
    assert (card.counters.rcv_errors, card.counters.local_link_integrity_errors) == (threshold + 1, 1)
    notice = Notice.from_bytes(Smp.from_bytes(card.driver.cable.packets[0].payload).data.ljust(80, b"\0"))
    assert notice.trap_number == TRAP_LINK_INTEGRITY


class Told:
    """The traps that a card has sent, and its time."""

    def __init__(self, card: DatagramCard) -> None:
        self._driver = card.driver
        self._seen = 0

    def new(self) -> list[Smp]:
        packets = self._driver.cable.packets[self._seen :]
        self._seen += len(packets)
        assert all((packet.route, packet.dest_qp) == (Route(1, LID, 0, MANAGEMENT_VL), 0) for packet in packets)
        return [Smp.from_bytes(packet.payload) for packet in packets]

    def later(self, seconds: float) -> list[Smp]:
        """Let time pass, deadline by deadline; gives what was sent."""
        board, clock = self._driver.board, self._driver.clock
        end = clock.now_ns() + int(seconds * 1e9)
        while (deadline := board.next_deadline()) is not None and deadline <= end:
            clock.advance(max(0, deadline - clock.now_ns()))
            board.run_timers(clock.now_ns())
            self._driver.run_deferred()
        clock.advance(end - clock.now_ns())
        return self.new()


@pytest.mark.parametrize(
    ("fields", "trap", "key"),
    [({"qkey": QKEY + 1}, TRAP_BAD_QKEY, QKEY + 1), ({"pkey": 0x8123}, TRAP_BAD_PKEY, 0x8123)],
)
def test_the_manager_hears_of_wrong_keys_until_it_says_so(
    card: DatagramCard, fields: dict[str, int], trap: int, key: int
) -> None:
    told = Told(card)
    card.receive(src_qp=0x55, sl=3, **fields)
    (first,) = told.new()
    details = KeyDetails.from_bytes(first.data)
    assert (first.method, Notice.from_bytes(first.data + bytes(16)).trap_number) == (METHOD_TRAP, trap)
    assert (details.lid1, details.lid2, details.key, details.sl) == (PEER, LID, key, 3)
    assert (details.qp1, details.qp2, details.gid1) == (0x55, card.qpn, bytes(16))
    again = told.later(2.5)
    assert [smp.tid for smp in again] == [first.tid] * 2
    first.method = METHOD_TRAP_REPRESS
    repress = packet_of(dlid=LID, slid=1, service=UD, op=SEND, dest_qp=0, psn=0, payload=first.to_bytes(), vl=15)
    card.driver.board.packet_in(1, repress)
    card.driver.run_deferred()
    assert told.later(60) == []
    assert card.driver.board.counters()["smp_traps"] == 3


def test_a_flood_of_wrong_keys_makes_few_traps_and_ends(card: DatagramCard) -> None:
    told = Told(card)
    for _ in range(300):
        card.receive(qkey=QKEY + 1)
        card.receive(pkey=0x8123)
    assert len(told.new()) == AT_ONCE
    assert len(told.later(60)) <= 2 * TIMES
    assert told.later(600) == []
    # A card without a manager tells nobody.
    card.info.sm_lid = 0
    card.receive(qkey=QKEY + 1)
    assert told.later(60) == []
