from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packets import divert
from tests.unit.fabric.bench import Bench, Turns
from vhca.fabric.counters import CableDrop
from vhca.fabric.faults import Action, Fault, FaultInjector
from vhca.fabric.link import DELAYED_BYTES, DELAYED_PACKETS, FULL_BYTES, FULL_PACKETS, PACKETS_PER_TURN, Link
from vhca.wire.packet import RC, READ_REQUEST, SEND, UD, WRITE, Packet, Route


class End:
    def __init__(self) -> None:
        self.inbox: list[Packet] = []
        self.changes: list[bool] = []
        self.echo: Link | None = None
        self.full = False

    def blocked(self, packet: Packet) -> bool:
        return self.full

    def receive(self, packet: Packet) -> None:
        self.inbox.append(packet)
        if self.echo is not None:
            depth = len(self.inbox)
            self.echo.b.send(packet)
            assert len(self.inbox) == depth, "delivery is re-entrant"

    def link_changed(self, up: bool) -> None:
        self.changes.append(up)


class LinkBench:
    def __init__(self) -> None:
        self.turns = Turns()
        self.later: list[tuple[int, object]] = []
        self.link = Link(self.turns.call_soon, lambda delay, fn: self.later.append((delay, fn)), "a", "b")
        self.a, self.b = End(), End()
        self.link.a.attach(self.a)
        self.link.b.attach(self.b)
        self.turns.run()


def packet(psn: int, payload: bytes = b"data") -> Packet:
    return Packet(Route(1, 2), RC, SEND, 3, psn, payload)


BURST = Packet(Route(1, 2), RC, WRITE, 3, 0, bytes(1000), 4, mtu=256)


def test_order_and_no_reentrance() -> None:
    bench = LinkBench()
    bench.b.echo = bench.link
    for psn in range(5):
        bench.link.a.send(packet(psn))
    assert bench.b.inbox == []
    bench.turns.run()
    assert [p.psn for p in bench.b.inbox] == [0, 1, 2, 3, 4]
    assert [p.psn for p in bench.a.inbox] == [0, 1, 2, 3, 4]


def test_up_needs_cable_and_both_ends() -> None:
    bench = LinkBench()
    assert (bench.link.up, bench.a.changes, bench.b.changes) == (True, [True], [True])
    bench.link.a.send(packet(0))
    bench.link.b.set_enabled(False)
    bench.link.a.send(packet(1))
    bench.turns.run()
    assert bench.b.inbox == []
    assert bench.link.dropped == {CableDrop.LINK_DOWN: 2}
    bench.link.set_plugged(False)
    bench.link.b.set_enabled(True)
    bench.turns.run()
    assert bench.a.changes == [True, False]
    bench.link.set_plugged(True)
    bench.link.a.bounce()
    bench.turns.run()
    assert bench.b.changes == [True, False, True, False, True]


def test_bursts_travel_whole_and_taps_see_them() -> None:
    bench = LinkBench()
    seen: list[tuple[str, int]] = []
    bench.link.a.sent_taps.append(lambda p: seen.append(("a", p.count)))
    bench.link.b.arrival_taps.append(lambda p: seen.append(("b", p.count)))
    bench.link.a.send(BURST)
    assert seen == [("a", 4)]
    bench.turns.run()
    assert [p.count for p in bench.b.inbox] == [4]
    assert seen == [("a", 4), ("b", 4)]


def faulty(*rules: Fault, count: int = 4) -> list[Packet]:
    injector = FaultInjector(seed=3)
    injector.rules += rules
    out: list[Packet] = []
    for psn in range(count):
        out += [p for _, p in injector.apply(packet(psn))]
    return out + injector.flush()


def test_each_kind_of_fault() -> None:
    assert [p.psn for p in faulty(Fault("drop", skip=1, limit=1))] == [0, 2, 3]
    assert [p.psn for p in faulty(Fault("drop", match=lambda p: p.psn == 3))] == [0, 1, 2]
    assert [p.psn for p in faulty(Fault("duplicate", limit=1))] == [0, 0, 1, 2, 3]
    assert [p.psn for p in faulty(Fault("reorder", limit=1))] == [1, 0, 2, 3]
    assert [p.psn for p in faulty(Fault("reorder", match=lambda p: p.psn == 3))] == [0, 1, 2, 3]
    damaged = faulty(Fault("corrupt", limit=1))
    assert not damaged[0].good
    assert damaged[0].payload != b"data"
    assert [p.good for p in damaged[1:]] == [True] * 3
    some = [p.psn for p in faulty(Fault("drop", probability=0.5), count=100)]
    assert 20 < len(some) < 80
    assert some == [p.psn for p in faulty(Fault("drop", probability=0.5), count=100)], "seeded"


def test_rules_cut_bursts_and_count_losses() -> None:
    bench = LinkBench()
    bench.link.a.faults = FaultInjector()
    bench.link.a.faults.rules.append(Fault("drop", match=lambda p: p.psn == 2))
    bench.link.a.send(replace(BURST))
    bench.turns.run()
    assert [(p.psn, p.count) for p in bench.b.inbox] == [(0, 1), (1, 1), (3, 1)]
    assert bench.link.dropped == {CableDrop.FAULT: 1}


def test_delay_uses_the_timer() -> None:
    bench = LinkBench()
    bench.link.a.faults = FaultInjector()
    bench.link.a.faults.rules.append(Fault("delay", delay_ns=500, limit=1))
    bench.link.a.send(packet(0))
    bench.link.a.send(packet(1))
    bench.turns.run()
    assert [p.psn for p in bench.b.inbox] == [1]
    delay, fn = bench.later[0]
    assert delay == 500
    assert callable(fn)
    fn()
    bench.turns.run()
    assert [p.psn for p in bench.b.inbox] == [1, 0]


@pytest.mark.parametrize(("size", "most"), [(0, DELAYED_PACKETS), (4096, DELAYED_BYTES >> 12)])
def test_a_cable_that_delays_packets_is_full_of_them(size: int, most: int) -> None:
    bench = LinkBench()
    end = bench.link.a
    end.faults = FaultInjector()
    end.faults.rules.append(Fault("delay", delay_ns=10**12, management=True))
    for psn in range(most):
        assert not end.full
        end.send(replace(packet(psn), payload=bytes(size), mtu=4096))
    end.send(replace(packet(most), payload=bytes(size), mtu=4096))
    assert end.full
    # Management has no credits: it is lost.
    end.send(divert(packet(0), vl=15))
    assert (len(bench.later), bench.link.dropped[CableDrop.VL15]) == (most + 1, 1)
    assert not bench.link.b.full
    for _, over in bench.later:
        assert callable(over)
        over()
    bench.turns.run()
    assert not end.full
    assert len(bench.b.inbox) == most + 1


@given(st.lists(st.sampled_from(["drop", "duplicate", "reorder", "corrupt"]), max_size=4), st.integers(0, 99))
def test_nothing_is_invented(actions: list[Action], seed: int) -> None:
    injector = FaultInjector(seed)
    injector.rules += [Fault(action, probability=0.4) for action in actions]
    out = [p for _, p in injector.apply(BURST)] + injector.flush()
    assert {p.psn for p in out} <= {0, 1, 2, 3}
    if "drop" not in actions:
        assert {p.psn for p in out} == {0, 1, 2, 3}


def test_faults_of_a_fabric_port() -> None:
    bench = Bench(2)
    bench.run()
    a, b = bench.cards
    bench.fabric.add_fault("hca1", Fault("corrupt"))
    a.port.send(a.data(b.lid))
    bench.run()
    assert [p.good for p in b.inbox] == [False]
    bench.fabric.clear_faults("hca1")
    bench.fabric.add_fault("hca0", Fault("reorder"), "from_card")
    a.port.send(a.data(b.lid, psn=7))
    bench.run()
    assert len(b.inbox) == 1
    bench.fabric.clear_faults("hca0")
    bench.run()
    assert b.inbox[-1].psn == 7
    bench.fabric.add_fault("hca0", Fault("delay", delay_ns=1000), "from_card")
    a.port.send(a.data(b.lid, psn=8))
    bench.run()
    assert b.inbox[-1].psn == 7
    bench.pass_time(0.001)
    assert b.inbox[-1].psn == 8


def test_a_full_receiver_keeps_packets_on_the_cable_in_order() -> None:
    bench = LinkBench()
    bench.b.full = True
    for psn in range(3):
        bench.link.a.send(packet(psn))
    for _ in range(5):
        bench.turns.one()
    assert bench.b.inbox == []
    bench.b.full = False
    bench.turns.run()
    assert [item.psn for item in bench.b.inbox] == [0, 1, 2]
    assert not bench.link.dropped


def test_a_cable_tells_its_sender_when_it_is_full_by_bytes_and_by_packets() -> None:
    for count, payload in ((FULL_PACKETS + 1, b""), (2, bytes(FULL_BYTES // 2 + 1))):
        bench = LinkBench()
        bench.b.full = True
        for psn in range(count - 1):
            bench.link.a.send(packet(psn, payload))
        assert not bench.link.a.full
        bench.link.a.send(packet(count, payload))
        assert bench.link.a.full
        assert not bench.link.b.full
        # Management has no credits: it is lost, and counted, where data would wait.
        bench.link.a.send(divert(packet(0), vl=15))
        assert bench.link.dropped[CableDrop.VL15] == 1
        bench.b.full = False
        bench.turns.run()
        assert not bench.link.a.full
        assert len(bench.b.inbox) == count


def test_a_pulled_cable_is_empty() -> None:
    bench = LinkBench()
    bench.link.a.send(packet(0, bytes(FULL_BYTES + 1)))
    assert bench.link.a.full
    bench.link.set_plugged(False)
    assert not bench.link.a.full


def test_one_turn_hands_over_a_bounded_number() -> None:
    bench = LinkBench()
    for psn in range(PACKETS_PER_TURN + 1):
        bench.link.a.send(packet(psn))
    bench.turns.one()
    assert len(bench.b.inbox) == PACKETS_PER_TURN
    bench.turns.run()
    assert len(bench.b.inbox) == PACKETS_PER_TURN + 1


def test_rules_name_what_they_mean() -> None:
    write = Packet(Route(2, 1), RC, WRITE, 0x11, 5, b"y" * 1024, 4, mtu=256, va=1, rkey=2, dma_length=1024)
    read = Packet(Route(2, 1), RC, READ_REQUEST, 0x11, 9, va=1, rkey=2, dma_length=4)
    datagram = Packet(Route(2, 1), UD, SEND, 0x30, 1, b"ipoib", src_qp=0x31)
    question = Packet(Route(2, 1), UD, SEND, 1, 1, bytes(256), src_qp=1)

    def left(fault: Fault) -> list[int]:
        injector = FaultInjector()
        injector.rules.append(fault)
        return [p.psn for sent in (question, datagram, write, read) for _, p in injector.apply(sent)]

    third = Fault("drop", opcode="RDMA_WRITE", nth=3)
    assert left(third) == [1, 1, 5, 6, 8, 9]
    assert (third.seen, third.hits) == (3, 1)
    assert left(Fault("drop", opcode="rc_rdma_write_last")) == [1, 1, 5, 6, 7, 9]
    assert left(Fault("drop", dest_qp=0x11)) == [1, 1]
    assert left(Fault("drop", psn=9)) == [1, 1, 5, 6, 7, 8]
    assert left(Fault("drop")) == [1], "management is left alone"
    assert left(Fault("drop", management=True)) == []
    assert left(Fault("drop", opcode="SEND", management=True)) == [5, 6, 7, 8, 9]
    assert left(Fault("drop", skip=1, limit=2)) == [1, 1, 7, 8, 9]


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "explode"},
        {"probability": 1.5},
        {"nth": 0},
        {"nth": 2, "limit": 3},
        {"skip": -1},
        {"delay_ns": -1},
        {"opcode": "WRIGHT"},
        {"opcode": "RDMA_WRI"},
    ],
)
def test_rules_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Fault(**{"action": "drop", **wrong})


def test_a_rule_says_what_it_does() -> None:
    assert str(Fault("drop", opcode="RDMA_WRITE", nth=3)) == "drop opcode RDMA_WRITE nth 3"
    assert (
        str(Fault("delay", delay_ns=2_500_000, probability=0.5, limit=2)) == "delay by 2.5 ms limit 2 probability 0.5"
    )


def test_directions_of_a_rule() -> None:
    """Without a word about it a cable is bad both ways, and the rule counts both."""
    for direction, hits, lost in (("both", 2, (1, 1)), ("from_card", 1, (0, 1)), ("to_card", 1, (1, 0))):
        bench = Bench(2)
        bench.run()
        a, b = bench.cards
        rule = Fault("drop", limit=5)
        if direction == "both":
            bench.fabric.add_fault("hca1", rule)
        else:
            bench.fabric.add_fault("hca1", rule, direction)  # type: ignore[arg-type]
        a.port.send(a.data(b.lid))
        b.port.send(b.data(a.lid))
        bench.run()
        assert rule.hits == hits, direction
        assert (1 - len(b.inbox), 1 - len(a.inbox)) == lost, direction
        assert bench.fabric.faults("hca1") == [(direction, rule)]
        assert bench.fabric.faults("hca0") == []
    with pytest.raises(ValueError, match="direction"):
        bench.fabric.add_fault("hca1", rule, "sideways")  # type: ignore[arg-type]


def test_a_link_that_is_held_falls_and_does_not_train() -> None:
    bench = LinkBench()
    bench.link.hold(True)
    bench.turns.run()
    bench.link.set_plugged(False)
    bench.link.set_plugged(True)
    bench.link.a.bounce()
    bench.turns.run()
    assert not bench.link.up
    assert not bench.link.offered
    bench.link.hold(False)
    bench.turns.run()
    assert bench.a.changes == bench.b.changes == [True, False, True]


def test_what_is_on_the_way_can_be_counted() -> None:
    bench = LinkBench()
    bench.link.a.send(packet(1))
    bench.link.a.send(replace(packet(2), count=3))
    assert (bench.link.a.waiting, bench.link.b.waiting) == (0, 4)
    bench.turns.run()
    assert (len(bench.b.inbox), bench.link.b.waiting) == (2, 0)
