"""Directed routes through the switch: out and back, begun or ended by a LID-routed part, and all that is no route."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fabric.bench import Bench, Card
from tests.unit.mads.smps import smp as smp_request
from vhca.fabric.counters import Drop
from vhca.fabric.link import Link
from vhca.fabric.switch import Switch
from vhca.management import directed as d
from vhca.management.packets import smp_packet
from vhca.wire import mad as m
from vhca.wire import smp as w
from vhca.wire.mad import Smp
from vhca.wire.packet import PERMISSIVE_LID

FAR = 0xBB


class RouteBench(Bench):
    """Card 0 and card 1 at the first switch; a second switch (port 3 of the first), and card 2 at it."""

    def __init__(self) -> None:
        super().__init__(2, num_ports=4, mkey=0)
        self.second = Switch(self.turns.call_soon, FAR, 4, "second")
        cable = Link(self.turns.call_soon, lambda delay, fn: None, "first", "second")
        far = self.add_card()
        far.port.switch_port.end = None
        self.second.free_port().plug(far.port.link.b)
        self.fabric.switch.ports[3].plug(cable.a)
        self.second.free_port().plug(cable.b)
        self.cards.append(far)
        self.run()
        self.pass_time(15)
        assert all(card.state == w.PORT_ACTIVE for card in self.cards)

    def ask(
        self,
        path: tuple[int, ...],
        *,
        dlid: int = PERMISSIVE_LID,
        dr_slid: int = PERMISSIVE_LID,
        dr_dlid: int = PERMISSIVE_LID,
        pointer: int | None = None,
        returning: bool = False,
    ) -> list[Smp]:
        """NodeInfo from card 0 along `path` (ports of departure); gives what comes back."""
        card = self.cards[0]
        card.inbox.clear()
        # Without a LID-routed part at the beginning the sender's interface walks the first hop: out of the card.
        first = (1, *path) if dr_slid == PERMISSIVE_LID else path
        request = Smp.from_bytes(smp_request(m.METHOD_GET, w.NODE_INFO, directed=True))
        request.hop_count = len(first)
        request.hop_pointer = (int(dr_slid == PERMISSIVE_LID and bool(first))) if pointer is None else pointer
        request.initial_path = (b"\0" + bytes(first)).ljust(64, b"\0")
        request.dr_slid, request.dr_dlid = dr_slid, dr_dlid
        if returning:
            request.status, request.method = m.STATUS_DIRECTION, m.METHOD_GET_RESP
        slid = PERMISSIVE_LID if dlid == PERMISSIVE_LID else card.lid
        card.port.send(smp_packet(request.to_bytes(), dlid, slid))
        self.run()
        return [Smp.from_bytes(packet.payload) for packet in card.inbox]

    def found(self, *args: object, **fields: object) -> int:
        """The node that answered."""
        (answer,) = self.ask(*args, **fields)  # type: ignore[arg-type]
        assert answer.method == m.METHOD_GET_RESP
        assert answer.status == m.STATUS_DIRECTION
        # What the sender's own interface must get: the end of the directed part, or behind it.
        assert answer.hop_pointer == (1 if answer.dr_slid == PERMISSIVE_LID else 0)
        return w.NodeInfo.from_bytes(answer.data).node_guid


def guid(card: Card) -> int:
    return card.sma.board.node_guid


@pytest.fixture
def bench() -> RouteBench:
    return RouteBench()


def test_hop_by_hop(bench: RouteBench) -> None:
    first, second = bench.fabric.switch, bench.second
    assert bench.found(()) == first.node_guid
    assert bench.found((2,)) == guid(bench.cards[1])
    assert bench.found((3,)) == second.node_guid
    assert bench.found((3, 1)) == guid(bench.cards[2])
    assert bench.found((3, 2)) == first.node_guid, "and back over the same cable"
    assert bench.found((3, 2, 2)) == guid(bench.cards[1])


def test_by_lid_to_a_switch_and_on_by_port(bench: RouteBench) -> None:
    """As `smpquery -c LID 0,2` and `ibportstate LID PORT` ask for the peer of a switch's port."""
    mine = bench.cards[0].lid
    for switch, port, node in (
        (bench.fabric.switch, 2, guid(bench.cards[1])),
        (bench.fabric.switch, 3, FAR),
        (bench.second, 1, guid(bench.cards[2])),
        (bench.second, 2, bench.fabric.switch.node_guid),
    ):
        assert bench.found((port,), dlid=switch.lid, dr_slid=mine) == node
    assert bench.found((3, 1), dlid=bench.fabric.switch.lid, dr_slid=mine) == guid(bench.cards[2])
    for switch in (bench.fabric.switch, bench.second):
        assert bench.found((), dlid=switch.lid, dr_slid=mine) == switch.node_guid
    assert bench.found((), dlid=bench.cards[2].lid, dr_slid=mine) == guid(bench.cards[2])


def test_by_port_and_on_by_lid(bench: RouteBench) -> None:
    for path in ((), (3,)):
        for card in bench.cards[1:]:
            assert bench.found(path, dr_dlid=card.lid) == guid(card)
        for switch in (bench.fabric.switch, bench.second):
            assert bench.found(path, dr_dlid=switch.lid) == switch.node_guid


def test_by_lid_by_port_and_by_lid(bench: RouteBench) -> None:
    mine = bench.cards[0].lid
    second = bench.second.lid
    assert bench.found((2,), dlid=second, dr_slid=mine, dr_dlid=bench.cards[1].lid) == guid(bench.cards[1])
    assert bench.found((2,), dlid=second, dr_slid=mine, dr_dlid=second) == FAR
    assert bench.found((), dlid=second, dr_slid=mine, dr_dlid=bench.cards[1].lid) == guid(bench.cards[1])


def test_a_port_that_is_down_lets_nothing_pass(bench: RouteBench) -> None:
    bench.fabric.link_down("hca1")
    bench.run()
    assert bench.ask((2,)) == []
    assert bench.ask((2,), dlid=bench.fabric.switch.lid, dr_slid=bench.cards[0].lid) == []
    assert bench.fabric.switch.ports[2].dropped[Drop.LINK_DOWN] == 2


def not_routes() -> Iterator[tuple[str, dict[str, int]]]:
    yield "the sender did not walk its own hop", {"pointer": 0}
    yield "past its end, along the directed part", {"pointer": 3}
    yield "far past its end", {"pointer": 200}
    yield "begun by LID, in the middle already", {"pointer": 1, "dlid": 1, "dr_slid": 2}
    yield "by LID, without the sender's LID in the route", {"pointer": 0, "dlid": 1}
    yield "behind the directed part, at the wrong LID", {"pointer": 3, "dlid": 1, "dr_slid": 2, "dr_dlid": 77}


@pytest.mark.parametrize("fields", [pytest.param(fields, id=name) for name, fields in not_routes()])
@pytest.mark.parametrize("returning", [False, True])
def test_what_is_no_route_is_dropped(bench: RouteBench, fields: dict[str, int], returning: bool) -> None:
    assert bench.fabric.switch.lid == 1
    path = (1, 2) if "dr_slid" in fields else (2,)
    dropped = bench.fabric.switch.dropped()[Drop.BAD_PATH]
    answers = bench.ask(path, **fields, returning=returning)
    assert answers == []
    assert bench.fabric.switch.dropped()[Drop.BAD_PATH] == dropped + 1


ANY_SMP = st.builds(
    Smp,
    hop_pointer=st.integers(0, 255),
    hop_count=st.integers(0, 255),
    dr_slid=st.sampled_from([0, 1, 5, 0xFFFF]),
    dr_dlid=st.sampled_from([0, 1, 5, 0xFFFF]),
    initial_path=st.binary(min_size=64, max_size=64),
    return_path=st.binary(min_size=64, max_size=64),
)


@given(ANY_SMP, st.integers(0, 36), st.sampled_from([d.BY_PORT, d.BY_LID, d.INSIDE]), st.sampled_from([0, 1]))
def test_any_pointer_gives_a_step_inside_the_path(smp: Smp, port: int, origin: int, lid: int) -> None:
    before = smp.hop_pointer
    step = d.request_step(smp, port, origin, lid)
    assert step in (d.DISCARD, d.TAKE, d.ROUTE) or d.LEAVE <= step <= d.LEAVE + 255
    if step >= d.LEAVE:
        assert before < smp.hop_pointer <= smp.hop_count
        assert step - d.LEAVE == smp.initial_path[smp.hop_pointer]
    smp.hop_pointer = before
    step = d.response_step(smp, origin, lid)
    if step >= d.LEAVE:
        assert 0 < smp.hop_pointer < before <= smp.hop_count + 1
        assert step - d.LEAVE == smp.return_path[smp.hop_pointer]


@given(
    st.binary(min_size=256, max_size=256), st.integers(0, 66), st.integers(0, 66), st.booleans(), st.integers(1, 254)
)
def test_the_short_way_in_the_middle_of_a_route_is_the_long_one(
    noise: bytes, pointer: int, count: int, returning: bool, port: int
) -> None:
    mad = bytearray(noise)
    mad[4:8] = bytes((0x80 * returning, 0, pointer, count))
    smp = Smp.from_bytes(bytes(mad))
    if returning:
        step = d.response_step(smp, d.BY_PORT, 7)
        middle = 1 < pointer <= count
    else:
        step = d.request_step(smp, port, d.BY_PORT, 7)
        middle = 0 < pointer < count
    passed = d.pass_on(bytes(mad), port)
    if count <= d.MAX_HOPS and middle:
        assert passed == (step - d.LEAVE, smp.to_bytes())
    else:
        assert passed is None
