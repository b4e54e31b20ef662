"""The life cycle table: what leads where, what a transition takes over, what it refuses."""

import ast
import itertools
import operator
from pathlib import Path

import pytest

from firmware.mads.port import GUID_CAP, PARTITION_CAP
from firmware.model.counters import Count
from firmware.model.objects import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from firmware.model.qp import ERR, INIT, RST, RTR, RTS, SQD, SQER, ST_DCI, ST_DCT, ST_REG_UMR
from firmware.transport import lifecycle
from firmware.transport.attributes import ack_timeout_ns, live_context
from firmware.transport.lifecycle import (
    TRANSITIONS,
    Attribute,
    QpEvent,
    find,
    happen,
)
from tests.lifecycle_page import main, unreachable
from tests.scenario.world import ST_QP0, ST_QP1, ST_RC, ST_UC, ST_UD, ST_XRC, End, World, pair
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.qpc import OptParam, Qpc, QpState

# Copied from the driver's point of view, not from the table: (from, command) -> to.
LEGAL = {
    (RST, Op.RST2INIT_QP): INIT,
    (INIT, Op.INIT2INIT_QP): INIT,
    (INIT, Op.INIT2RTR_QP): RTR,
    (RTR, Op.RTR2RTS_QP): RTS,
    (RTS, Op.RTS2RTS_QP): RTS,
    (SQER, Op.SQERR2RTS_QP): RTS,
    (SQD, Op.SQD_RTS_QP): RTS,
    **{(state, Op.QP_2ERR): ERR for state in (RST, INIT, RTR, RTS, SQER, SQD, ERR)},
    **{(state, Op.QP_2RST): RST for state in (RST, INIT, RTR, RTS, SQER, SQD, ERR)},
}
COMMANDS = sorted({row.cause for row in TRANSITIONS if isinstance(row.cause, Op)})


@pytest.mark.parametrize(("start", "op"), [*itertools.product((RST, INIT, RTR, RTS, SQER, SQD, ERR), COMMANDS)])
def test_every_pair_of_state_and_command(start: int, op: Op) -> None:
    world = World(1 << 20)
    end = End(world.a)
    end.to_init()
    end.qp.state = start
    status = end.apply(op, mtu=3, path_rlid=2)
    if (start, op) in LEGAL:
        assert (status, end.qp.state) == (Status.OK, LEGAL[start, op])
    else:
        assert (status, end.qp.state) == (Status.BAD_QP_STATE, start)
        assert end.qp.refusal


@pytest.mark.parametrize(
    ("op", "fields", "status"),
    [
        (Op.RST2INIT_QP, {"path_vhca_port_num": 2}, Status.BAD_PARAM),
        (Op.RST2INIT_QP, {"path_vhca_port_num": 0}, Status.BAD_PARAM),
        (Op.RST2INIT_QP, {"path_vhca_port_num": 1, "path_pkey_index": PARTITION_CAP}, Status.BAD_PARAM),
        (Op.RST2INIT_QP, {"path_vhca_port_num": 1, "counter_set_id": 9}, Status.BAD_RES),
        (Op.INIT2RTR_QP, {"mtu": 0}, Status.BAD_PARAM),
        (Op.INIT2RTR_QP, {"mtu": 6}, Status.BAD_PARAM),
        (Op.INIT2RTR_QP, {"mtu": 5, "path_rlid": 0xC000}, Status.BAD_PARAM),
        (Op.INIT2RTR_QP, {"mtu": 5, "path_grh": 1, "path_src_addr_index": GUID_CAP}, Status.BAD_PARAM),
    ],
)
def test_wrong_attribute_is_refused_and_changes_nothing(op: Op, fields: dict[str, int], status: Status) -> None:
    end = End(World(1 << 20).a)
    if op != Op.RST2INIT_QP:
        end.to_init()
    before = (end.qp.state, end.qp.context.to_bytes())
    assert end.apply(op, **fields) == status
    assert (end.qp.state, end.qp.context.to_bytes()) == before
    assert end.qp.refusal


def test_without_memory_for_answers_there_is_no_responder() -> None:
    end = End(World(1 << 20).a)
    end.to_init()
    budget = end.card.hca.budget
    used = budget.limit = budget.used
    budget.ask = lambda: used
    assert end.apply(Op.INIT2RTR_QP, mtu=3, path_rlid=2, log_rra_max=2) == Status.LIM_ERR
    assert (end.qp.state, budget.used) == (INIT, used)
    assert end.qp.refusal


def test_required_attributes_are_taken_without_a_flag_and_optional_ones_only_with_it() -> None:
    _, a, _ = pair()
    assert a.qp.remote_rights == REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC
    assert a.apply(Op.RTS2RTS_QP, 0, rwe=0, rre=0, retry_count=1) == 0
    assert a.qp.remote_rights == REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC
    assert a.apply(Op.RTS2RTS_QP, 1 << OptParam.RWE, rwe=0, rre=0) == 0
    assert a.qp.remote_rights == REMOTE_READ | REMOTE_ATOMIC
    mask = 1 << OptParam.RRE | 1 << OptParam.RAE
    assert a.apply(Op.RTS2RTS_QP, mask, rre=0, rae=0) == 0
    assert a.qp.remote_rights == 0


@pytest.mark.parametrize(
    ("service", "op", "bit"),
    [
        (ST_RC, Op.RTS2RTS_QP, OptParam.Q_KEY),
        (ST_UC, Op.RTS2RTS_QP, OptParam.RRE),
        (ST_UD, Op.RTS2RTS_QP, OptParam.RWE),
        # The driver's table has these two; no verb ever sets them, and nothing here could carry them out.
        (ST_UD, Op.RTS2RTS_QP, OptParam.SRQN),
        (ST_UD, Op.RTS2RTS_QP, OptParam.CQN_RCV),
    ],
)
def test_attribute_that_the_service_does_not_have_is_refused(service: int, op: Op, bit: int) -> None:
    _, a, _ = pair(service)
    assert a.apply(op, 1 << bit) == Status.BAD_PARAM
    assert a.qp.refusal


def test_every_optional_attribute_can_be_flagged_and_every_field_exists() -> None:
    for row in TRANSITIONS:
        assert all(attribute.flag is not None for attribute in row.optional)
        for service in row.services:
            mask = row.allowed(service)
            for name in row.carried(service, mask):
                assert operator.attrgetter(name)(Qpc()) is not None
    flags = [attribute.flag for attribute in Attribute if attribute.flag is not None]
    assert len(flags) == len(set(flags))


def test_no_two_rows_are_for_the_same_thing() -> None:
    keys = [(row.source, row.cause, service) for row in TRANSITIONS for service in row.services]
    assert len(keys) == len(set(keys))


def test_the_states_that_no_transition_leads_to() -> None:
    assert unreachable() == [QpState.SQD, QpState.SQ_DRAINING]
    # The driver's interface has no command for it, or this table would have to.
    assert not {op.name for op in Op} & {"RTS2SQD_QP", "RTS2SQD", "SQD2SQD_QP"}


@pytest.mark.parametrize("service", [ST_RC, ST_XRC, ST_UC, ST_UD, ST_QP0, ST_QP1, ST_DCI, ST_REG_UMR])
def test_what_the_device_does_by_itself(service: int) -> None:
    def target(state: int, event: QpEvent) -> int | None:
        row = find(state, event, service)
        return None if row is None else row.target

    stops_sending = service in (ST_UC, ST_UD, ST_QP0, ST_QP1)
    assert target(RTS, QpEvent.SEND_ERROR) == (SQER if stops_sending else ERR)
    assert [target(state, QpEvent.ERROR) for state in (RTR, RTS, SQER, ERR)] == [ERR] * 4
    for event in QpEvent:
        assert target(RST, event) is None
        assert target(INIT, event) is None
    assert target(RTR, QpEvent.SEND_ERROR) is None


def test_the_targets_side_of_a_dc_connection_knows_no_command() -> None:
    rows = {(row.source, row.cause): row.target for row in TRANSITIONS if ST_DCT in row.services}
    assert rows == {
        (RST, QpEvent.CONNECT): RTS,
        (RTS, QpEvent.ERROR): ERR,
        (ERR, QpEvent.ERROR): ERR,
        (RTS, QpEvent.DISCONNECT): ERR,
        (ERR, QpEvent.DISCONNECT): ERR,
    }


def test_nobody_else_changes_a_state() -> None:
    """Queue pairs are made in RST, and only the table's own code stores a state."""
    root = Path(lifecycle.__file__).parents[1]
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if hasattr(node, "target") else []
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr == "state":
                    found.append((str(path.relative_to(root)), ast.unparse(target)))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Qp":
                assert "state" not in [keyword.arg for keyword in node.keywords], path
    assert [place for place in found if not place[1].startswith(("context.", "out."))] == [
        ("transport/lifecycle.py", "qp.state")
    ]


def test_counter_binding_brings_an_empty_context() -> None:
    _, a, _ = pair()
    a.counter.values.clear()
    before = a.qp.context.to_bytes()
    status = a.apply(Op.RTS2RTS_QP, 1 << OptParam.COUNTER_SET_ID, counter_set_id=a.counter_set)
    assert status == 0
    assert a.qp.counter is a.counter
    assert a.qp.context.to_bytes() == before


@pytest.mark.parametrize("service", [ST_QP0, ST_QP1])
def test_management_queue_pairs_are_found_by_port_from_init_to_reset(service: int) -> None:
    world = World(1 << 20)
    end = End(world.a, service)
    number = 0 if service == ST_QP0 else 1
    end.to_init()
    assert world.a.hca.special_qps == {(1, number): end.qp}
    end.destroy()
    assert world.a.hca.special_qps == {}


@pytest.mark.parametrize("service", [ST_QP0, ST_QP1, ST_RC])
def test_a_port_has_one_management_queue_pair_of_each_kind(service: int) -> None:
    world = World(1 << 20)
    End(world.a, service).to_init()
    second = End(world.a, service)
    status = second.apply(Op.RST2INIT_QP, path_vhca_port_num=1)
    assert bool(status) is (service != ST_RC)


def test_query_returns_live_numbers() -> None:
    world, a, b = pair()
    a.write(a.buffer(3000), 3000, b.buffer(3000), b.card.key)
    world.settle()
    left, right = live_context(a.qp), live_context(b.qp)
    assert (left.next_send_psn, left.last_acked_psn, left.hw_sq_wqebb_counter) == (0xFFFFF3, 0xFFFFF2, 1)
    assert (right.next_rcv_psn, right.rmsn, right.state) == (0xFFFFF3, 1, RTS)
    assert (left.cur_retry_count, left.cur_rnr_retry) == (3, 3)
    assert a.qp.requester.timeout_ns == ack_timeout_ns(14)
    a.apply(Op.QP_2ERR)
    assert live_context(a.qp).state == ERR


@pytest.mark.parametrize(
    ("exponent", "wait_ns"),
    [(0, 0), (1, 50_000_000), (12, 4 * 4096 << 12), (14, 4 * 4096 << 14), (15, 300_000_000), (19, 4096 << 19)],
)
def test_an_acknowledge_is_waited_for_at_most_four_times_as_long_as_was_asked(exponent: int, wait_ns: int) -> None:
    """9.7.6.1.3; a connection manager asks for seconds, and four times that is too long for one lost packet."""
    assert ack_timeout_ns(exponent) == wait_ns


def test_a_registration_queue_takes_its_domain_from_the_command() -> None:
    for service, domain in ((ST_REG_UMR, 7), (ST_RC, 0)):
        end = End(World(1 << 20).a, service)
        end.qp.pd = 0
        end.to_init(pd=7)
        assert end.qp.pd == domain


def test_every_change_of_state_is_traced() -> None:
    world, a, _ = pair()
    a.apply(Op.QP_2ERR)
    steps = [
        (details["from"], details["to"])
        for what, details in world.a.traces
        if what == "qp_state" and details["qpn"] == a.qpn
    ]
    assert steps == [("RST", "INIT"), ("INIT", "RTR"), ("RTR", "RTS"), ("RTS", "ERR")]


def test_destroy_leaves_no_timer_behind() -> None:
    world, a, b = pair()
    world.fault = lambda packet: []
    a.write(a.buffer(8), 8, b.buffer(8), b.card.key)
    assert world.a.hca.timers.next_deadline() is not None
    a.destroy()
    assert world.a.hca.timers.next_deadline() is None
    b.apply(Op.QP_2ERR)
    b.destroy()
    world.pass_time(10_000_000)
    assert world.b.hca.timers.next_deadline() is None


def test_a_page_that_the_table_does_not_say_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    assert main([str(page), "--check"]) == 1
    assert main([str(page)]) == 0
    assert main([str(page), "--check"]) == 0
    text = page.read_text("utf-8")
    assert "RTS --> SQER : SEND_ERROR (UC, UD, QP0, QP1)" in text
    assert "**No transition leads to SQD and SQ_DRAINING.**" in text
    page.write_text(text.replace("SQER", "SQE"), "utf-8")
    capsys.readouterr()
    assert main([str(page), "--check"]) == 1
    assert "is stale" in capsys.readouterr().err


@pytest.mark.parametrize("event", [QpEvent.ERROR, QpEvent.SEND_ERROR])
def test_an_event_that_a_state_does_not_know_is_counted_and_changes_nothing(event: QpEvent) -> None:
    world, a, _ = pair()
    hca = world.a.hca
    a.apply(Op.QP_2RST)
    happen(hca, a.qp, event, "nobody thought of it")
    assert hca.count[Count.QP_EVENTS_WITHOUT_ROW] == 1
    assert a.qp.state == RST
