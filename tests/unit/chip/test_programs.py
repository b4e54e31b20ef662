"""What a program in the guest can reach through commands of its own (DevX): no more than the verbs would give it."""

from __future__ import annotations

import pytest

from firmware.kernel import Kernel
from firmware.memory import find_key, translate
from firmware.model.hca import Hca
from firmware.model.objects import LOCAL_READ
from firmware.model.qp import RTS, ST_QP0, ST_QP1, ST_RC, ST_REG_UMR, ST_UD, ST_XRC
from firmware.programs import SHARED_UID
from tests.support.driver import PAGE, Driver
from vhca.layout import Layout
from vhca.wire import smp
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cmd.dct import CreateDctIn
from vhca.wire.connectx.devx import CAP_RAW_TX
from vhca.wire.connectx.qpc import OptParam
from vhca.wire.connectx.wqe import CtrlSegment, DatagramSegment, UmrCtrlSegment, UmrMkeySegment, WqeOpcode

LID = 7
CQ_PAGE, RING_PAGE, DATA_PAGE, PAGES = 1, 2, 4, 8
PRIVILEGED = 0x80010000
CQ_DOORBELL, SQ_DOORBELL = 0x20, 0x800


@pytest.fixture
def driver() -> Driver:
    """A card with an active port, and an event queue for completions."""
    driver = Driver()
    driver.probe()
    driver.create_eq(4, 0, vector=1)
    driver.board.link_change(1, True)
    firmware = driver.board.firmware
    assert isinstance(firmware, Kernel)
    port = firmware.agents.ports[1]
    port.managed.info.lid, port.managed.info.sm_lid, port.managed.info.port_state = LID, 1, smp.PORT_ACTIVE
    port.refresh()
    return driver


def hca_of(driver: Driver) -> Hca:
    firmware = driver.board.firmware
    assert isinstance(firmware, Kernel)
    return firmware.hca


class User:
    """Somebody who sends commands under one number: a program (by default), or the kernel (0)."""

    def __init__(self, driver: Driver, uid: int | None = None, caps: int = 0) -> None:
        self.driver = driver
        made = cmd.CreateUctxIn()
        made.uctx.cap = caps
        self.uid = cmd.CreateUctxOut.from_bytes(driver.run(Op.CREATE_UCTX, made)).uid if uid is None else uid
        self.pd = cmd.AllocPdOut.from_bytes(self.run(Op.ALLOC_PD, cmd.BareIn())).pd
        self.uar = cmd.AllocUarOut.from_bytes(self.run(Op.ALLOC_UAR, cmd.BareIn())).uar
        self.memory = driver.alloc(PAGES * PAGE)
        view = cmd.CreateUmemIn()
        view.umem.num_of_mtt = PAGES
        out = self.run(Op.CREATE_UMEM, view, driver.pages(self.memory, PAGES * PAGE))
        self.umem = cmd.CreateUmemOut.from_bytes(out).umem_id
        self.cqn = cmd.CreateCqOut.from_bytes(self.run(Op.CREATE_CQ, self.cq_view())).cqn

    def raw(self, op: Op, view: Layout, tail: bytes = b"") -> bytes:
        """Run a command under this number; returns its output, whatever its status."""
        data = bytearray(view.to_bytes() + tail)
        data[0:2], data[2:4] = int(op).to_bytes(2, "big"), self.uid.to_bytes(2, "big")
        return self.driver.raw(bytes(data), 0x1010)

    def run(self, op: Op, view: Layout, tail: bytes = b"") -> bytes:
        """Run a command that must succeed."""
        output = self.raw(op, view, tail)
        assert output[0] == Status.OK
        return output

    def cq_view(self) -> cmd.CreateCqIn:
        view = cmd.CreateCqIn(cq_umem_valid=1, cq_umem_id=self.umem, cq_umem_offset=CQ_PAGE * PAGE)
        context = view.cq_context
        context.log_cq_size, context.c_eqn_or_apu_element, context.uar_page = 4, 1, self.uar
        context.dbr_umem_valid, context.dbr_umem_id, context.dbr_addr = 1, self.umem, 64
        return view

    def qp_view(self, service: int, **fields: int) -> cmd.CreateQpIn:
        view = cmd.CreateQpIn(wq_umem_valid=1, wq_umem_id=self.umem, wq_umem_offset=RING_PAGE * PAGE)
        mine = {"st": service, "pd": self.pd, "uar_page": self.uar, "log_sq_size": 4, "rq_type": 3,
                "cqn_snd": self.cqn, "cqn_rcv": self.cqn, "dbr_umem_valid": 1, "dbr_umem_id": self.umem}  # fmt: skip
        for name, value in {**mine, **fields}.items():
            setattr(view.qpc, name, value)
        return view

    def qp(self, service: int, **fields: int) -> int:
        return cmd.CreateQpOut.from_bytes(self.run(Op.CREATE_QP, self.qp_view(service, **fields))).qpn

    def step(self, op: Op, qpn: int, mask: int = 0, **fields: int) -> int:
        """A transition; returns its status."""
        view = cmd.Rst2initQpIn(qpn=qpn, opt_param_mask=mask)
        path = view.qpc.primary_address_path
        path.vhca_port_num, path.rlid = 1, LID
        args = {"mtu": 5, "log_msg_max": 12, "remote_qpn": qpn, "pd": self.pd, "q_key": 5, **fields}
        for name, value in args.items():
            setattr(view.qpc, name, value)
        return self.raw(op, view)[0]

    def ready_qp(self, service: int, **fields: int) -> int:
        """A queue pair in RTS."""
        qpn = self.qp(service, **fields)
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            assert self.step(op, qpn) == Status.OK
        return qpn

    def key_view(self) -> cmd.CreateMkeyIn:
        """A key for two pages of this user's memory that work requests may change."""
        view = cmd.CreateMkeyIn(mkey_umem_valid=1, mkey_umem_id=self.umem, mkey_umem_offset=DATA_PAGE * PAGE)
        for name, value in {"pd": self.pd, "access_mode_1_0": 1, "lr": 1, "lw": 1, "umr_en": 1, "qpn": 0xFFFFFF,
                            "len": 2 * PAGE, "translations_octword_size": 4}.items():  # fmt: skip
            setattr(view.memory_key_mkey_entry, name, value)
        return view

    def post(self, wqe: bytes) -> None:
        """Put a WQE at the start of the send queue and set the doorbell record."""
        self.driver.memory.write(self.memory + RING_PAGE * PAGE, wqe)
        self.driver.memory.write(self.memory + 4, (-(-len(wqe) // 64)).to_bytes(4, "big"))

    def ring(self, qpn: int, page: int) -> None:
        """A send doorbell on a page of somebody."""
        self.driver.bar_write(page * PAGE + SQ_DOORBELL, bytes(4) + (qpn << 8 | 4).to_bytes(4, "big"))


# ---- bus addresses ----


def test_a_program_does_not_register_bus_addresses_by_work_request(driver: Driver) -> None:
    secret = driver.alloc(PAGE)
    me = User(driver)
    index = cmd.CreateMkeyOut.from_bytes(me.run(Op.CREATE_MKEY, me.key_view())).mkey_index
    qpn = me.ready_qp(ST_RC, fre=1, rlky=1)
    told = cmd.QueryQpOut.from_bytes(me.run(Op.QUERY_QP, cmd.QueryQpIn(qpn=qpn))).qpc
    assert (told.fre, told.rlky) == (0, 0)
    wqe = CtrlSegment(opcode=WqeOpcode.UMR, qpn=qpn, ds=12, ce=2, imm=index << 8).to_bytes()
    wqe += UmrCtrlSegment(inline=1, xlt_octowords=4).to_bytes() + UmrMkeySegment().to_bytes()
    me.post(wqe + (secret | 3).to_bytes(8, "big") * 8)
    me.ring(qpn, me.uar)
    assert driver.board.counters()["send_errors_0x06"] == 1
    hca = hca_of(driver)
    mkey = find_key(hca, me.pd, qpn, index << 8, 0, 16, LOCAL_READ)
    assert translate(hca, mkey, 0, 16, LOCAL_READ) == [(me.memory + DATA_PAGE * PAGE, 16)]


def test_the_kernel_registers_fast(driver: Driver) -> None:
    kernel = User(driver, 0)
    qpn = kernel.qp(ST_RC, fre=1, rlky=1)
    told = cmd.QueryQpOut.from_bytes(kernel.run(Op.QUERY_QP, cmd.QueryQpIn(qpn=qpn))).qpc
    assert (told.fre, told.rlky) == (1, 1)


@pytest.mark.parametrize("service", [ST_REG_UMR, ST_QP0, ST_QP1])
def test_services_of_the_kernel(driver: Driver, service: int) -> None:
    assert User(driver).raw(Op.CREATE_QP, User(driver).qp_view(service))[0] == Status.BAD_PARAM
    assert User(driver, 0).qp(service)


def test_pages_of_a_programs_key_are_those_of_its_memory(driver: Driver) -> None:
    me = User(driver)
    view = me.key_view()
    view.mkey_umem_valid = 0
    view.translations_octword_actual_size = 1
    view.memory_key_mkey_entry.log_page_size = 12
    assert me.raw(Op.CREATE_MKEY, view, driver.pages(driver.alloc(2 * PAGE), 2 * PAGE))[0] == Status.BAD_PARAM


def test_memory_that_something_lies_in_is_not_given_back(driver: Driver) -> None:
    # The host would take its pages for something else.
    me = User(driver)
    gone = cmd.DestroyUmemIn(umem_id=me.umem)
    index = cmd.CreateMkeyOut.from_bytes(me.run(Op.CREATE_MKEY, me.key_view())).mkey_index
    qpn = me.qp(ST_RC)
    pool = cmd.CreateRmpIn()
    pool.ctx.state = 1
    wq = pool.ctx.wq
    wq.pd, wq.log_wq_sz, wq.log_wq_stride = me.pd, 4, 5
    wq.wq_umem_valid, wq.wq_umem_id, wq.wq_umem_offset = 1, me.umem, 3 * PAGE
    wq.dbr_umem_valid, wq.dbr_umem_id, wq.dbr_addr = 1, me.umem, 128
    rmpn = cmd.CreateRmpOut.from_bytes(me.run(Op.CREATE_RMP, pool)).rmpn
    for op, view in (
        (Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=index)),
        (Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qpn)),
        (Op.DESTROY_RMP, cmd.DestroyRmpIn(rmpn=rmpn)),
        (Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=me.cqn)),
    ):
        assert me.raw(Op.DESTROY_UMEM, gone)[0] == Status.BAD_RES_STATE
        me.run(op, view)
    me.run(Op.DESTROY_UMEM, gone)


def test_a_queue_that_moves_leaves_its_old_memory(driver: Driver) -> None:
    me, room = User(driver), driver.alloc(PAGE)
    view = cmd.CreateUmemIn()
    view.umem.num_of_mtt = 1
    other = cmd.CreateUmemOut.from_bytes(me.run(Op.CREATE_UMEM, view, driver.pages(room, PAGE))).umem_id
    move = cmd.ModifyCqIn(cqn=me.cqn, cq_umem_valid=1, cq_umem_id=other, modify_field_select_resize_field_select=7)
    move.cq_context.log_cq_size = 5
    data = bytearray(move.to_bytes())
    data[0:2], data[2:4], data[7] = int(Op.MODIFY_CQ).to_bytes(2, "big"), me.uid.to_bytes(2, "big"), 1
    assert driver.raw(bytes(data))[0] == Status.OK
    assert me.raw(Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=other))[0] == Status.BAD_RES_STATE
    # The doorbell record stays where it was.
    assert me.raw(Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=me.umem))[0] == Status.BAD_RES_STATE
    me.run(Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=me.cqn))
    for number in (me.umem, other):
        me.run(Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=number))


# ---- management ----


@pytest.mark.parametrize(("service", "number"), [(ST_QP0, 0), (ST_QP1, 1)])
def test_a_port_has_one_management_queue_pair_of_a_kind(driver: Driver, service: int, number: int) -> None:
    kernel, hca = User(driver, 0), hca_of(driver)
    first, second = kernel.qp(service), kernel.qp(service)
    assert kernel.step(Op.RST2INIT_QP, first) == Status.OK
    assert kernel.step(Op.RST2INIT_QP, second) == Status.BAD_PARAM
    assert hca.special_qps[(1, number)] is hca.qps.get(first)
    kernel.run(Op.QP_2RST, cmd.Qp2errIn(qpn=first))
    assert kernel.step(Op.RST2INIT_QP, second) == Status.OK
    assert kernel.step(Op.RST2INIT_QP, first) == Status.BAD_PARAM
    kernel.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=first))
    assert hca.special_qps[(1, number)] is hca.qps.get(second)


def test_only_the_kernel_sends_under_another_number(driver: Driver) -> None:
    assert User(driver).raw(Op.CREATE_QP, User(driver).qp_view(ST_UD, deth_sqpn=1))[0] == Status.BAD_PARAM
    assert User(driver, 0).qp(ST_UD, deth_sqpn=1)


def test_privileged_q_keys_are_for_those_who_may_send_anything(driver: Driver) -> None:
    for sender, expected in (
        (User(driver), Status.BAD_PARAM),
        (User(driver, caps=CAP_RAW_TX), Status.OK),
        (User(driver, 0), Status.OK),
    ):
        qpn = sender.qp(ST_UD)
        assert sender.step(Op.RST2INIT_QP, qpn, q_key=PRIVILEGED) == expected
        assert sender.step(Op.QP_2RST, qpn) == Status.OK
        for op in (Op.RST2INIT_QP, Op.INIT2RTR_QP, Op.RTR2RTS_QP):
            assert sender.step(op, qpn) == Status.OK
        assert sender.step(Op.RTS2RTS_QP, qpn, 1 << OptParam.Q_KEY, q_key=PRIVILEGED) == expected
        qp = hca_of(driver).qps.get(qpn)
        assert qp is not None
        assert (qp.state, qp.q_key) == (RTS, PRIVILEGED if expected == Status.OK else 5)


@pytest.mark.parametrize("op", [Op.MAD_IFC, Op.ACCESS_REG, Op.CREATE_EQ, Op.ALLOC_MEMIC, Op.CREATE_UCTX,
                                Op.DISABLE_HCA, Op.SET_HCA_CAP])  # fmt: skip
def test_commands_of_the_kernel(driver: Driver, op: Op) -> None:
    before = driver.board.objects()
    me = User(driver)
    made = driver.board.objects()
    assert me.raw(op, cmd.BareIn(), bytes(0x1000))[0] == Status.BAD_PARAM
    assert driver.board.objects() == made != before


def test_a_number_that_no_user_context_has(driver: Driver) -> None:
    me = User(driver)
    me.uid += 1
    assert me.raw(Op.ALLOC_PD, cmd.BareIn())[0] == Status.BAD_PARAM


# ---- what belongs to others ----


def test_doorbells_on_the_page_of_the_queue_only(driver: Driver) -> None:
    # Neither another program's page nor the kernel's: each queue names the one page that it listens to.
    me, other = User(driver), User(driver)
    qpn = me.ready_qp(ST_UD)
    wqe = CtrlSegment(opcode=WqeOpcode.SEND, qpn=qpn, ds=4).to_bytes()
    me.post(wqe + DatagramSegment(q_key=5, ext=1, dqpn=qpn, rlid=LID + 1).to_bytes())
    counters = driver.board.counters
    for page in (other.uar, driver.uar):
        me.ring(qpn, page)
        driver.bar_write(page * PAGE + CQ_DOORBELL, bytes(4) + me.cqn.to_bytes(4, "big"))
    driver.run_deferred()
    assert (counters()["sq_doorbell_unknown"], counters()["cq_doorbell_unknown"]) == (2, 2)
    assert not driver.cable.packets
    cq = hca_of(driver).cqs.get(me.cqn)
    assert cq is not None
    fired = cq.arm_state
    driver.bar_write(me.uar * PAGE + CQ_DOORBELL, bytes(4) + me.cqn.to_bytes(4, "big"))
    me.ring(qpn, me.uar)
    driver.run_deferred()
    assert cq.arm_state != fired
    assert len(driver.cable.packets) == 1


def counter_set(user: User) -> int:
    return cmd.AllocQCounterOut.from_bytes(user.run(Op.ALLOC_Q_COUNTER, cmd.BareIn())).counter_set_id


def test_counter_sets_of_others(driver: Driver) -> None:
    me, other = User(driver), User(driver)
    mine, strange, kernels, shared = (
        counter_set(user) for user in (me, other, User(driver, 0), User(driver, SHARED_UID))
    )
    qpn = me.qp(ST_RC)
    for number in (strange, kernels):
        assert me.step(Op.RST2INIT_QP, qpn, counter_set_id=number) == Status.BAD_RES
    for number in (mine, shared):
        assert me.step(Op.RST2INIT_QP, qpn, counter_set_id=number) == Status.OK
        me.run(Op.QP_2RST, cmd.Qp2errIn(qpn=qpn))
    # What is shared is for use, not for ending.
    assert me.raw(Op.DEALLOC_Q_COUNTER, cmd.DeallocQCounterIn(counter_set_id=shared))[0] == Status.BAD_RES
    me.run(Op.DEALLOC_Q_COUNTER, cmd.DeallocQCounterIn(counter_set_id=mine))


def test_a_targets_counter_set_is_its_owners(driver: Driver) -> None:
    me, other = User(driver), User(driver)
    pool = cmd.CreateRmpIn()
    pool.ctx.state = 1
    wq = pool.ctx.wq
    wq.pd, wq.log_wq_sz, wq.log_wq_stride, wq.wq_umem_valid, wq.wq_umem_id = me.pd, 4, 5, 1, me.umem
    wq.dbr_umem_valid, wq.dbr_umem_id = 1, me.umem
    rmpn = cmd.CreateRmpOut.from_bytes(me.run(Op.CREATE_RMP, pool)).rmpn
    view = CreateDctIn()
    context = view.dct_context_entry
    context.pd, context.cqn, context.srqn_xrqn, context.mtu, context.port = me.pd, me.cqn, rmpn, 3, 1
    context.counter_set_id = counter_set(other)
    assert me.raw(Op.CREATE_DCT, view)[0] == Status.BAD_RES
    context.counter_set_id = counter_set(me)
    me.run(Op.CREATE_DCT, view)


def test_completions_are_reported_to_shared_event_queues(driver: Driver) -> None:
    # Not to those of the kernel's own: commands, faults, asynchronous events.
    eqn, _ = driver.create_eq(4, 1 << 0x0A)
    me = User(driver)
    view = me.cq_view()
    view.cq_context.c_eqn_or_apu_element = eqn
    assert me.raw(Op.CREATE_CQ, view)[0] == Status.BAD_RES


@pytest.mark.parametrize("field", ["dbr_umem_id", "wq_umem_id"])
def test_a_queue_pair_without_queues_holds_nobody_elses_memory(driver: Driver, field: str) -> None:
    """A reference would keep the owner from ever giving the memory back. The kernel sets the valid bits by itself."""
    owner, me = User(driver), User(driver)
    xrcd = cmd.AllocXrcdOut.from_bytes(me.run(Op.ALLOC_XRCD, cmd.BareIn())).xrcd
    view = me.qp_view(ST_XRC, no_sq=1, rq_type=3, xrcd=xrcd)
    me.run(Op.CREATE_QP, view)
    setattr(view if field == "wq_umem_id" else view.qpc, field, owner.umem)
    me.run(Op.CREATE_QP, view)
    owner.run(Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=owner.cqn))
    owner.run(Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=owner.umem))
