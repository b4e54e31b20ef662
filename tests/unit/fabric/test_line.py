"""Cables that take time and damage bits: by the clock to the nanosecond, by the seed the same in every run."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from math import isclose
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fabric.bench import Turns
from vhca.fabric.counters import CableDrop
from vhca.fabric.faults import Fault, FaultInjector
from vhca.fabric.line import BACKLOG_BYTES, WINDOW_BYTES, LineConfig, Noise
from vhca.fabric.link import BAD_PACKETS, FALL_NS, FULL_BYTES, RECOVERIES, Link
from vhca.fabric.wires import Wires
from vhca.management.samples import TICK_NS
from vhca.sim.clock import VirtualClock
from vhca.wire.ib import wire_size_bytes
from vhca.wire.packet import MANAGEMENT_VL, RC, SEND, UD, WRITE, Packet, Route

GBPS = 10**9
BURST = Packet(Route(1, 2), RC, WRITE, 3, 0, bytes(1000), 4, mtu=256)


def data(psn: int, size: int = 4096) -> Packet:
    return Packet(Route(1, 2), RC, SEND, 3, psn, bytes(size), mtu=4096)


def management(psn: int) -> Packet:
    return Packet(Route(1, 2, vl=MANAGEMENT_VL), UD, SEND, 0, psn, bytes(256), mtu=256)


class World:
    """A cable, the clock, and what is due."""

    def __init__(self, config: LineConfig, seed: int = 1) -> None:
        self.clock = VirtualClock(1_000)
        self.turns = Turns()
        self.wires = Wires(self.clock.now_ns)
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0
        self.link = Link(self.turns.call_soon, self.call_later, "a", "b", self.wires)
        self.arrived: list[tuple[int, int]] = []  # when, PSN
        self.packets: list[Packet] = []
        self.full = False
        self.changes: list[bool] = []
        self.counted: dict[str, int] = {}
        self.link.a.attach(self)
        self.link.b.attach(self)
        self.link.a.count = lambda what, n: self._count(f"a.{what}", n)
        self.link.b.count = lambda what, n: self._count(f"b.{what}", n)
        for end in (self.link.a, self.link.b):
            end.set_line(config, seed)
        self.turns.run()

    def _count(self, what: str, number: int) -> None:
        self.counted[what] = self.counted.get(what, 0) + number

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._later, (self.clock.now_ns() + delay_ns, self._asked, fn))

    def receive(self, packet: Packet) -> None:
        self.arrived.append((self.clock.now_ns(), packet.psn))
        self.packets.append(packet)

    def blocked(self, packet: Packet) -> bool:
        return self.full and packet.route.vl != MANAGEMENT_VL

    def link_changed(self, up: bool) -> None:
        self.changes.append(up)

    def pass_time(self, ns: int) -> None:
        """Let time pass, deadline by deadline."""
        end = self.clock.now_ns() + ns
        self.turns.run()
        while self._later and self._later[0][0] <= end:
            at, _, fn = heapq.heappop(self._later)
            self.clock.advance(max(0, at - self.clock.now_ns()))
            fn()
            self.turns.run()
        self.clock.advance(end - self.clock.now_ns())


def test_a_packet_takes_its_bits_by_the_rate_and_the_latency_and_the_next_leaves_behind_it() -> None:
    world = World(LineConfig(25 * GBPS, 2_000))
    began = world.clock.now_ns()
    for psn in range(3):
        world.link.a.send(data(psn))
    world.link.b.send(data(7, 0))  # the other way nobody waits for it
    size_ns = -(-wire_size_bytes(data(0)) * 8 // 25)
    small_ns = -(-wire_size_bytes(data(0, 0)) * 8 // 25)
    world.pass_time(10**6)
    assert world.arrived == [
        (began + small_ns + 2_000, 7),
        (began + size_ns + 2_000, 0),
        (began + 2 * size_ns + 2_000, 1),
        (began + 3 * size_ns + 2_000, 2),
    ]
    assert (world.wires.busy, world.wires.timed) == (0, 2)


def test_a_burst_takes_the_time_of_its_packets_and_stays_whole() -> None:
    world = World(LineConfig(GBPS))
    began = world.clock.now_ns()
    world.link.a.send(BURST)
    world.pass_time(10**6)
    assert world.arrived == [(began + wire_size_bytes(BURST) * 8, 0)]
    assert world.packets[0].count == 4


def test_latency_alone_holds_up_but_does_not_queue() -> None:
    world = World(LineConfig(latency_ns=5_000))
    began = world.clock.now_ns()
    world.link.a.send(data(0))
    world.pass_time(1_000)
    world.link.a.send(data(1))
    world.pass_time(10_000)
    assert world.arrived == [(began + 5_000, 0), (began + 6_000, 1)]


def test_a_late_timer_makes_nothing_slower() -> None:
    """The loop was busy for a millisecond: what should have left and arrived meanwhile has."""
    world = World(LineConfig(8 * GBPS))
    for psn in range(10):
        world.link.a.send(data(psn, 4076))  # a packet is 4102 bytes, so many ns
    world.clock.advance(5 * 4102)
    assert not world.link.a.full
    world.turns.run()
    assert [psn for _, psn in world.arrived] == [0, 1, 2, 3, 4]
    world.pass_time(5 * 4102)
    assert world.arrived[-1] == (1_000 + 10 * 4102, 9)


def test_who_sends_more_is_told_to_hold_back_until_it_has_left() -> None:
    world = World(LineConfig(8 * GBPS))
    sent = 0
    while not world.link.a.full:
        world.link.a.send(data(sent))
        sent += 1
    assert BACKLOG_BYTES < (sent - 1) * 4096 <= BACKLOG_BYTES + 4096  # one is leaving
    world.pass_time(wire_size_bytes(data(0)) + 1)
    assert not world.link.a.full
    world.pass_time(10**9)
    assert [psn for _, psn in world.arrived] == list(range(sent))


def test_a_receiver_that_is_full_stops_the_line_and_the_sending_port_counts_the_time() -> None:
    world = World(LineConfig(8 * GBPS))
    world.full = True
    sent = 0
    while sent * 4096 <= FULL_BYTES + 4 * 4096:
        world.link.a.send(data(sent))
        world.pass_time(wire_size_bytes(data(0)))
        sent += 1
    assert not world.arrived
    waited_from = world.clock.now_ns()
    world.pass_time(10**6)
    assert "a.xmit_wait" not in world.counted
    world.full = False
    world.pass_time(10**8)
    assert [psn for _, psn in world.arrived] == list(range(sent))
    waited = world.counted["a.xmit_wait"] * TICK_NS
    assert 10**6 <= waited <= world.arrived[0][0] - waited_from + 10 * wire_size_bytes(data(0))


def test_what_is_under_way_on_a_long_cable_is_bounded() -> None:
    world = World(LineConfig(8_000 * GBPS, 10**9))
    sent = 0
    while not world.link.a.full:
        world.link.a.send(data(sent))
        world.pass_time(10)
        sent += 1
    assert WINDOW_BYTES <= sent * 4096 <= WINDOW_BYTES + BACKLOG_BYTES + 3 * 4096
    world.pass_time(3 * 10**9)
    assert [psn for _, psn in world.arrived] == list(range(sent))


def test_management_goes_first_and_needs_no_room() -> None:
    world = World(LineConfig(8 * GBPS))
    world.full = True
    for psn in range(300):
        world.link.a.send(data(psn))
    world.link.a.send(management(1000))
    world.pass_time(2 * wire_size_bytes(data(0)) + wire_size_bytes(management(0)))
    world.full = False
    world.pass_time(10**7)
    assert [psn for _, psn in world.arrived].index(1000) == 1
    for psn in range(2000):
        world.link.a.send(management(psn))
    assert world.link.dropped[CableDrop.VL15] > 0


def test_a_pulled_cable_loses_what_is_on_it_and_is_free_again() -> None:
    world = World(LineConfig(8 * GBPS, 10**6))
    for psn in range(10):
        world.link.a.send(data(psn))
    world.pass_time(3 * wire_size_bytes(data(0)) + 1)
    world.link.set_plugged(False)
    assert world.link.dropped == {CableDrop.LINK_DOWN: 10}
    assert world.wires.busy <= 1  # the far end notices in its next turn
    world.link.set_plugged(True)
    world.pass_time(10**7)
    assert not world.arrived
    world.link.a.send(data(11))
    world.pass_time(10**7)
    assert [psn for _, psn in world.arrived] == [11]


def test_without_a_line_a_cable_is_plain_again() -> None:
    world = World(LineConfig(8 * GBPS))
    assert not world.link.a.plain
    world.link.a.set_line(LineConfig(), 1)
    assert world.link.a.plain
    assert world.wires.timed == 1
    world.link.a.send(data(1))
    world.turns.run()
    assert world.arrived == [(1_000, 1)]


def test_rules_act_before_the_line_and_a_delay_is_added() -> None:
    world = World(LineConfig(8 * GBPS))
    world.link.a.faults = FaultInjector()
    world.link.a.faults.rules += [Fault("drop", nth=1), Fault("delay", delay_ns=10_000, nth=1)]
    for psn in range(3):
        world.link.a.send(data(psn))
    size_ns = wire_size_bytes(data(0))
    world.pass_time(10**6)
    assert world.arrived == [(1_000 + size_ns, 2), (1_000 + 10_000 + size_ns, 1)]


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(1e-5, 0.05))
def test_wrong_bits_are_as_many_as_the_rate_says(seed: int, rate: float) -> None:
    noise = Noise(rate, Random(seed))
    bits = wrong = 0
    while bits < 60 / rate:
        for errors, packet in noise.strike(data(0, 1024)):
            wrong += errors
            bits += wire_size_bytes(packet) * 8
            assert packet.good == (errors == 0)
    assert isclose(wrong, bits * rate, abs_tol=8 * (bits * rate) ** 0.5)


def test_bursts_without_a_wrong_bit_stay_whole_and_others_are_cut() -> None:
    noise = Noise(1e-4, Random(3))
    sizes = [[part.count for _, part in noise.strike(replace(BURST))] for _ in range(100)]
    assert [4] in sizes
    assert [1, 1, 1, 1] in sizes
    assert {tuple(size) for size in sizes} == {(4,), (1, 1, 1, 1)}


def test_the_same_seed_damages_the_same_packets() -> None:
    def run(seed: int) -> list[tuple[int, bool]]:
        world = World(LineConfig(bit_error_rate=1e-5), seed)
        for psn in range(200):
            world.link.a.send(data(psn))
        world.turns.run()
        return [(packet.psn, packet.good) for packet in world.packets]

    assert run(1) == run(1) != run(2)
    assert {good for _, good in run(1)} == {True, False}


def test_many_bad_packets_make_the_link_recover_and_too_many_make_it_fall_and_train() -> None:
    world = World(LineConfig(bit_error_rate=0.1))
    for psn in range(BAD_PACKETS):
        world.link.a.send(data(psn, 0))
    assert world.counted["b.symbol_errors"] >= BAD_PACKETS
    assert "b.link_error_recovery" not in world.counted
    world.link.a.send(data(99, 0))
    assert world.counted["b.link_error_recovery"] == 1
    for psn in range(RECOVERIES * (BAD_PACKETS + 1)):
        world.link.a.send(data(psn, 0))
    assert world.counted["b.link_error_recovery"] == RECOVERIES
    world.turns.run()
    assert not world.link.up
    world.pass_time(FALL_NS)
    assert world.link.up
    assert world.changes == [True, True, False, False, True, True]
    assert not any(key.startswith("a.") for key in world.counted)


@pytest.mark.parametrize(
    "fields",
    [{"bit_error_rate": 0.2}, {"bit_error_rate": -1}, {"latency_ns": -1}, {"latency_ns": 11 * 10**9}, {"rate_bps": -1}],
)
def test_there_are_cables_that_cannot_be(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"not in|negative"):
        LineConfig(**fields)  # type: ignore[arg-type]
