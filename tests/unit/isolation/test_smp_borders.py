"""A guest's root forges SMPs: with M_Keys nothing happens, without them it works and the manager sets it right."""

from collections.abc import Callable
from random import Random

import pytest

from firmware.mads import packets
from firmware.model.counters import SmpCount
from tests.unit.fabric.bench import Bench, Card
from tests.unit.isolation.smps import Forger
from vhca.fabric.counters import Drop
from vhca.fabric.link import Link
from vhca.fabric.switch import Switch
from vhca.management.packets import smp_packet
from vhca.subnet.manager import LIGHT_SWEEP_NS
from vhca.subnet.multicast import IPOIB_BROADCAST
from vhca.subnet.transactions import Request, Transactions, Work
from vhca.wire import mad as m
from vhca.wire import sa
from vhca.wire import smp as w
from vhca.wire.mad import METHOD_GET, METHOD_SET, Smp
from vhca.wire.packet import MULTICAST_LID_FIRST, Packet

ONE_SWEEP_S = LIGHT_SWEEP_NS / 1e9 + 1


class Stage:
    """Card 0 attacks, cards 1 and 2 talk to each other."""

    def __init__(self, mkey: int | None) -> None:
        self.bench = Bench(3, mkey=mkey)
        self.bench.run()
        self.attacker, self.victim, self.other = self.bench.cards
        self.forger = Forger(self.bench, self.attacker)
        self.switch = self.bench.fabric.switch
        self.victim_port = self.switch.ports[2]

    def power_cycle(self, card: Card) -> None:
        card.port.set_enabled(False)
        card.sma = type(card.sma)(card.sma.board)
        self.bench.run()
        card.port.set_enabled(True)

    def heard(self) -> list[Card]:
        """Who gets what `other` sends to the victim."""
        for card in self.bench.cards:
            card.inbox.clear()
        self.other.port.send(self.other.data(self.victim.lid))
        self.bench.run()
        return [card for card in self.bench.cards if any(p.payload == b"data" for p in card.inbox)]

    @property
    def healthy(self) -> bool:
        return self.bench.fabric.active() and self.heard() == [self.victim]


Attack = Callable[[Stage], list[Smp]]


def disable_victim(stage: Stage) -> list[Smp]:
    info = stage.victim.sma.port(1).info
    return stage.forger.set_port_info(stage.victim.lid, info, 1, port_physical_state=w.PHYS_DISABLED)


def disable_victim_by_route(stage: Stage) -> list[Smp]:
    info = w.PortInfo.from_bytes(stage.victim.sma.port(1).info.to_bytes())
    info.port_state, info.port_physical_state = 0, w.PHYS_DISABLED
    return stage.forger.by_route((2,), METHOD_SET, w.PORT_INFO, 1, info)


def change_victims_lid(stage: Stage) -> list[Smp]:
    return stage.forger.set_port_info(stage.victim.lid, stage.victim.sma.port(1).info, 1, lid=99)


def rewrite_linear_table(stage: Stage) -> list[Smp]:
    """What is for the victim goes to the attacker."""
    table = bytearray(stage.switch.lft[:64])
    table[stage.victim.lid] = 1
    return stage.forger.by_lid(stage.switch.lid, METHOD_SET, w.LINEAR_FORWARDING_TABLE, 0, bytes(table))


def cut_linear_table(stage: Stage) -> list[Smp]:
    info = w.SwitchInfo.from_bytes(stage.switch.agent.info.to_bytes())
    info.linear_fdb_top, info.port_state_change = 0, 0
    return stage.forger.by_lid(stage.switch.lid, METHOD_SET, w.SWITCH_INFO, 0, info)


def disable_victims_switch_port(stage: Stage) -> list[Smp]:
    info = stage.victim_port.info
    return stage.forger.set_port_info(stage.switch.lid, info, 2, port_physical_state=w.PHYS_DISABLED)


def free_attackers_sources(stage: Stage) -> list[Smp]:
    return stage.forger.by_lid(stage.switch.lid, METHOD_SET, w.SOURCE_LIDS, 0, bytes(64))


def take_victims_pkeys(stage: Stage) -> list[Smp]:
    return stage.forger.by_lid(stage.victim.lid, METHOD_SET, w.P_KEY_TABLE, 0, b"\x80\x01" * 16)


def give_victim_guids(stage: Stage) -> list[Smp]:
    return stage.forger.by_lid(stage.victim.lid, METHOD_SET, w.GUID_INFO, 0, b"\x77" * 64)


# Whoever disabled its port is not on the cable any more: no manager reaches it.
UNREACHABLE: list[Attack] = [disable_victim, disable_victim_by_route]
REPAIRABLE: list[Attack] = [
    change_victims_lid,
    rewrite_linear_table,
    cut_linear_table,
    disable_victims_switch_port,
    free_attackers_sources,
    take_victims_pkeys,
    give_victim_guids,
]


def state_of(stage: Stage) -> tuple[object, ...]:
    port = stage.victim.sma.port(1)
    ports = [(p.state, p.disabled, p.source) for p in stage.switch.ports]
    # PortStateChange is about what happened, not about how things are.
    switch = w.SwitchInfo.from_bytes(stage.switch.agent.info.to_bytes())
    switch.port_state_change = 0
    info = w.PortInfo.from_bytes(port.info.to_bytes())
    info.mkey_violations = 0
    return bytes(stage.switch.lft), dict(stage.switch.mft), ports, switch, info, list(port.pkeys), list(port.guids)


@pytest.mark.parametrize("attack", UNREACHABLE + REPAIRABLE)
def test_forged_sets_are_not_even_answered(attack: Attack) -> None:
    stage = Stage(None)
    before = state_of(stage)
    assert attack(stage) == []
    assert state_of(stage) == before
    assert stage.healthy


@pytest.mark.parametrize("attack", REPAIRABLE)
def test_without_a_key_they_work_and_one_sweep_repairs_them(attack: Attack) -> None:
    stage = Stage(0)
    before = state_of(stage)
    # Whoever lost its LID cannot even answer: its switch knows who hangs there.
    assert not any(answer.status & 0x7FFF for answer in attack(stage))
    assert state_of(stage) != before, "this attack changes nothing: it shows nothing"
    stage.bench.pass_time(ONE_SWEEP_S)
    assert state_of(stage) == before
    assert stage.healthy


@pytest.mark.parametrize("attack", UNREACHABLE)
def test_without_a_key_a_port_can_be_disabled_until_its_machine_starts_again(attack: Attack) -> None:
    stage = Stage(0)
    attack(stage)
    stage.bench.pass_time(ONE_SWEEP_S)
    assert stage.victim.state == w.PORT_DOWN
    stage.power_cycle(stage.victim)
    stage.bench.pass_time(1)
    assert stage.healthy


@pytest.mark.parametrize(
    ("attr", "modifier"),
    [
        (w.NODE_INFO, 0),
        (w.NODE_DESCRIPTION, 0),
        (w.PORT_INFO, 0),
        (w.P_KEY_TABLE, 0),
        (w.GUID_INFO, 0),
        (w.SWITCH_INFO, 0),
        (w.LINEAR_FORWARDING_TABLE, 0),
        (w.MULTICAST_FORWARDING_TABLE, 0),
        (w.SOURCE_LIDS, 0),
    ],
)
def test_reading_needs_the_key_too(attr: int, modifier: int) -> None:
    stage = Stage(None)
    assert stage.forger.by_lid(stage.victim.lid, METHOD_GET, attr, modifier) == []
    assert stage.forger.by_lid(stage.switch.lid, METHOD_GET, attr, modifier) == []
    assert stage.forger.by_route((), METHOD_GET, attr, modifier) == []
    assert stage.forger.by_route((2,), METHOD_GET, attr, modifier) == []
    assert stage.switch.dropped()[Drop.BAD_MKEY] == 2
    assert stage.victim.sma.counters[SmpCount.SMP_BAD_MKEY] == 2


def test_a_key_on_the_victims_port_or_the_switch_cannot_be_set() -> None:
    stage = Stage(None)
    for lid, info in (
        (stage.victim.lid, stage.victim.sma.port(1).info),
        (stage.switch.lid, stage.switch.ports[0].info),
    ):
        key = info.mkey
        assert stage.forger.set_port_info(lid, info, mkey=0x666, mkey_protect_bits=3) == []
        assert info.mkey == key != 0
    late = stage.bench.add_card()
    stage.bench.run()
    assert late.state == w.PORT_ACTIVE


def test_every_port_has_a_key_of_its_own_and_none_can_be_read() -> None:
    stage = Stage(None)
    infos = [card.sma.port(1).info for card in stage.bench.cards] + [stage.switch.ports[0].info]
    assert len({info.mkey for info in infos}) == 4
    assert {(info.mkey_protect_bits, info.mkey_lease_period) for info in infos} == {(2, 60)}
    assert len({Bench(1).fabric.manager.keys.switches for _ in range(2)}) == 1, "the bench is seeded"
    # The host's own interface ignores keys, and shows none.
    request = Smp(base_version=1, mgmt_class=1, class_version=1, method=METHOD_GET, attr_id=w.PORT_INFO)
    reply, _ = stage.attacker.sma.handle(1, request.to_bytes(), ignore_mkey=True)
    assert reply is not None
    assert w.PortInfo.from_bytes(Smp.from_bytes(reply).data).mkey == 0


def test_a_lease_that_ran_out_on_an_unplugged_port_tells_that_ports_key_only() -> None:
    stage = Stage(None)
    stage.bench.fabric.link_down("hca0")
    stage.bench.run()
    request = Smp(base_version=1, mgmt_class=1, class_version=1, method=METHOD_GET, attr_id=w.PORT_INFO).to_bytes()
    guard_ns = stage.bench.clock.now_ns()
    assert stage.attacker.sma.handle(1, request, now_ns=guard_ns) == (None, [])
    reply, _ = stage.attacker.sma.handle(1, request, now_ns=guard_ns + 61_000_000_000)
    assert reply is not None
    mine = w.PortInfo.from_bytes(Smp.from_bytes(reply).data).mkey
    assert mine == stage.attacker.sma.port(1).info.mkey
    assert mine not in (stage.victim.sma.port(1).info.mkey, stage.switch.ports[0].info.mkey)
    # Back on its cable it is the manager's again.
    stage.bench.fabric.link_up("hca0")
    stage.bench.run()
    assert stage.attacker.sma.port(1).info.mkey_protect_bits == 2
    assert stage.attacker.sma.handle(1, request, now_ns=stage.bench.clock.now_ns()) == (None, [])


def test_a_lease_never_ends_while_the_manager_sweeps() -> None:
    stage = Stage(None)
    for _ in range(30):
        assert stage.forger.by_lid(stage.victim.lid, METHOD_GET, w.NODE_INFO) == []
        stage.bench.pass_time(5)
    assert stage.victim.sma.port(1).info.mkey_protect_bits == 2


def test_one_key_for_all_lets_its_owner_in_and_has_no_lease() -> None:
    stage = Stage(0xC0FFEE)
    assert stage.forger.by_lid(stage.victim.lid, METHOD_GET, w.NODE_INFO) == []
    smp = stage.forger.smp(m.CLASS_SUBN_LID, METHOD_GET, w.NODE_INFO, 0, b"")
    smp.mkey = 0xC0FFEE
    assert len(stage.forger.send(smp, stage.victim.lid, stage.attacker.lid)) == 1
    assert stage.victim.sma.port(1).info.mkey_lease_period == 0


def test_managership_cannot_be_taken() -> None:
    stage = Stage(None)
    answers = stage.forger.by_lid(stage.switch.lid, METHOD_SET, w.SM_INFO, 1, w.SmInfo(priority=15, sm_state=3))
    assert [answer.status & 0x7FFF for answer in answers] == [m.STATUS_INVALID_FIELD]
    answers = stage.forger.by_lid(stage.switch.lid, METHOD_GET, w.SM_INFO)
    assert w.SmInfo.from_bytes(answers[0].data).sm_state == w.SM_STATE_MASTER


def test_a_rewritten_multicast_table_is_repaired() -> None:
    stage = Stage(0)
    member = sa.McMemberRecord(mgid=IPOIB_BROADCAST, port_gid=stage.victim.gid, join_state=1)
    mask = sa.MC_MGID | sa.MC_PORT_GID | sa.MC_JOIN_STATE
    join = m.SaMad(base_version=1, mgmt_class=3, class_version=2, method=METHOD_SET, attr_id=sa.MC_MEMBER_RECORD)
    join.component_mask, join.data = mask, member.to_bytes().ljust(200, b"\0")
    stage.bench.sa(stage.victim, join)
    before = dict(stage.switch.mft)
    assert before == {MULTICAST_LID_FIRST: 1 << 2}
    block = w.pack_words([0xFFFE] * 32)
    answers = stage.forger.by_lid(stage.switch.lid, METHOD_SET, w.MULTICAST_FORWARDING_TABLE, 0, block)
    assert len(answers) == 1
    assert stage.switch.mft != before
    stage.bench.pass_time(ONE_SWEEP_S)
    assert stage.switch.mft == before


def test_a_port_whose_own_host_locked_the_manager_out_harms_nobody_else() -> None:
    stage = Stage(None)
    info = w.PortInfo.from_bytes(stage.attacker.sma.port(1).info.to_bytes())
    info.mkey, info.mkey_protect_bits, info.port_state, info.port_physical_state = 0x666, 3, 0, 0
    lock = Smp(base_version=1, mgmt_class=1, class_version=1, method=METHOD_SET, attr_id=w.PORT_INFO)
    lock.data = info.to_bytes()
    stage.attacker.sma.handle(1, lock.to_bytes(), ignore_mkey=True)
    stage.bench.pass_time(ONE_SWEEP_S + 5)
    assert (stage.victim.state, stage.other.state) == (w.PORT_ACTIVE, w.PORT_ACTIVE)
    assert stage.heard() == [stage.victim]
    # It can send nothing any more: nobody knows who it is.
    lid = stage.victim.lid
    stage.victim.inbox.clear()
    for slid in (stage.attacker.lid, stage.other.lid):
        stage.attacker.port.send(stage.attacker.data(lid, slid=slid))
    stage.bench.run()
    assert stage.victim.inbox == []
    # Without power the key is gone.
    stage.power_cycle(stage.attacker)
    stage.bench.pass_time(ONE_SWEEP_S)
    assert stage.bench.fabric.active()


def answer_to(request: Smp, data: bytes) -> Smp:
    """What the agent asked by `request` would send, as a forger sees it who knows all about it."""
    answer = Smp.from_bytes(request.to_bytes())
    answer.method, answer.status, answer.data = m.METHOD_GET_RESP, m.STATUS_DIRECTION, data
    answer.hop_pointer = answer.hop_count
    answer.return_path = bytes((0, *[1] * answer.hop_count)).ljust(64, b"\0")
    return answer


def test_answers_count_only_from_the_port_that_was_asked() -> None:
    stage = Stage(None)
    manager = stage.bench.fabric.manager
    asked: list[Smp] = []

    def overhear(packet: Packet) -> None:
        smp = Smp.from_bytes(packet.payload)
        if smp.method == METHOD_GET and smp.attr_id == w.NODE_INFO:
            asked.append(smp)

    stage.victim.port.attach(overhear, port_info=lambda: stage.victim.sma.port(1).info)
    manager.sweep()
    stage.bench.run()
    request = asked[-1]
    wrong = w.NodeInfo(node_type=2, node_guid=0xBAD, port_guid=0xBAD, num_ports=36).to_bytes().ljust(64, b"\0")
    forged = answer_to(request, wrong)
    late = stage.bench.fabric.counters().get("sm.late_answers", 0)
    # From the attacker's cable, with the right number and path.
    stage.attacker.port.send(smp_packet(forged.to_bytes(), 0xFFFF, 0xFFFF))
    stage.bench.run()
    assert stage.bench.fabric.counters()["sm.late_answers"] == late + 1
    # From the right cable, but with a path that leads elsewhere or a number that nobody asked with.
    for name, value in (("initial_path", b"\0\1" + bytes(62)), ("tid", request.tid + 1000)):
        other = Smp.from_bytes(forged.to_bytes())
        setattr(other, name, value)
        stage.victim.port.send(smp_packet(other.to_bytes(), 0xFFFF, 0xFFFF))
    stage.bench.run()
    assert stage.bench.fabric.counters()["sm.late_answers"] == late + 3
    stage.bench.pass_time(1)
    assert 0xBAD not in manager.topology.nodes
    assert manager.settled


def test_numbers_of_requests_cannot_be_guessed() -> None:
    numbers = set()
    for seed in range(4):
        sent: list[Packet] = []
        transactions = Transactions(sent.append, lambda: 0, lambda fn: fn(), Random(seed))

        def work() -> Work:
            yield [Request(METHOD_GET, w.NODE_INFO, 0, ())]

        transactions.start(work())
        numbers.add(Smp.from_bytes(sent[0].payload).tid)
    assert len(numbers) == 4
    assert max(numbers) >> 48, "64 bits, all but once in 2**64"


@pytest.mark.parametrize("slid", ["victim", "other", "nobody", "path bit", "permissive"])
def test_data_comes_only_from_the_lid_of_its_port(slid: str) -> None:
    stage = Stage(None)
    lids = {"victim": stage.victim.lid, "other": stage.other.lid, "nobody": 0, "permissive": 0xFFFF}
    forged = lids.get(slid, stage.attacker.lid ^ 1)
    for dlid in (stage.victim.lid, stage.switch.lid):
        stage.attacker.port.send(stage.attacker.data(dlid, slid=forged))
    stage.bench.run()
    assert stage.victim.inbox == []
    assert stage.switch.ports[1].dropped == {Drop.BAD_SLID: 2}
    assert stage.switch.ports[1].counters.rcv_switch_relay_errors == 2


def test_smps_come_from_the_lid_of_their_port_or_the_permissive_one() -> None:
    stage = Stage(0)
    smp = stage.forger.smp(m.CLASS_SUBN_LID, METHOD_GET, w.NODE_INFO, 0, b"")
    assert stage.forger.send(smp, stage.switch.lid, stage.victim.lid) == []
    assert stage.switch.ports[1].dropped == {Drop.BAD_SLID: 1}
    assert len(stage.forger.send(smp, stage.switch.lid, stage.attacker.lid)) == 1


def test_a_port_that_was_never_configured_may_send_smps_only() -> None:
    stage = Stage(None)
    fresh = stage.switch.ports[4]
    assert fresh.source == (0xFFFF, 0)
    late = stage.bench.add_card()
    stage.bench.run()
    assert fresh.source == (late.lid, 0)


def capability_trap(card: Card) -> Packet:
    port = card.sma.port(1)
    notice = m.Notice(is_generic=1, type=4, producer_type=1, trap_number=m.TRAP_CAPABILITY_CHANGE, issuer_lid=card.lid)
    trap = Smp(base_version=1, mgmt_class=1, class_version=1, method=m.METHOD_TRAP, attr_id=m.ATTR_NOTICE)
    trap.data = notice.to_bytes()[:64]
    return packets.trap_packet(port, trap.to_bytes())


def test_a_storm_of_traps_asks_for_few_sweeps_and_puts_no_repair_off() -> None:
    stage = Stage(0)
    before = state_of(stage)
    rewrite_linear_table(stage)
    sweeps = stage.bench.fabric.counters()["sm.heavy_sweeps"]
    for _ in range(110):
        for _ in range(10):
            stage.attacker.port.send(capability_trap(stage.attacker))
        stage.bench.pass_time(0.1)
    # 16 at once, two a second, and one of the repair
    assert sweeps + 16 < stage.bench.fabric.counters()["sm.heavy_sweeps"] <= sweeps + 16 + 22 + 2
    assert state_of(stage) == before
    stage.bench.pass_time(1)
    assert stage.bench.fabric.manager.settled


def test_a_port_that_stays_silent_puts_no_repair_off() -> None:
    stage = Stage(0)
    stage.attacker.silent = True
    stage.bench.pass_time(60)
    assert stage.bench.fabric.counters()["sm.light_sweeps"] >= 5


def test_traps_of_one_moment_are_one_reason_to_sweep() -> None:
    stage = Stage(None)
    counters = stage.bench.fabric.counters
    sweeps = counters()["sm.heavy_sweeps"]
    for _ in range(100):
        stage.attacker.port.send(capability_trap(stage.attacker))
    stage.bench.run()
    assert sweeps < counters()["sm.heavy_sweeps"] <= sweeps + 4
    sweeps = counters()["sm.heavy_sweeps"]
    stage.other.port.send(capability_trap(stage.other))
    stage.bench.run()
    assert counters()["sm.heavy_sweeps"] == sweeps + 1, "another's trap does not wait for that"


def test_a_silent_port_is_asked_fewer_times_the_next_time() -> None:
    stage = Stage(None)
    stage.attacker.silent = True
    counters = stage.switch.ports[1].counters
    asked = []
    for _ in range(2):
        before = counters.xmit_pkts
        stage.bench.fabric.manager.sweep()
        stage.bench.pass_time(1.1)
        asked.append(counters.xmit_pkts - before)
    assert asked[0] == 5
    # Everybody else waits for that; some more come from the sweeps that look again.
    assert asked[1] <= 4


def test_a_switch_that_has_its_key_is_found_again_by_a_manager_that_took_it_for_a_card() -> None:
    stage = Stage(None)
    bench = stage.bench
    second = Switch(bench.turns.call_soon, 0xBB, 4, "second")
    cable = Link(bench.turns.call_soon, lambda _delay, _fn: None, "first", "second")
    stage.switch.free_port().plug(cable.a)
    second.free_port().plug(cable.b)
    bench.run()
    assert second.ports[0].info.mkey == bench.fabric.manager.keys.switches
    bench.fabric.manager.discovery._trunks.clear()
    bench.fabric.manager.sweep()
    bench.pass_time(1.05)
    assert 0xBB not in bench.fabric.manager.topology.nodes
    bench.pass_time(5)
    assert 0xBB in bench.fabric.manager.topology.nodes


def test_thanks_for_a_trap_carry_the_key_of_the_port() -> None:
    stage = Stage(None)
    thanks: list[Smp] = []
    card = stage.other
    serve = card.receive

    def watch(packet: Packet) -> None:
        smp = Smp.from_bytes(packet.payload)
        if smp.method == m.METHOD_TRAP_REPRESS:
            thanks.append(smp)
        serve(packet)

    card.port.attach(watch, card.link_changed, port_info=lambda: card.sma.port(1).info)
    card.port.send(capability_trap(card))
    stage.bench.run()
    assert [smp.mkey for smp in thanks] == [card.sma.port(1).info.mkey]
    assert card.sma.port(1).info.mkey_violations == 0
