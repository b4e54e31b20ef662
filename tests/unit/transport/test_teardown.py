"""What is left of a queue pair's work when it ends, one step at a time."""

from collections.abc import Mapping

import pytest

from firmware.kernel import Kernel
from firmware.model import turns
from firmware.model.counters import Count
from firmware.model.hca import Hca
from firmware.model.qp import ERR, RTS, ST_DCI, Path, Qp
from firmware.model.timers import Timer, TimerKind
from firmware.transport import connected, lifecycle, teardown
from tests.support.driver import Driver
from tests.unit.chip.test_commands import Bench
from tests.unit.mads.smps import port_info
from tests.unit.mads.smps import smp as request
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.connectx.qpc import Qpc
from vhca.wire.mad import METHOD_SET
from vhca.wire.packet import ACKNOWLEDGE, PERMISSIVE_LID, RC, SEND, UD, Packet, Route
from vhca.wire.smp import PORT_INFO

SECOND_NS = 1_000_000_000


class Stage:
    """A card whose driver has made one queue pair; `qp` is the card's side of it."""

    def __init__(self, log_max_qp: int = 18) -> None:
        self.driver = Driver(capabilities={"log_max_qp": log_max_qp})
        self.driver.probe()
        self.bench = Bench(self.driver)
        self.qp = self.create()

    @property
    def hca(self) -> Hca:
        kernel = self.driver.board.firmware
        assert isinstance(kernel, Kernel)
        return kernel.hca

    def create(self) -> Qp:
        qp = self.hca.qps.get(self.bench.qp())
        assert qp is not None
        return qp

    def destroy(self, qp: Qp) -> None:
        self.driver.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qp.handle))

    def fail(self, qp: Qp) -> None:
        qp.state = RTS
        lifecycle.enter_error(self.hca, qp, "as a test wants it")

    def reset(self, qp: Qp) -> None:
        lifecycle.apply(self.hca, qp, Op.QP_2RST, 0, Qpc())

    def pass_time(self, ns: int) -> None:
        self.driver.clock.advance(ns)
        self.driver.board.run_timers(self.driver.clock.now_ns())
        self.driver.run_deferred()


@pytest.mark.parametrize("kind", [TimerKind.ACKNOWLEDGE, TimerKind.RECEIVER_NOT_READY])
def test_an_error_ends_the_timers_of_a_queue_pair(kind: TimerKind) -> None:
    stage = Stage()
    timer = Timer(kind, stage.qp)
    if kind == TimerKind.ACKNOWLEDGE:
        stage.qp.requester.ack_timer = timer
    else:
        stage.qp.requester.rnr_timer = timer
    stage.hca.timers.arm(timer, stage.driver.clock.now_ns() + SECOND_NS)
    stage.fail(stage.qp)
    assert timer.deadline_ns is None
    stage.pass_time(2 * SECOND_NS)
    assert stage.hca.count[Count.RETRANSMITS] == 0


def test_the_trace_has_each_change_of_state_and_nothing_else() -> None:
    stage = Stage()
    said: list[tuple[str, object]] = []

    def trace(what: str, details: Mapping[str, object]) -> None:
        said.append((what, details.get("to")))

    stage.hca.trace = trace
    stage.fail(stage.qp)
    stage.driver.run(Op.QP_2ERR, cmd.Qp2errIn(qpn=stage.qp.handle))
    assert [entry for entry in said if entry[0] == "qp_state"] == [("qp_state", "ERR")]


def test_a_card_without_a_trace_changes_states_all_the_same() -> None:
    stage = Stage()
    stage.hca.trace = None
    stage.fail(stage.qp)
    assert stage.qp.state == ERR


def test_a_number_that_is_given_out_again_is_watched_for_receives_anew() -> None:
    stage = Stage(log_max_qp=0)
    stage.fail(stage.qp)
    stage.destroy(stage.qp)
    assert stage.hca.flushing == {}
    again = stage.create()
    assert again.handle == stage.qp.handle
    stage.fail(again)
    for _ in range(3):
        stage.pass_time(teardown.FLUSH_PERIOD_NS)
        assert list(stage.hca.flushing.values()) == [again]


@pytest.mark.parametrize("work", [turns.SEND, turns.REPLY, turns.FLUSH, turns.STORE])
def test_a_queue_pair_that_was_reset_has_its_turns_again(work: int) -> None:
    stage = Stage()
    hca, qp = stage.hca, stage.qp
    hca.turns.add(work, qp)
    stage.reset(qp)
    assert hca.turns.take() is None
    hca.turns.add(work, qp)
    assert hca.turns.take() == (work, qp)


def test_a_late_answer_finds_no_connection_of_an_initiator_that_was_reset() -> None:
    stage = Stage()
    count = stage.hca.count
    _give_lid(stage.driver, 5)
    initiator = Qp(handle=77, service=ST_DCI, state=RTS, context=Qpc(), pd=stage.qp.pd, path=Path(dlid=9))
    answer = Packet(Route(dlid=5, slid=9), RC, ACKNOWLEDGE, initiator.handle, 0)

    def drops() -> tuple[int, int]:
        connected.receive(stage.hca, stage.hca.ports[1], initiator, answer)
        return count[Count.RX_DROP_QP_STATE], count[Count.RX_DROP_PATH]

    assert drops() == (0, 0)
    stage.reset(initiator)
    assert drops() == (1, 0)
    initiator.state = RTS
    assert drops() == (1, 1)


def _give_lid(driver: Driver, lid: int) -> None:
    """What a subnet manager does first."""
    mad = request(METHOD_SET, PORT_INFO, 1, port_info(lid=lid))
    driver.board.link_change(1, True)
    driver.board.packet_in(1, Packet(Route(PERMISSIVE_LID, 1, vl=15), UD, SEND, 0, 3, mad, mtu=256))
    driver.run_deferred()
