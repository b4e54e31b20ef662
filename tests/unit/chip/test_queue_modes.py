"""What queues may be created with: sizes of completion entries, data in them, doorbells without records."""

import pytest

from firmware.kernel import Kernel
from firmware.model.rings import RecordlessSendQueue
from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


def create_cq(driver: Driver, cqe_sz: int) -> int:
    eqn, _ = driver.create_eq(4, 0)
    view = cmd.CreateCqIn()
    view.cq_context.log_cq_size = 4
    view.cq_context.c_eqn_or_apu_element = eqn
    view.cq_context.cqe_sz = cqe_sz
    out = driver.run(Op.CREATE_CQ, view, driver.pages(driver.alloc(4096), 4096))
    return cmd.CreateCqOut.from_bytes(out).cqn


def create_qp(driver: Driver, cqn: int, cs_res: int = 0, cs_req: int = 0, **fields: int) -> int:
    view = cmd.CreateQpIn()
    view.qpc.pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    view.qpc.uar_page = driver.uar
    view.qpc.log_sq_size = 2
    view.qpc.log_rq_size = 2
    view.qpc.cqn_snd = view.qpc.cqn_rcv = cqn
    view.qpc.cs_res, view.qpc.cs_req = cs_res, cs_req
    for name, value in fields.items():
        setattr(view.qpc, name, value)
    out = driver.run(Op.CREATE_QP, view, driver.pages(driver.alloc(4096), 4096))
    return cmd.CreateQpOut.from_bytes(out).qpn


@pytest.mark.parametrize("cqe_sz", [0, 1, 2])
def test_entry_sizes_are_told_back(driver: Driver, cqe_sz: int) -> None:
    view = cmd.QueryCqIn(cqn=create_cq(driver, cqe_sz))
    out = cmd.QueryCqOut.from_bytes(driver.run(Op.QUERY_CQ, view, out_size=cmd.QueryCqOut.SIZE))
    assert out.cq_context.cqe_sz == cqe_sz


def test_other_entry_sizes_are_refused(driver: Driver) -> None:
    with pytest.raises(CommandFailed) as error:
        create_cq(driver, 3)
    assert error.value.status == Status.BAD_PARAM


@pytest.mark.parametrize(
    ("cqe_sz", "cs_res", "cs_req", "receive", "read"),
    [(0, 0, 0, 0, 0), (0, 1, 0x11, 32, 32), (1, 2, 0x22, 64, 64), (1, 1, 0x22, 32, 64), (0, 2, 0x22, 0, 0)],
)
def test_room_for_data(driver: Driver, cqe_sz: int, cs_res: int, cs_req: int, receive: int, read: int) -> None:
    qpn = create_qp(driver, create_cq(driver, cqe_sz), cs_res, cs_req)
    assert isinstance(driver.board.firmware, Kernel)
    qp = driver.board.firmware.hca.qps.get(qpn)
    assert qp is not None
    assert (qp.inline_receive, qp.inline_read) == (receive, read)


def test_completions_of_other_services_hold_no_data(driver: Driver) -> None:
    """An XRC target completes to queues that are not its own, with entries of another size maybe."""
    xrcd = cmd.AllocXrcdOut.from_bytes(driver.run(Op.ALLOC_XRCD)).xrcd
    qpn = create_qp(driver, create_cq(driver, 1), 2, 0x22, st=3, xrcd=xrcd, rq_type=3)
    assert isinstance(driver.board.firmware, Kernel)
    qp = driver.board.firmware.hca.qps.get(qpn)
    assert qp is not None
    assert (qp.inline_receive, qp.inline_read) == (0, 0)


@pytest.mark.parametrize(("cs_res", "cs_req"), [(3, 0), (0, 1), (0, 0x33), (0x11, 0)])
def test_other_modes_are_refused(driver: Driver, cs_res: int, cs_req: int) -> None:
    cqn = create_cq(driver, 1)
    with pytest.raises(CommandFailed) as error:
        create_qp(driver, cqn, cs_res, cs_req)
    assert error.value.status == Status.BAD_PARAM


def test_a_send_queue_without_a_doorbell_record(driver: Driver) -> None:
    qpn = create_qp(driver, create_cq(driver, 0), send_dbr_mode=1)
    assert isinstance(driver.board.firmware, Kernel)
    qp = driver.board.firmware.hca.qps.get(qpn)
    assert qp is not None
    assert isinstance(qp.sq, RecordlessSendQueue)
    # The last WQE began at block 3 and has 5 units, which is two blocks.
    driver.bar_write((driver.uar << 12) + 0x600, (3 << 8 | 0xA).to_bytes(4, "big") + (qpn << 8 | 5).to_bytes(4, "big"))
    assert qp.sq.refresh(driver.memory) == 4
    assert qp.sq.posted == 5
    qp.sq.rung(0xFFFF << 8, qpn << 8 | 4)
    assert qp.sq.posted == 0
    qp.sq.reset()
    assert (qp.sq.posted, qp.sq.refresh(driver.memory)) == (0, 0)


@pytest.mark.parametrize("fields", [{"send_dbr_mode": 2}, {"send_dbr_mode": 3}])
def test_other_doorbells_are_refused(driver: Driver, fields: dict[str, int]) -> None:
    cqn = create_cq(driver, 0)
    with pytest.raises(CommandFailed) as error:
        create_qp(driver, cqn, **fields)
    assert error.value.status == Status.BAD_PARAM


def test_data_fit_the_entries_of_the_queue_that_receives_complete_to(driver: Driver) -> None:
    """An XRC SRQ has a CQ of its own, and its entries may be smaller than those of the queue pair's."""
    small, large = create_cq(driver, 0), create_cq(driver, 1)
    view = cmd.CreateXrcSrqIn()
    context = view.xrc_srq_context_entry
    context.log_xrc_srq_size, context.log_rq_stride, context.cqn = 4, 2, small
    context.pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    context.xrcd = cmd.AllocXrcdOut.from_bytes(driver.run(Op.ALLOC_XRCD)).xrcd
    out = driver.run(Op.CREATE_XRC_SRQ, view, driver.pages(driver.alloc(4096), 4096))
    srqn = cmd.CreateXrcSrqOut.from_bytes(out).xrc_srqn
    assert isinstance(driver.board.firmware, Kernel)
    qps = driver.board.firmware.hca.qps
    for number, room in ((srqn, 0), (0, 64)):
        qp = qps.get(create_qp(driver, large, 2, 0x22, rq_type=1 if number else 0, srqn_rmpn_xrqn=number))
        assert qp is not None
        assert (qp.inline_receive, qp.inline_read) == (room, 64)
