from typing import Any

import pytest

from firmware.mads.port import EVENT_ACTIVE, EVENT_CLIENT_REREGISTER, EVENT_DOWN, EVENT_INITIALIZED, EVENT_LID
from tests.unit.fabric.bench import Bench
from tests.unit.mads.smps import smp as smp_request
from vhca.fabric.counters import Drop
from vhca.fabric.link import Link
from vhca.fabric.switch import Switch
from vhca.management.packets import smp_packet
from vhca.wire import mad as madwire
from vhca.wire import smp
from vhca.wire.mad import Smp


@pytest.mark.parametrize("cards", range(2, 9))
def test_all_ports_become_active_by_smp_alone(cards: int) -> None:
    bench = Bench(cards)
    bench.run()
    lids = [card.lid for card in bench.cards]
    assert all(card.state == smp.PORT_ACTIVE for card in bench.cards)
    assert len({*lids, bench.fabric.manager.lid, 0}) == cards + 2
    assert bench.fabric.active()
    assert bench.fabric.active("hca0")
    assert [bench.fabric.lid(f"hca{n}") for n in range(cards)] == lids
    for card in bench.cards:
        assert card.sma.port(1).sm_lid == bench.fabric.manager.lid
        assert [event.subtype for event in card.events] == [
            EVENT_INITIALIZED,
            EVENT_LID,
            EVENT_CLIENT_REREGISTER,
            EVENT_ACTIVE,
        ]
    for a in bench.cards:
        for b in bench.cards:
            if a is not b:
                a.port.send(a.data(b.lid))
    bench.run()
    assert all(len(card.inbox) == cards - 1 for card in bench.cards)
    assert not bench.fabric.switch.dropped()
    assert bench.fabric.counters().get("sm.refused_sets", 0) == 0


def test_clients_hear_that_they_must_register_with_the_lid_before_the_port_is_armed() -> None:
    bench = Bench(1)
    card = bench.cards[0]
    seen: list[tuple[int, int]] = []
    handle = card.sma.handle

    def watch(port: int, mad: bytes, **more: Any) -> object:
        request = Smp.from_bytes(mad)
        if (request.method, request.attr_id) == (madwire.METHOD_SET, smp.PORT_INFO):
            wanted = smp.PortInfo.from_bytes(request.data)
            seen.append((wanted.port_state, wanted.client_reregister))
        return handle(port, mad, **more)

    card.sma.handle = watch  # type: ignore[method-assign, assignment]
    bench.run()
    assert seen == [(smp.PORT_NOP, 1), (smp.PORT_ARMED, 0), (smp.PORT_ACTIVE, 0)]
    # An active port is left alone by the next sweep; one that lost its link hears it again.
    seen.clear()
    bench.fabric.manager.sweep()
    bench.run()
    assert seen == []
    card.port.bounce()
    bench.run()
    assert seen == [(smp.PORT_NOP, 1), (smp.PORT_ARMED, 0), (smp.PORT_ACTIVE, 0)]


def test_a_lost_order_to_register_is_given_with_the_activation() -> None:
    bench = Bench(1)
    card = bench.cards[0]
    handle = card.sma.handle

    def deaf(port: int, mad: bytes, **more: Any) -> object:
        request = Smp.from_bytes(mad)
        lost = request.method == madwire.METHOD_SET and smp.PortInfo.from_bytes(request.data).port_state == smp.PORT_NOP
        return (None, []) if lost else handle(port, mad, **more)

    card.sma.handle = deaf  # type: ignore[method-assign, assignment]
    bench.pass_time(2)
    assert [event.subtype for event in card.events][-2:] == [EVENT_CLIENT_REREGISTER, EVENT_ACTIVE]


def test_an_empty_fabric_settles_and_a_late_card_is_found() -> None:
    bench = Bench(0)
    bench.run()
    assert bench.fabric.manager.settled
    assert bench.fabric.manager.lid == 1
    assert not bench.fabric.active("hca0") if "hca0" in bench.fabric.ports else True
    card = bench.add_card()
    bench.run()
    assert card.state == smp.PORT_ACTIVE


def test_lids_stay_with_their_guid() -> None:
    bench = Bench(3)
    bench.run()
    lids = [card.lid for card in bench.cards]
    bench.fabric.link_down("hca0")
    bench.run()
    assert bench.cards[0].state == smp.PORT_DOWN
    assert bench.cards[0].events[-1].subtype == EVENT_DOWN
    assert not bench.fabric.active("hca0")
    assert bench.fabric.active("hca1", "hca2")
    bench.cards[1].port.send(bench.cards[1].data(lids[0]))
    bench.run()
    assert bench.fabric.switch.dropped() == {Drop.NO_ROUTE: 1}
    bench.fabric.link_up("hca0")
    bench.run()
    assert [card.lid for card in bench.cards] == lids
    assert bench.fabric.active()


def test_a_reset_card_comes_back() -> None:
    bench = Bench(2)
    bench.run()
    card = bench.cards[0]
    before = card.lid
    card.port.bounce()
    bench.run()
    assert (card.state, card.lid) == (smp.PORT_ACTIVE, before)
    assert bench.fabric.active()
    card.port.detach()
    bench.run()
    assert not card.port.up


def test_a_card_that_lost_its_state_silently_is_found_by_the_light_sweep() -> None:
    bench = Bench(2)
    bench.run()
    card = bench.cards[0]
    before = card.lid
    card.sma = type(card.sma)(card.sma.board)
    card.sma.link_up(1, True)
    bench.pass_time(11)
    assert (card.state, card.lid) == (smp.PORT_ACTIVE, before)
    assert bench.fabric.counters()["sm.light_sweeps"] == 1


def test_a_silent_card_is_asked_again_and_later_swept_again() -> None:
    bench = Bench(2)
    bench.cards[0].silent = True
    bench.run()
    assert not bench.fabric.active()
    bench.pass_time(1.5)
    assert bench.fabric.manager.transactions.timeouts >= 1
    assert bench.cards[1].state == smp.PORT_ACTIVE
    bench.cards[0].silent = False
    bench.pass_time(5)
    assert bench.cards[0].state == smp.PORT_ACTIVE
    assert bench.fabric.active()


def test_lost_smps_are_repeated() -> None:
    from vhca.fabric.faults import Fault

    bench = Bench(2)
    for name in ("hca0", "hca1"):
        bench.fabric.add_fault(name, Fault("drop", probability=0.3, management=True))
    bench.pass_time(30)
    assert bench.fabric.active()
    assert bench.fabric.counters()["hca0.dropped.cable_fault"] > 0


def test_capability_change_trap_is_thanked_for_and_swept() -> None:
    bench = Bench(2)
    bench.run()
    card = bench.cards[0]
    sweeps = bench.fabric.counters()["sm.heavy_sweeps"]
    mask = card.sma.port(1).info.capability_mask | smp.CAP_COMMUNICATION_MANAGEMENT
    card.sma.set_capability_mask(1, mask, bench.clock.now_ns())
    card.tell()
    bench.run()
    assert not card.sma.port(1).notices, "the manager's answer ends it"
    counters = bench.fabric.counters()
    assert counters["sm.traps"] >= 1
    assert counters["sm.heavy_sweeps"] == sweeps + 1
    assert bench.fabric.active()


def test_sm_info_is_answered_as_master() -> None:
    bench = Bench(1)
    bench.run()
    card = bench.cards[0]
    request = smp_request(madwire.METHOD_GET, smp.SM_INFO)
    card.port.send(smp_packet(request, bench.fabric.manager.lid, card.lid))
    directed = Smp.from_bytes(smp_request(madwire.METHOD_GET, smp.SM_INFO, directed=True))
    directed.initial_path = b"\0\1" + bytes(62)
    directed.hop_pointer = 1
    card.port.send(smp_packet(directed.to_bytes(), 0xFFFF, 0xFFFF))
    bench.run()
    answers = [Smp.from_bytes(packet.payload) for packet in card.inbox]
    assert [answer.method for answer in answers] == [0x81, 0x81]
    for answer in answers:
        info = smp.SmInfo.from_bytes(answer.data)
        assert (info.guid, info.priority, info.sm_state) == (bench.fabric.switch.node_guid, 14, 3)


def test_two_switches_in_a_row_and_a_circle() -> None:
    bench = Bench(2)
    second = Switch(bench.turns.call_soon, 0xBB, 8, "second")
    third = Switch(bench.turns.call_soon, 0xCC, 8, "third")

    def cable(a: Switch, b: Switch) -> None:
        link = Link(bench.turns.call_soon, lambda delay, fn: None, f"{a.name}", f"{b.name}")
        a.free_port().plug(link.a)
        b.free_port().plug(link.b)

    cable(bench.fabric.switch, second)
    cable(second, third)
    cable(third, bench.fabric.switch)
    # Two cards move to the far switches: their cables end there instead of at the first switch.
    far = [bench.add_card(), bench.add_card()]
    for card, switch in zip(far, (second, third), strict=True):
        link = card.port.link
        old = card.port.switch_port
        old.end = None
        switch.free_port().plug(link.b)
    bench.run()
    bench.pass_time(15)
    everybody = [*bench.cards, *far]
    assert all(card.state == smp.PORT_ACTIVE for card in everybody)
    assert (second.lid, third.lid) != (0, 0)
    for a in everybody:
        for b in everybody:
            if a is not b:
                a.port.send(a.data(b.lid))
    bench.run()
    assert [len(card.inbox) for card in everybody] == [3, 3, 3, 3]
