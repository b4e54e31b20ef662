"""Both ends of a cable agree: what a manager orders at one end is seen at the other, and an order gets its answer."""

import pytest

from firmware.mads.port import EVENT_ACTIVE, EVENT_CLIENT_REREGISTER, EVENT_DOWN, EVENT_INITIALIZED
from tests.support.driver import Driver
from tests.unit.fabric.bench import Bench, Card
from vhca.fabric.counters import CableDrop
from vhca.fabric.port import SwitchPort
from vhca.management.packets import smp_packet
from vhca.management.subnet import LINK_CHANGE_NS
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID, SEND, UD, Packet, Route

UP_AGAIN = [EVENT_DOWN, EVENT_INITIALIZED, EVENT_CLIENT_REREGISTER, EVENT_ACTIVE]


class CableBench(Bench):
    """Cards 0 and 1, whose tools send SMPs as a diagnostic program does: by LID, with what they have just read."""

    def __init__(self) -> None:
        super().__init__(2, num_ports=4)
        self.run()
        for card in self.cards:
            card.events.clear()

    def port(self, card: int) -> SwitchPort:
        return self.fabric.ports[f"hca{card}"].switch_port

    def smp(self, card: Card, lid: int, method: int, port: int, info: w.PortInfo | None = None, mkey: int = 0) -> Smp:
        card.inbox.clear()
        request = Smp(
            base_version=1,
            mgmt_class=m.CLASS_SUBN_LID,
            class_version=1,
            method=method,
            tid=0x99,
            attr_id=w.PORT_INFO,
            attr_mod=port | w.PORT_INFO_EXTENDED_SPEEDS,
            mkey=mkey,
            data=bytes(64) if info is None else info.to_bytes(),
        )
        card.port.send(smp_packet(request.to_bytes(), lid, card.lid))
        self.run()
        (packet,) = card.inbox
        return Smp.from_bytes(packet.payload)

    def order(self, card: Card, lid: int, port: int, physical: int) -> w.PortInfo:
        """What ibportstate does; gives the PortInfo of the answer."""
        mkey = self.mkey(lid)
        info = w.PortInfo.from_bytes(self.smp(card, lid, m.METHOD_GET, port, mkey=mkey).data)
        info.port_state, info.port_physical_state = w.PORT_NOP, physical
        info.link_width_enabled = info.link_speed_enabled = info.link_speed_ext_enabled = 0
        answer = self.smp(card, lid, m.METHOD_SET, port, info, mkey)
        assert answer.status == 0
        return w.PortInfo.from_bytes(answer.data)

    def mkey(self, lid: int) -> int:
        """The key of the node with this LID, as an administrator has it from the manager."""
        for card in self.cards:
            if card.lid == lid:
                return card.sma.port(1).info.mkey
        return self.fabric.switch.ports[0].info.mkey

    def settle(self) -> None:
        self.pass_time(3)


@pytest.fixture
def bench() -> CableBench:
    return CableBench()


def states(info: w.PortInfo) -> tuple[int, int]:
    return info.port_state, info.port_physical_state


def test_a_card_that_is_disabled_is_gone_for_the_switch_too(bench: CableBench) -> None:
    one, two = bench.cards
    answer = bench.order(one, two.lid, 1, w.PHYS_DISABLED)
    assert states(answer) == (w.PORT_DOWN, w.PHYS_DISABLED)
    bench.settle()
    assert states(two.sma.port(1).info) == (w.PORT_DOWN, w.PHYS_DISABLED)
    assert states(bench.port(1).info) == (w.PORT_DOWN, w.PHYS_POLLING)
    assert [event.subtype for event in two.events] == [EVENT_DOWN]
    assert bench.fabric.ports["hca1"].counters()["link_downed"] == 1
    # No SMP passes, along any route; the manager has noticed and the other card goes on.
    assert bench.fabric.lid("hca1") == 0
    assert not bench.fabric.active("hca1")
    assert bench.fabric.active("hca0")
    two.port.send(smp_packet(Smp(base_version=1, mgmt_class=1, method=1).to_bytes(), 1, two.lid))
    assert bench.fabric.ports["hca1"].link.dropped[CableDrop.LINK_DOWN] == 1
    # The card does not come back with its cable.
    bench.fabric.link_down("hca1")
    bench.fabric.link_up("hca1")
    bench.settle()
    assert states(bench.port(1).info) == (w.PORT_DOWN, w.PHYS_POLLING)


def test_a_switch_port_that_is_disabled_is_down_for_its_card_too(bench: CableBench) -> None:
    one, two = bench.cards
    answer = bench.order(one, bench.fabric.manager.lid, 2, w.PHYS_DISABLED)
    assert states(answer) == (w.PORT_DOWN, w.PHYS_DISABLED)
    bench.settle()
    assert states(bench.port(1).info) == (w.PORT_DOWN, w.PHYS_DISABLED)
    assert states(two.sma.port(1).info) == (w.PORT_DOWN, w.PHYS_POLLING)
    assert [event.subtype for event in two.events] == [EVENT_DOWN]
    bench.order(one, bench.fabric.manager.lid, 2, w.PHYS_POLLING)
    bench.settle()
    assert bench.fabric.active("hca0", "hca1")
    assert [event.subtype for event in two.events] == UP_AGAIN


@pytest.mark.parametrize("at_the_switch", [False, True])
def test_a_reset_of_a_port_is_seen_at_both_ends(bench: CableBench, at_the_switch: bool) -> None:
    one, two = bench.cards
    lid, port = (bench.fabric.manager.lid, 2) if at_the_switch else (two.lid, 1)
    answer = bench.order(one, lid, port, w.PHYS_POLLING)
    assert states(answer) == (w.PORT_DOWN, w.PHYS_POLLING)
    bench.settle()
    assert [event.subtype for event in two.events] == UP_AGAIN
    assert bench.fabric.ports["hca1"].counters()["link_downed"] == 1
    assert bench.fabric.active("hca0", "hca1")


def test_who_cuts_its_own_cable_still_gets_the_answer(bench: CableBench) -> None:
    one, _ = bench.cards
    # The port of the switch that the order comes in by, and the answer goes out of.
    assert states(bench.order(one, bench.fabric.manager.lid, 1, w.PHYS_POLLING)) == (w.PORT_DOWN, w.PHYS_POLLING)
    bench.settle()
    assert [event.subtype for event in one.events] == UP_AGAIN
    assert bench.fabric.active("hca0", "hca1")


class PoweredCard(Driver):
    """A card with a real board, its cable, and a manager at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[bool] = []
        self.cable.set_enabled = self._switched  # type: ignore[method-assign]
        self._link(True)

    def _switched(self, enabled: bool) -> None:
        if enabled != self.cable.enabled:
            self.cable.enabled = enabled
            self.changes.append(enabled)
            self._link(enabled)

    def _link(self, up: bool) -> None:
        self.board.link_change(1, up)
        self.run_deferred()

    def set_port(self, **fields: int) -> w.PortInfo:
        info = w.PortInfo(lid=5, sm_lid=1, gid_prefix=w.DEFAULT_GID_PREFIX, **fields)
        request = Smp(
            base_version=1,
            mgmt_class=m.CLASS_SUBN_LID,
            class_version=1,
            method=m.METHOD_SET,
            attr_id=w.PORT_INFO,
            attr_mod=1,
            data=info.to_bytes(),
        )
        self.cable.packets.clear()
        self.board.packet_in(1, Packet(Route(PERMISSIVE_LID, 1, vl=15), UD, SEND, 0, 3, request.to_bytes(), mtu=256))
        self.run_deferred()
        (answer,) = self.cable.packets
        return w.PortInfo.from_bytes(Smp.from_bytes(answer.payload).data)

    def pass_time(self, ns: int) -> None:
        end = self.clock.now_ns() + ns
        while (deadline := self.board.next_deadline()) is not None and deadline <= end:
            self.clock.advance(max(0, deadline - self.clock.now_ns()))
            self.board.run_timers(self.clock.now_ns())
            self.run_deferred()
        self.clock.advance(end - self.clock.now_ns())

    def reset(self, reason: str) -> None:
        self.board.reset(reason)
        self.run_deferred()

    @property
    def info(self) -> w.PortInfo:
        return self.board.firmware.agents.ports[1].managed.info  # type: ignore[attr-defined, no-any-return]


def test_the_board_takes_the_link_down_after_the_answer_and_lets_it_train() -> None:
    card = PoweredCard()
    assert states(card.set_port(port_physical_state=w.PHYS_POLLING)) == (w.PORT_DOWN, w.PHYS_POLLING)
    assert card.changes == []
    card.pass_time(LINK_CHANGE_NS)
    assert card.changes == [False, True]
    assert states(card.info) == (w.PORT_INIT, w.PHYS_LINK_UP)
    card.set_port(port_physical_state=w.PHYS_DISABLED)
    card.pass_time(LINK_CHANGE_NS)
    assert card.changes == [False, True, False]
    card.pass_time(60_000_000_000)
    assert states(card.info) == (w.PORT_DOWN, w.PHYS_DISABLED)


@pytest.mark.parametrize(("reason", "comes_back"), [("device", True), ("software", True), ("flr", False)])
@pytest.mark.parametrize("waited", [False, True])
def test_which_resets_end_a_disabled_port(reason: str, comes_back: bool, waited: bool) -> None:
    card = PoweredCard()
    card.set_port(port_physical_state=w.PHYS_DISABLED)
    if waited:
        card.pass_time(LINK_CHANGE_NS)
    card.reset(reason)
    card.pass_time(10_000_000_000)
    assert card.cable.enabled == comes_back
    assert states(card.info) == ((w.PORT_INIT, w.PHYS_LINK_UP) if comes_back else (w.PORT_DOWN, w.PHYS_DISABLED))


def test_a_reset_at_rest_leaves_the_link_alone_and_no_timer_raises_it_later() -> None:
    card = PoweredCard()
    card.reset("device")
    assert card.changes == []
    card.set_port(port_physical_state=w.PHYS_POLLING)
    card.reset("lost_connection")
    # Now the slot has no power: the cable goes down from outside and stays so.
    card.cable.set_enabled(False)
    card.changes.clear()
    card.pass_time(10_000_000_000)
    assert card.changes == []
