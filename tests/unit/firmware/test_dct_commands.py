"""Targets of the dynamically connected transport, as a driver makes and ends them."""

import pytest

from firmware.kernel import Kernel
from firmware.model.hca import Hca
from firmware.model.objects import SRQ_RMP, Cq, Eq, Srq
from firmware.model.pages import packed
from firmware.model.queue_buffer import QueueBuffer
from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.dct import CreateDctIn, CreateDctOut, DctIn, QueryDctOut
from vhca.wire.connectx.eqe import EventType


def hca_of(driver: Driver) -> Hca:
    firmware = driver.board.firmware
    assert isinstance(firmware, Kernel)
    return firmware.hca


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


def target(driver: Driver, **changes: int) -> CreateDctIn:
    hca = hca_of(driver)
    pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    buffer = QueueBuffer(packed([driver.alloc(4096)]), 12, 0, 4096)
    eq = Eq(buffer=buffer, log_size=6, vector=0, event_mask=0)
    hca.eqs.add(eq)
    cq = Cq(eq=eq, buffer=buffer, log_size=6, cqe_bytes=64, dbr_addr=driver.alloc(64))
    hca.cqs.add(cq)
    srq = Srq(kind=SRQ_RMP, buffer=buffer, log_size=4, log_stride=6, dbr_addr=driver.alloc(64), pd=pd)
    hca.srqs.add(srq)
    view = CreateDctIn()
    fields = {"pd": pd, "cqn": cq.handle, "srqn_xrqn": srq.handle, "mtu": 3, "port": 1, "rre": 1, "dc_access_key": 7}
    for name, value in {**fields, **changes}.items():
        setattr(view.dct_context_entry, name, value)
    return view


def create(driver: Driver, **changes: int) -> int:
    return CreateDctOut.from_bytes(driver.run(Op.CREATE_DCT, target(driver, **changes))).dctn


def test_a_target_holds_what_it_uses_and_drains_with_an_event(driver: Driver) -> None:
    hca = hca_of(driver)
    _, events = driver.create_eq(4, 1 << EventType.DCT_DRAINED)
    number = create(driver)
    dct = hca.dcts.get(number)
    assert dct is not None
    assert hca.qps.get(number) is None
    assert (dct.cq.refs, dct.srq.refs, dct.mtu) == (1, 1, 1024)
    query = QueryDctOut.from_bytes(driver.run(Op.QUERY_DCT, DctIn(dctn=number), out_size=QueryDctOut.SIZE))
    assert (query.dct_context_entry.state, query.dct_context_entry.dc_access_key) == (0, 7)
    driver.run(Op.ARM_DCT_FOR_KEY_VIOLATION, DctIn(dctn=number))
    assert dct.armed
    driver.run(Op.DRAIN_DCT, DctIn(dctn=number))
    raw = driver.memory.read(events, 64)
    assert (raw[1], int.from_bytes(raw[0x38:0x3C], "big")) == (EventType.DCT_DRAINED, number)
    query = QueryDctOut.from_bytes(driver.run(Op.QUERY_DCT, DctIn(dctn=number), out_size=QueryDctOut.SIZE))
    assert query.dct_context_entry.state == 2
    driver.run(Op.DESTROY_DCT, DctIn(dctn=number))
    assert (dct.cq.refs, dct.srq.refs, len(hca.dcts)) == (0, 0, 0)
    for op in (Op.QUERY_DCT, Op.DRAIN_DCT, Op.DESTROY_DCT, Op.ARM_DCT_FOR_KEY_VIOLATION):
        with pytest.raises(CommandFailed) as refused:
            driver.run(op, DctIn(dctn=number), out_size=QueryDctOut.SIZE)
        assert refused.value.status == Status.BAD_RES


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"mtu": 0}, Status.BAD_PARAM),
        ({"mtu": 6}, Status.BAD_PARAM),
        ({"port": 2}, Status.BAD_PARAM),
        ({"pkey_index": 0xFFFF}, Status.BAD_PARAM),
        ({"cs_res": 1}, Status.BAD_PARAM),
        ({"cs_res": 3}, Status.BAD_PARAM),
        ({"pd": 0x7777}, Status.BAD_RES),
        ({"cqn": 0x7777}, Status.BAD_RES),
        ({"srqn_xrqn": 0x7777}, Status.BAD_RES),
        ({"counter_set_id": 0x77}, Status.BAD_RES),
    ],
)
def test_what_a_target_cannot_be(driver: Driver, changes: dict[str, int], status: Status) -> None:
    with pytest.raises(CommandFailed) as refused:
        create(driver, **changes)
    assert refused.value.status == status
    assert not len(hca_of(driver).dcts)


@pytest.mark.parametrize(("cqe_bytes", "room"), [(64, 0), (128, 64)])
def test_scatter_to_cqe_as_the_driver_asks_for_it(driver: Driver, cqe_bytes: int, room: int) -> None:
    view = target(driver, cs_res=2)
    hca = hca_of(driver)
    cq = hca.cqs.get(view.dct_context_entry.cqn)
    assert cq is not None
    cq.cqe_bytes = cqe_bytes
    dct = hca.dcts.get(CreateDctOut.from_bytes(driver.run(Op.CREATE_DCT, view)).dctn)
    assert dct is not None
    assert dct.inline_receive == room


def test_initiators_have_no_receive_queue_of_their_own(driver: Driver) -> None:
    hca = hca_of(driver)
    view = target(driver)
    srqn, cqn = view.dct_context_entry.srqn_xrqn, view.dct_context_entry.cqn
    create_in = cmd.CreateQpIn()
    qpc = create_in.qpc
    qpc.st, qpc.pd, qpc.cqn_snd, qpc.cqn_rcv = 5, view.dct_context_entry.pd, cqn, cqn
    qpc.rq_type, qpc.srqn_rmpn_xrqn, qpc.uar_page, qpc.log_sq_size = 1, srqn, driver.uar, 4
    out = driver.run(Op.CREATE_QP, create_in, driver.alloc(4096).to_bytes(8, "big"))
    qp = hca.qps.get(cmd.CreateQpOut.from_bytes(out).qpn)
    assert qp is not None
    assert (qp.srq, qp.rq) == (None, None)
