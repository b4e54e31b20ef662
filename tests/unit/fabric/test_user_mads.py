"""Programs of the host at a simulated port: whose answers they get, what managers get, and what they may."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.smps import directed_get
from tests.unit.fabric.bench import Bench, Turns
from vhca.fabric import shapes
from vhca.fabric.fabric import Fabric
from vhca.fabric.faults import Fault
from vhca.fabric.long_mads import COLLECTED
from vhca.fabric.user_mads import MOST_ASKED, UserMads
from vhca.management.packets import smp_packet
from vhca.management.program import ETIMEDOUT
from vhca.sim.clock import VirtualClock
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import MadHeader, PerfMad, SaMad, Smp
from vhca.wire.packet import PERMISSIVE_LID
from vhca.wire.smp import NodeInfo, PortInfo, SmInfo

PING = 0x32  # a class of vendors


class Program:
    """A program at a node, and what it got: (datagram, SLID, destination and source QP, status)."""

    def __init__(self, node: UserMads, *classes: int) -> None:
        self.manager = False
        self.classes = frozenset(classes)
        self.long_answers = True
        self.got: list[tuple[bytes, int, int, int, int]] = []
        self.node = node
        self.tid = 0x5_0000_0000
        node.open(self)

    def deliver(self, mad: bytes, slid: int, dqp: int, sqp: int, status: int) -> None:
        self.got.append((mad, slid, dqp, sqp, status))

    def smp(self, attribute: int, path: tuple[int, ...] = (), **fields: Any) -> Smp:
        self.tid += 1
        return directed_get(self.tid, attribute, path, **fields)

    def by_lid(self, attribute: int, **fields: Any) -> Smp:
        return self.smp(attribute, mgmt_class=m.CLASS_SUBN_LID, dr_slid=0, dr_dlid=0, **fields)

    def send(self, smp: Smp, dlid: int = PERMISSIVE_LID) -> None:
        self.node.send(self, smp.to_bytes(), dlid, 0, 0)


class Desk(Bench):
    """A fabric with two cards and programs at `tools`."""

    def __init__(self) -> None:
        super().__init__()
        self.node = self.fabric.tool_node("")
        self.run()

    def ask(self, program: Program, smp: Smp, dlid: int = PERMISSIVE_LID) -> Smp:
        program.got.clear()
        program.send(smp, dlid)
        self.run()
        [(mad, _, _, _, status)] = program.got
        assert not status
        return Smp.from_bytes(mad)

    @property
    def lid(self) -> int:
        return self.node.port_info(0).lid


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_tools_is_plugged_in_when_it_is_asked_for(desk: Desk) -> None:
    assert desk.node.name == "tools"
    assert desk.node.port_info(0).port_state == w.PORT_ACTIVE
    assert desk.node.node_info().port_guid == desk.node.node_info().node_guid + 1
    for name in ("tools", f"{desk.node.node_info().node_guid:#018x}", f"{desk.node.node_info().port_guid:#018X}"):
        assert desk.fabric.tool_node(name) is desk.node


def test_ways_to_nodes(desk: Desk) -> None:
    program = Program(desk.node)
    own, switch = desk.node.node_info().node_guid, desk.fabric.switch.node_guid
    out = desk.node.port.end.other.endpoint
    ways = {
        (): own,
        (1,): switch,
        (1, 1): 0x1000,
        (1, 2): 0x1001,
        (1, out.number): own,  # type: ignore[union-attr]
    }
    for path, guid in ways.items():
        answer = desk.ask(program, program.smp(w.NODE_INFO, path))
        assert NodeInfo.from_bytes(answer.data).node_guid == guid, path
        assert (answer.method, answer.hop_pointer, answer.tid) == (m.METHOD_GET_RESP, 0, program.tid)
    for lid, guid in ((desk.lid, own), (desk.fabric.switch.lid, switch), (desk.cards[0].lid, 0x1000)):
        answer = desk.ask(program, program.by_lid(w.NODE_INFO), lid)
        assert NodeInfo.from_bytes(answer.data).node_guid == guid
    combined = program.smp(w.NODE_INFO, (2,), dr_slid=desk.lid)
    assert NodeInfo.from_bytes(desk.ask(program, combined, desk.fabric.switch.lid).data).node_guid == 0x1001


def test_a_program_needs_no_key_and_is_shown_none_of_its_own_request(desk: Desk) -> None:
    program = Program(desk.node)
    for path in ((), (1,), (1, 1)):
        answer = desk.ask(program, program.smp(w.PORT_INFO, path))
        assert answer.mkey == 0
        assert PortInfo.from_bytes(answer.data).mkey != 0  # who writes PortInfo back must not clear the key
    program.send(program.smp(w.PORT_INFO, (1, 1), mkey=0x1234))
    desk.pass_time(3)
    assert program.got[-1][4] == ETIMEDOUT


def test_what_nobody_answers_is_repeated_and_comes_back(desk: Desk) -> None:
    program = Program(desk.node)
    desk.cards[0].silent = True
    request = program.smp(w.NODE_INFO, (1, 1))
    before = desk.fabric.ports["hca0"].counters()["rcv_pkts"]
    program.send(request)
    desk.pass_time(0.6)
    assert not program.got
    desk.pass_time(0.3)
    assert [(got[0], got[4]) for got in program.got] == [(request.to_bytes(), ETIMEDOUT)]
    assert desk.fabric.ports["hca0"].counters()["rcv_pkts"] == before + 3
    desk.cards[0].silent = False
    desk.ask(program, program.smp(w.NODE_INFO, (1, 1)))


def test_one_that_was_lost_once_is_answered(desk: Desk) -> None:
    program = Program(desk.node)
    desk.fabric.add_fault("hca0", Fault("drop", nth=1, management=True))
    program.send(program.smp(w.NODE_INFO, (1, 1)))
    desk.pass_time(1)
    assert [got[4] for got in program.got] == [0]


def test_so_many_questions_wait_and_no_more(desk: Desk) -> None:
    program = Program(desk.node)
    desk.cards[0].silent = True
    for _ in range(MOST_ASKED + 3):
        program.send(program.smp(w.NODE_INFO, (1, 1)))
        desk.turns.one()
    desk.run()
    assert [got[4] for got in program.got] == [ETIMEDOUT] * 3
    desk.node.close(program)
    desk.pass_time(2)
    assert len(program.got) == 3


def test_programs_at_one_port_get_their_own_answers(desk: Desk) -> None:
    one, two = Program(desk.node), Program(desk.node)
    one.send(one.smp(w.NODE_INFO, (1, 1)))
    two.send(two.smp(w.NODE_INFO, (1, 2)))
    assert one.tid == two.tid
    desk.run()
    assert [NodeInfo.from_bytes(p.got[0][0][64:104]).node_guid for p in (one, two)] == [0x1000, 0x1001]
    assert len(one.got) == len(two.got) == 1


def gmp(mgmt_class: int, method: int, version: int = 1, **fields: Any) -> bytes:
    head = MadHeader(base_version=1, mgmt_class=mgmt_class, class_version=version, method=method, tid=0x77, **fields)
    return head.to_bytes().ljust(256, b"\0")


def test_counters_of_others_and_of_oneself(desk: Desk) -> None:
    program = Program(desk.node)
    for lid in (desk.lid, desk.fabric.switch.lid):
        request = PerfMad.from_bytes(gmp(m.CLASS_PERF, m.METHOD_GET, attr_id=0x12))
        request.data = bytes((0, 1)).ljust(192, b"\0")
        desk.node.send(program, request.to_bytes(), lid, 1, 1)
        desk.run()
        mad, slid, dqp, sqp, status = program.got.pop()
        assert (mad[3], mad[8:16], slid, dqp, sqp, status) == (0x81, request.to_bytes()[8:16], lid, 1, 1, 0)


def test_nobody_else_answers_for_the_one_that_was_asked(desk: Desk) -> None:
    program = Program(desk.node)
    desk.cards[0].silent = True
    question = gmp(PING, m.METHOD_GET)
    desk.node.send(program, question, desk.cards[0].lid, 1, 1)
    desk.run()
    forged = question[:3] + b"\x81" + question[4:]
    for card in (desk.cards[1], desk.cards[0]):
        assert not program.got
        card.port.send(card.data(desk.lid, forged, dest_qp=1, src_qp=1, qkey=m.QP1_QKEY))
        desk.run()
    assert [(got[0], got[1], got[4]) for got in program.got] == [(forged, desk.cards[0].lid, 0)]


def test_a_server_of_a_class_gets_its_requests(desk: Desk) -> None:
    program, server, idle = Program(desk.node), Program(desk.node, PING), Program(desk.node)
    ping = gmp(PING, m.METHOD_GET)
    desk.node.send(program, ping, desk.lid, 1, 1)
    desk.run()
    [(mad, slid, _, sqp, _)] = server.got
    answer = mad[:3] + b"\x81" + mad[4:]
    desk.node.send(server, answer, slid, sqp, 1)
    desk.run()
    assert [(got[0], got[4]) for got in program.got] == [(ping[:3] + b"\x81" + ping[4:], 0)]
    assert not idle.got
    desk.node.close(server)
    desk.node.send(program, ping, desk.lid, 1, 1)
    desk.run()
    assert program.got[-1][0][3:6] == bytes((0x81, 0, 0x0C))  # refused, not silent


def test_a_manager_gets_what_is_for_managers_and_the_port_says_so(desk: Desk) -> None:
    program, manager = Program(desk.node), Program(desk.node)
    traps = desk.fabric.manager.counters.copy()
    assert desk.node.set_manager(manager, True)
    assert not desk.node.set_manager(program, True)
    assert desk.node.port_info(0).capability_mask & w.CAP_IS_SM
    desk.run()
    assert sum((desk.fabric.manager.counters - traps).values()) >= 1  # trap 144
    for request, dlid in (
        (program.smp(w.SM_INFO), PERMISSIVE_LID),
        (program.by_lid(w.SM_INFO), desk.lid),
    ):
        program.send(request, dlid)
        desk.run()
        mad, slid, dqp, sqp, _ = manager.got.pop()
        answer = Smp.from_bytes(mad)
        answer.method, answer.data = m.METHOD_GET_RESP, SmInfo(priority=3).to_bytes().ljust(64, b"\0")
        answer.status = m.STATUS_DIRECTION if dlid == PERMISSIVE_LID else 0
        desk.node.send(manager, answer.to_bytes(), slid, sqp, dqp)
        desk.run()
        got = Smp.from_bytes(program.got.pop()[0])
        assert SmInfo.from_bytes(got.data).priority == 3
        assert got.tid == request.tid
    desk.node.close(manager)
    assert not desk.node.port_info(0).capability_mask & w.CAP_IS_SM


def test_a_trap_of_a_program_is_answered_by_its_repression(desk: Desk) -> None:
    program = Program(desk.node)
    trap = program.by_lid(m.ATTR_NOTICE, method=m.METHOD_TRAP, data=bytes((0x81, 0, 0, 1, 0, 144)).ljust(64, b"\0"))
    program.send(trap, desk.fabric.manager.lid)
    desk.run()
    [(mad, slid, _, _, status)] = program.got
    assert (Smp.from_bytes(mad).method, mad[8:16], slid, status) == (
        m.METHOD_TRAP_REPRESS, trap.to_bytes()[8:16], desk.fabric.manager.lid, 0,
    )  # fmt: skip


def test_the_manager_in_the_switch_asks_the_one_at_tools_and_is_answered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Program(desk.node)
    desk.node.set_manager(manager, True)
    desk.run()
    manager.got.clear()
    out = desk.node.port.end.other.endpoint
    request = Program(desk.node).smp(w.SM_INFO, (out.number,))  # type: ignore[union-attr]
    desk.fabric.switch.send_from_management(smp_packet(request.to_bytes(), PERMISSIVE_LID, PERMISSIVE_LID))
    desk.run()
    mad, slid, dqp, sqp, _ = manager.got.pop()
    answer = Smp.from_bytes(mad)
    answer.method, answer.status = m.METHOD_GET_RESP, m.STATUS_DIRECTION
    seen: list[Smp] = []

    def answer_of(smp: Smp, port: int) -> bool:
        seen.append(smp)
        return True

    monkeypatch.setattr(desk.fabric.manager.transactions, "answer", answer_of)
    desk.node.send(manager, answer.to_bytes(), slid, sqp, dqp)
    desk.run()
    assert [smp.tid for smp in seen] == [request.tid]


def test_the_directory_answers_a_program(desk: Desk) -> None:
    program = Program(desk.node)
    request = SaMad.from_bytes(gmp(m.CLASS_SUBN_ADM, m.METHOD_GET, m.SA_CLASS_VERSION, attr_id=m.ATTR_CLASS_PORT_INFO))
    desk.node.send(program, request.to_bytes(), desk.fabric.manager.lid, 1, 1)
    desk.run()
    [(mad, slid, _, _, status)] = program.got
    assert (mad[3], slid, status) == (0x81, desk.fabric.manager.lid, 0)


class World:
    """A ring of switches with twelve simulated hosts, brought up."""

    def __init__(self) -> None:
        self.turns, self.clock = Turns(), VirtualClock(1)
        self.topology = shapes.ring(3, 12)
        self.fabric = Fabric(self.turns.call_soon, self.clock, topology=self.topology, random=Random(1))
        self.node = self.fabric.tool_node("")
        self.turns.run(1 << 22)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now_ns() + int(seconds * 1e9)
        while (deadline := self.fabric.next_deadline()) is not None and deadline <= end:
            self.clock.advance(max(0, deadline - self.clock.now_ns()))
            self.fabric.run_timers(self.clock.now_ns())
            self.turns.run(1 << 22)


def table_request(tid: int = 0x77) -> bytes:
    mad = gmp(m.CLASS_SUBN_ADM, m.METHOD_GET_TABLE, m.SA_CLASS_VERSION, attr_id=0x11)
    return mad[:8] + tid.to_bytes(8, "big") + mad[16:]


def joined(got: list[tuple[bytes, int, int, int, int]]) -> bytes:
    """The records of a series of segments, which has to be one."""
    segments = [SaMad.from_bytes(mad) for mad, *_ in got]
    assert [segment.segment_number for segment in segments] == list(range(1, len(segments) + 1))
    assert [bool(segment.rmpp_flags & m.RMPP_LAST) for segment in segments] == [False] * (len(segments) - 1) + [True]
    data = b"".join(segment.data for segment in segments)
    return data[: len(data) - 200 + segments[-1].payload_length - 20]


@pytest.mark.parametrize("lost", [False, True], ids=["", "packets are lost"])
def test_a_long_answer_arrives_as_its_segments(lost: bool) -> None:
    world = World()
    whole, first = Program(world.node), Program(world.node)
    first.long_answers = False
    if lost:
        world.fabric.add_fault(f"{world.node.name}/1", Fault("drop", probability=0.2, management=True))
    for program in (whole, first):
        world.node.send(program, table_request(), world.fabric.manager.lid, 1, 1)
        world.turns.run(1 << 22)
        world.pass_time(30)
    nodes = len(world.topology.nodes)
    assert len(joined(whole.got)) == nodes * 112
    assert len(first.got) == 1
    assert first.got[0][0] == whole.got[0][0]
    assert not world.node._asked


@pytest.mark.parametrize("lost", [False, True], ids=["", "packets are lost"])
def test_a_program_that_is_the_directory_sends_long_answers(lost: bool) -> None:
    world = World()
    place = world.fabric.tool_node(world.topology.hosts[5].name)
    manager, asker = Program(place), Program(world.node)
    place.set_manager(manager, True)
    if lost:
        world.fabric.add_fault(f"{place.name}/1", Fault("drop", probability=0.2, management=True))
    records = bytes(range(256)) * 9
    world.node.send(asker, table_request(), place.port_info(0).lid, 1, 1)
    world.turns.run(1 << 22)
    while not manager.got:  # the question itself may be lost: who asks a directory asks again
        world.pass_time(5)
        asker.got.clear()
        world.node.send(asker, table_request(), place.port_info(0).lid, 1, 1)
        world.turns.run(1 << 22)
    mad, slid, dqp, sqp, _ = manager.got.pop()
    pieces = [records[at : at + 200] for at in range(0, len(records), 200)]
    for number, piece in enumerate(pieces, 1):
        segment = SaMad.from_bytes(mad)
        segment.method, segment.rmpp_version, segment.rmpp_type = m.METHOD_GET_TABLE_RESP, 1, m.RMPP_DATA
        segment.rmpp_flags = m.RMPP_ACTIVE | (m.RMPP_FIRST if number == 1 else 0)
        segment.rmpp_flags |= m.RMPP_LAST if number == len(pieces) else 0
        segment.segment_number = number
        segment.payload_length = len(piece) + 20
        segment.data = piece.ljust(200, b"\0")
        place.send(manager, segment.to_bytes(), slid, sqp, dqp)
    world.turns.run(1 << 22)
    world.pass_time(30)
    assert joined(asker.got) == records


def test_half_of_a_long_datagram_is_kept_for_few_and_not_for_ever() -> None:
    world = World()
    program = Program(world.node)
    for tid in range(3 * COLLECTED):
        segment = SaMad.from_bytes(table_request(tid))
        segment.rmpp_version, segment.rmpp_type, segment.segment_number = 1, m.RMPP_DATA, 1
        segment.rmpp_flags = m.RMPP_ACTIVE | m.RMPP_FIRST
        segment.method = m.METHOD_GET_TABLE_RESP
        world.node.send(program, segment.to_bytes(), 3, 1, 1)
        segment.segment_number = 5  # not the next one
        segment.rmpp_flags = m.RMPP_ACTIVE
        if tid & 1:
            world.node.send(program, segment.to_bytes(), 3, 1, 1)
    assert 0 < len(world.node._long._collected) <= COLLECTED
    world.node.close(program)
    assert not world.node._long._collected


def test_in_a_topology_programs_attach_at_its_hosts() -> None:
    turns, clock = Turns(), VirtualClock(1)
    topology = shapes.ring(3, 4)
    fabric = Fabric(turns.call_soon, clock, topology=topology, random=Random(1))
    names = [host.name for host in topology.hosts]
    fabric.add_port("h0", names[0])
    assert fabric.tool_node("").name == names[1]
    turns.run()
    assert fabric.tool_node(names[2]).name == names[2]
    assert fabric.tool_node(f"{topology.nodes[names[3]].guid:#x}".replace("0x", "0x000")).name == names[3]
    assert fabric.tool_node("tools").name == "tools"  # in a free port of a switch
    for name in (names[0], next(iter(fabric.switches)), "nobody"):
        with pytest.raises(LookupError, match=name):
            fabric.tool_node(name)


def test_a_full_fabric_has_no_place_for_tools() -> None:
    turns = Turns()
    topology = shapes.fat_tree(4, radix=4, levels=1)
    fabric = Fabric(turns.call_soon, VirtualClock(1), topology=topology)
    with pytest.raises(LookupError, match="no switch has a free port"):
        fabric.tool_node("tools")
