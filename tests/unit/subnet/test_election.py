"""Two subnet managers on one fabric: one is master, the other one waits, and takes over when the first is gone."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from firmware.mads.port import EVENT_CLIENT_REREGISTER
from tests.unit.fabric.bench import Bench, Card
from tests.unit.isolation.smps import Forger
from vhca.fabric.fabric import ManagerStatus
from vhca.fabric.link import Link
from vhca.fabric.switch import Switch
from vhca.management.packets import smp_packet
from vhca.subnet.election import POLL_NS, POLLS_LOST, Election, Rival
from vhca.subnet.manager import SubnetManager
from vhca.wire import mad as m
from vhca.wire import smp
from vhca.wire.mad import METHOD_GET, METHOD_SET
from vhca.wire.smp import SmInfo

DISCOVERING, STANDBY, MASTER = smp.SM_STATE_DISCOVERING, smp.SM_STATE_STANDBY, smp.SM_STATE_MASTER
NOTACTIVE = smp.SM_STATE_NOTACTIVE
PATIENCE_S = (POLLS_LOST + 2) * (POLL_NS / 1e9 + 0.3)


def anybody(_guid: int) -> bool:
    return True


class TwoSwitches(Bench):
    """Two cards at the fabric's switch, and a second switch with a manager of its own inside."""

    def __init__(self, priority: int = 5, guid: int = 0xFFFF_0000, **fabric: Any) -> None:
        super().__init__(2, **dict[str, Any]({"heirs": anybody, "mkey": 0} | fabric))
        self.first = self.fabric.manager
        self.far = Switch(self.turns.call_soon, guid, 8, "far", self.clock.now_ns, self.fabric.wires)
        link = Link(self.turns.call_soon, lambda _delay, _fn: None, "near", "far", self.fabric.wires)
        self.fabric.switch.free_port().plug(link.a)
        self.far.free_port().plug(link.b)
        self.second = SubnetManager(
            self.far.send_from_management,
            self.clock.now_ns,
            call_soon=self.turns.call_soon,
            random=Random(2),
            mkey=0,
            priority=priority,
            heirs=anybody,
        )

    def join(self) -> None:
        """The second manager begins to work."""
        self.far.management = self.second.receive
        self.far.ports[0].info.capability_mask |= smp.CAP_IS_SM
        self.second.start()

    def die(self) -> None:
        """The second manager is gone, without a word."""
        self.far.management = None
        self.far.ports[0].info.capability_mask &= ~smp.CAP_IS_SM
        self.second.transactions._pending.clear()
        self.second._poll_due_ns = self.second._light_due_ns = self.second._heavy_due_ns = None

    def pass_time(self, seconds: float) -> None:
        """Of both managers."""
        for _ in range(int(seconds * 10)):
            super().pass_time(0.1)
            if self.far.management is not None:
                self.second.run_timers(self.clock.now_ns())
                self.run()

    @property
    def states(self) -> tuple[int, int]:
        return self.first.election.state, self.second.election.state

    def served_by(self, manager: SubnetManager) -> None:
        """Every port is active and knows this manager; data gets through."""
        assert self.fabric.active(*self.fabric.ports)
        assert [card.sma.port(1).sm_lid for card in self.cards] == [manager.lid] * 2
        a, b = self.cards
        b.inbox.clear()
        a.port.send(a.data(b.lid))
        self.run()
        assert [packet.payload for packet in b.inbox] == [b"data"]


@pytest.mark.parametrize("order", ["the better one comes later", "both at once"])
def test_the_higher_priority_is_master_and_the_other_one_takes_over_when_it_dies(order: str) -> None:
    bench = TwoSwitches(priority=5)
    if order != "both at once":
        bench.run()
        assert bench.states[0] == MASTER
        bench.served_by(bench.first)
    bench.join()
    bench.pass_time(15)
    assert bench.states == (STANDBY, MASTER)
    assert bench.fabric.manager_state == "standby"
    name = bench.fabric.switch.name
    ours = ManagerStatus(name, bench.fabric.switch.node_guid, 1, "standby", True)
    assert bench.fabric.managers() == [ManagerStatus("far", 0xFFFF_0000, 5, "master", False), ours]
    bench.served_by(bench.second)
    lids = [card.lid for card in bench.cards]
    for card in bench.cards:
        card.events.clear()
    bench.die()
    bench.pass_time(PATIENCE_S)
    assert bench.states[0] == MASTER
    assert bench.fabric.managers() == [replace(ours, state="master")]
    bench.served_by(bench.first)
    assert [card.lid for card in bench.cards] == lids, "whoever is master, ports keep what they have"
    for card in bench.cards:
        # Once, and while the port stays active: what it told the other one this one does not know.
        assert [event.subtype for event in card.events].count(EVENT_CLIENT_REREGISTER) == 1
    counters = bench.fabric.counters()
    assert (counters["sm.handovers"] if order != "both at once" else 1, counters["sm.takeovers"]) == (1, 1)


@pytest.mark.parametrize(("guid", "states"), [(0x10, (STANDBY, MASTER)), (0xFFFF_FFFF_0000_0000, (MASTER, STANDBY))])
def test_of_equals_the_lower_guid_is_master(guid: int, states: tuple[int, int]) -> None:
    bench = TwoSwitches(priority=1, guid=guid)
    bench.run()
    bench.join()
    bench.pass_time(15)
    assert bench.states == states
    bench.served_by(bench.second if states[1] == MASTER else bench.first)


def test_a_worse_one_waits_and_a_standby_that_gets_the_subnet_acknowledges() -> None:
    bench = TwoSwitches(priority=0)
    bench.run()
    bench.join()
    bench.pass_time(3)
    assert bench.states == (MASTER, STANDBY)
    acknowledged = []
    order = bench.first.election.order

    def watch(number: int, sender: SmInfo) -> Any:
        acknowledged.append((number, sender.sm_state))
        return order(number, sender)

    bench.first.election.order = watch  # type: ignore[method-assign]
    bench.second.election.priority = 7  # as an administrator raises it
    bench.pass_time(12)
    assert bench.states == (STANDBY, MASTER)
    assert acknowledged == [(smp.SM_ACKNOWLEDGE, STANDBY)]
    bench.served_by(bench.second)


def test_tables_that_the_other_one_wrote_are_cleared() -> None:
    bench = TwoSwitches(priority=5)
    bench.run()
    switch = bench.fabric.switch
    sources = []
    order = bench.second.election.order

    def watch(number: int, sender: SmInfo) -> Any:
        sources.append([port.source for port in switch.ports[1:3]])
        return order(number, sender)

    bench.second.election.order = watch  # type: ignore[method-assign]
    bench.join()
    bench.pass_time(15)
    assert bench.states == (STANDBY, MASTER)
    assert sources == [[(0, 0), (0, 0)]], "the next one may not know that switches look"
    switch.mft[0xC123] = 0b110
    switch.set_linear(40, b"\1")
    bench.die()
    bench.pass_time(PATIENCE_S)
    bench.served_by(bench.first)
    assert 0xC123 not in switch.mft
    assert [port.source[0] for port in switch.ports[1:3]] == [card.lid for card in bench.cards]


def test_nobody_else_than_an_heir_gets_the_subnet() -> None:
    bench = TwoSwitches(priority=15, heirs=lambda guid: guid == 0x1000)
    bench.run()
    bench.join()
    bench.pass_time(15)
    assert bench.states == (MASTER, STANDBY)
    bench.served_by(bench.first)


def info_of(card: Card, bench: Bench) -> SmInfo:
    (answer,) = Forger(bench, card).by_lid(bench.fabric.switch.lid, METHOD_GET, smp.SM_INFO)
    return SmInfo.from_bytes(answer.data)


ORDERS = {
    "handover": smp.SM_HANDOVER,
    "acknowledge": smp.SM_ACKNOWLEDGE,
    "disable": smp.SM_DISABLE,
    "standby": smp.SM_STANDBY,
    "discover": smp.SM_DISCOVER,
}
# Which orders a manager in each state takes, and what it is then, before it did anything.
TAKEN = {
    (DISCOVERING, "handover"): DISCOVERING,
    (STANDBY, "handover"): MASTER,
    (STANDBY, "acknowledge"): STANDBY,
    (STANDBY, "disable"): NOTACTIVE,
    (STANDBY, "discover"): DISCOVERING,
    (NOTACTIVE, "standby"): STANDBY,
    (MASTER, "handover"): MASTER,
    (MASTER, "acknowledge"): MASTER,
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("state", [NOTACTIVE, DISCOVERING, STANDBY, MASTER])
def test_orders_as_the_state_machine_has_them(state: int, name: str) -> None:
    election = Election(heirs=anybody)
    election.state = state
    rightful = STANDBY if name == "acknowledge" else MASTER
    status, _ = election.order(ORDERS[name], SmInfo(guid=0x77, sm_state=rightful))
    wanted = TAKEN.get((state, name))
    assert (status, election.state) == ((0, wanted) if wanted is not None else (m.STATUS_INVALID_FIELD, state))
    for wrong in {NOTACTIVE, DISCOVERING, STANDBY, MASTER} - {rightful}:
        election.state = state
        assert election.order(ORDERS[name], SmInfo(guid=0x77, sm_state=wrong)) == (m.STATUS_INVALID_FIELD, "nothing")
    assert election.order(9, SmInfo(guid=0x77, sm_state=MASTER))[0] == m.STATUS_INVALID_FIELD


def test_a_disabled_manager_is_silent_until_it_is_told_to_stand_by() -> None:
    bench = TwoSwitches(priority=5)
    bench.join()
    bench.pass_time(15)
    forger = Forger(bench, bench.cards[0])
    claim = SmInfo(guid=bench.second.guid, sm_state=MASTER, priority=5)
    before = bench.fabric.counters().get("sm.orders", 0)
    (answer,) = forger.by_lid(bench.fabric.switch.lid, METHOD_SET, smp.SM_INFO, smp.SM_DISABLE, claim)
    assert (answer.status, SmInfo.from_bytes(answer.data).sm_state) == (0, STANDBY)
    assert info_of(bench.cards[0], bench).sm_state == NOTACTIVE
    bench.die()
    bench.pass_time(PATIENCE_S)
    assert bench.states[0] == NOTACTIVE
    forger.by_lid(bench.fabric.switch.lid, METHOD_SET, smp.SM_INFO, smp.SM_STANDBY, claim)
    bench.pass_time(PATIENCE_S)
    assert bench.states[0] == MASTER
    assert bench.fabric.counters()["sm.orders"] == before + 2


def test_orders_need_the_key_where_there_is_one() -> None:
    bench = TwoSwitches(priority=0, mkey=0x1234)
    bench.pass_time(1)
    bench.first.election.state = STANDBY
    claim = SmInfo(guid=0x77, sm_state=MASTER)
    forger = Forger(bench, bench.cards[0])
    (answer,) = forger.by_lid(bench.fabric.switch.lid, METHOD_SET, smp.SM_INFO, smp.SM_DISABLE, claim)
    assert answer.status == m.STATUS_INVALID_FIELD
    assert bench.first.election.state == STANDBY
    assert bench.fabric.counters()["sm.refused_orders"] == 1


def test_ranks_and_polls() -> None:
    election = Election(5, anybody)
    election.guid = 100
    assert election.is_better(SmInfo(guid=200, priority=6))
    assert election.is_better(SmInfo(guid=99, priority=5))
    assert not election.is_better(SmInfo(guid=101, priority=5))
    assert not election.may_lead(100), "nobody is his own heir"
    rivals = [Rival((n, 1), SmInfo(guid=n, priority=n % 9, sm_state=STANDBY)) for n in range(200, 220)]
    heir = election.heir(rivals)
    assert heir is not None
    assert (heir.info.priority, heir.info.guid) == (8, 206)
    election.follow(heir)
    alive = SmInfo(guid=206, priority=8, sm_state=MASTER)
    for answer in (None, SmInfo(guid=5, sm_state=MASTER), SmInfo(guid=206, priority=0, sm_state=STANDBY), None):
        assert election.polled(answer)
    assert election.polled(alive), "one answer makes up for those that were lost"
    assert all(election.polled(None) for _ in range(POLLS_LOST - 1))
    assert not election.polled(None)
    assert election.state == DISCOVERING
    for priority in (-1, 16):
        with pytest.raises(ValueError, match="0 to 15"):
            Election(priority)


def test_a_flood_of_orders_takes_little() -> None:
    """Without a key anybody can give orders in the heir's name; they make nobody's work grow."""
    bench = TwoSwitches(priority=0)
    bench.run()
    bench.join()
    bench.pass_time(12)
    assert bench.states == (MASTER, STANDBY)
    claim = SmInfo(guid=bench.second.guid, sm_state=MASTER, priority=15)
    forger = Forger(bench, bench.cards[0])
    order = forger.smp(m.CLASS_SUBN_LID, METHOD_SET, smp.SM_INFO, smp.SM_HANDOVER, claim)
    sweeps = bench.fabric.counters()["sm.heavy_sweeps"]
    most = 0
    for _ in range(300):
        bench.cards[0].port.send(smp_packet(order.to_bytes(), bench.fabric.switch.lid, bench.cards[0].lid))
    while bench.turns._queue:
        bench.turns.one()
        most = max(most, len(bench.first.transactions._works))
    assert most <= 4
    assert bench.fabric.counters()["sm.heavy_sweeps"] <= sweeps + 17
    bench.pass_time(20)
    bench.served_by(bench.first)
    assert bench.first.settled
