"""Attributes of queue pairs: what the card announces is what a transition takes."""

from firmware.model.budget import RESOURCE_BYTES
from firmware.model.counters import QCount
from firmware.transport.attributes import live_context
from tests.scenario.world import ACCESS_ERROR_EVENT, FOREVER_NS, End, World, pair
from vhca.wire.connectx.cmd import Op, QueryQCounterIn, QueryQCounterOut, Status
from vhca.wire.connectx.eqe import Eqe
from vhca.wire.connectx.qpc import OptParam


def test_log_msg_max_is_within_what_the_card_announces() -> None:
    world = World()
    a = End(world.a)
    # UCX takes a card for a ConnectX only if it is exactly this.
    assert world.a.hca.capabilities.general.log_max_msg == 30
    a.to_init()
    assert a.apply(Op.INIT2RTR_QP, mtu=3, log_msg_max=31) == Status.BAD_PARAM
    assert a.apply(Op.INIT2RTR_QP, mtu=3, log_msg_max=30) == Status.OK


def test_answers_to_repeated_requests_are_paid_for_until_the_reset() -> None:
    world = World()
    a, budget = End(world.a), world.a.hca.budget
    used = budget.used
    a.to_init()
    a.to_rtr(a, log_rra_max=3)
    assert budget.used == used + 8 * RESOURCE_BYTES
    assert a.apply(Op.QP_2RST) == Status.OK
    assert budget.used == used


def test_an_event_of_a_queue_pair_has_no_sub_type() -> None:
    world, a, b = pair()
    a.write(a.buffer(8), 8, 0, 0x666600)
    world.settle()
    event = Eqe.from_bytes(b.card.memory.read(b.card.eq_addr, 64))
    assert (event.event_type, event.event_sub_type) == (ACCESS_ERROR_EVENT, 0)


def test_the_alternate_path_is_kept_for_whoever_asks() -> None:
    _, a, _ = pair()
    for flagged in (False, True):
        assert a.apply(Op.RTS2RTS_QP, flagged << OptParam.ALT_ADDR_PATH, alternate_rlid=0x77) == Status.OK
        assert live_context(a.qp).secondary_address_path.rlid == 0x77 * flagged


def test_a_live_queue_pair_changes_its_counter_set() -> None:
    world, a, b = pair()
    assert world.a.hca.capabilities.general.rts2rts_qp_counters_set_id
    own = world.a.hca.q_counters.get(world.a.alloc_q_counter())
    assert own is not None
    for expected in (own, a.counter):
        world.fault = lambda packet: []
        assert a.apply(Op.RTS2RTS_QP, 1 << OptParam.COUNTER_SET_ID, counter_set_id=expected.handle) == Status.OK
        a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
        world.pass_time(300_000_000)
        assert expected.values.pop(QCount.LOCAL_ACK_TIMEOUT_ERR) == 1
        world.fault = None
        world.pass_time(FOREVER_NS)
        assert [c.syndrome for c in a.send_cq.poll()] == [0]
        for number in (own.handle, a.counter_set):
            view = QueryQCounterIn(clear=1, counter_set_id=number)
            world.a.run(Op.QUERY_Q_COUNTER, view, out_size=QueryQCounterOut.SIZE)
    assert a.apply(Op.RTS2RTS_QP, 1 << OptParam.COUNTER_SET_ID, counter_set_id=0x77) == Status.BAD_RES
