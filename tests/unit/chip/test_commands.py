"""Commands one by one, as a driver posts them: what they do, and what they refuse with which status."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firmware.queues import write_cqe
from tests.support.driver import PAGE, CommandFailed, Driver
from vhca.layout import Layout
from vhca.wire import smp
from vhca.wire.connectx import cmd, registers
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.cqc import CqStatus
from vhca.wire.connectx.registers import RegisterId
from vhca.wire.mad import MAD_BYTES

LOG_CQ = 4
CQ_BYTES = 64 << LOG_CQ
MGID = bytes.fromhex("ff12401bffff000000000000ffffffff")


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.probe()
    return driver


class Bench:
    """Objects that most commands need."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.eqn, _ = driver.create_eq(4, 0, vector=1)
        self.pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
        self.uid = 0

    def cq_view(self) -> cmd.CreateCqIn:
        view = cmd.CreateCqIn()
        view.cq_context.log_cq_size = LOG_CQ
        view.cq_context.c_eqn_or_apu_element = self.eqn
        view.cq_context.uar_page = self.driver.uar
        return view

    def cq(self) -> int:
        driver = self.driver
        out = driver.run(Op.CREATE_CQ, self.cq_view(), driver.pages(driver.alloc(CQ_BYTES), CQ_BYTES))
        return cmd.CreateCqOut.from_bytes(out).cqn

    def mkey_view(self, pages: int = 2) -> cmd.CreateMkeyIn:
        view = cmd.CreateMkeyIn()
        entry = view.memory_key_mkey_entry
        entry.pd = self.pd
        entry.access_mode_1_0 = 1
        entry.lr = entry.lw = 1
        entry.len = pages * PAGE
        entry.log_page_size = 12
        entry.translations_octword_size = 2
        view.translations_octword_actual_size = 2
        return view

    def qp_view(self, service: int = 2) -> cmd.CreateQpIn:
        view = cmd.CreateQpIn()
        context = view.qpc
        context.st = service
        context.pd = self.pd
        context.uar_page = self.driver.uar
        context.log_sq_size = context.log_rq_size = 4
        context.cqn_snd = context.cqn_rcv = self.cq()
        return view

    def qp(self, service: int = 2) -> int:
        driver = self.driver
        out = driver.run(Op.CREATE_QP, self.qp_view(service), driver.pages(driver.alloc(2 * PAGE), 2 * PAGE))
        return cmd.CreateQpOut.from_bytes(out).qpn


@pytest.fixture
def bench(driver: Driver) -> Bench:
    return Bench(driver)


def refused(driver: Driver, status: Status, op: Op, view: Layout, tail: bytes = b"", **more: int) -> None:
    with pytest.raises(CommandFailed) as error:
        driver.run(op, view, tail, **more)
    assert error.value.status == status


def as_user(driver: Driver, uid: int, op: Op, view: Layout, tail: bytes = b"") -> bytes:
    """Run a command in a user context; returns its output, whatever its status."""
    data = bytearray(view.to_bytes() + tail)
    data[0:2] = int(op).to_bytes(2, "big")
    data[2:4] = uid.to_bytes(2, "big")
    return driver.raw(bytes(data), 0x1010)


# ---- queues ----


def test_queues_tell_what_they_were_made_of(bench: Bench) -> None:
    driver = bench.driver
    cqn = bench.cq()
    ask = cmd.QueryCqIn(cqn=cqn)
    told = cmd.QueryCqOut.from_bytes(driver.run(Op.QUERY_CQ, ask, out_size=cmd.QueryCqOut.SIZE)).cq_context
    assert (told.log_cq_size, told.c_eqn_or_apu_element, told.st) == (LOG_CQ, bench.eqn, 0xA)
    eq = cmd.QueryEqIn(eq_number=bench.eqn)
    told_eq = cmd.QueryEqOut.from_bytes(driver.run(Op.QUERY_EQ, eq, out_size=cmd.QueryEqOut.SIZE)).eq_context_entry
    assert (told_eq.log_eq_size, told_eq.intr) == (4, 1)


def test_an_overrun_queue_says_so_when_it_is_asked(bench: Bench) -> None:
    driver = bench.driver
    cqn = bench.cq()
    hca = driver.board.firmware.hca  # type: ignore[attr-defined]
    hca.out = []
    cq = hca.cqs.get(cqn)
    for entries in range((1 << LOG_CQ) + 2):
        told = cmd.QueryCqOut.from_bytes(
            driver.run(Op.QUERY_CQ, cmd.QueryCqIn(cqn=cqn), out_size=cmd.QueryCqOut.SIZE)
        ).cq_context
        assert told.status == (CqStatus.OVERFLOW if entries > 1 << LOG_CQ else CqStatus.OK)
        write_cqe(hca, cq, bytearray(64), False)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("log_cq_size", 31, Status.LIM_ERR),
        ("cqe_sz", 5, Status.BAD_PARAM),
        ("cc", 1, Status.BAD_PARAM),
        ("c_eqn_or_apu_element", 99, Status.BAD_RES),
    ],
)
def test_a_completion_queue_that_is_refused(bench: Bench, name: str, value: int, status: Status) -> None:
    view = bench.cq_view()
    setattr(view.cq_context, name, value)
    refused(bench.driver, status, Op.CREATE_CQ, view, bench.driver.pages(PAGE * 64, CQ_BYTES))
    assert bench.driver.board.objects()["cq"] == 0


def test_a_page_list_that_is_too_short(bench: Bench) -> None:
    view = bench.cq_view()
    view.cq_context.log_cq_size = 10
    refused(bench.driver, Status.BAD_INP_LEN, Op.CREATE_CQ, view, bench.driver.pages(PAGE * 64, PAGE))


def test_a_resized_queue_goes_on_behind_its_marker(bench: Bench) -> None:
    driver = bench.driver
    view = bench.cq_view()
    old, new = driver.alloc(CQ_BYTES), driver.alloc(4 * CQ_BYTES)
    cqn = cmd.CreateCqOut.from_bytes(driver.run(Op.CREATE_CQ, view, driver.pages(old, CQ_BYTES))).cqn
    change = cmd.ModifyCqIn(cqn=cqn, modify_field_select_resize_field_select=7)
    change.cq_context.log_cq_size = LOG_CQ + 2
    driver.run(Op.MODIFY_CQ, change, driver.pages(new, 4 * CQ_BYTES), op_mod=1)
    # the last entry of the old ring says so
    assert driver.memory.read(old + 0x3F, 1)[0] >> 4 == 5
    told = cmd.QueryCqOut.from_bytes(
        driver.run(Op.QUERY_CQ, cmd.QueryCqIn(cqn=cqn), out_size=cmd.QueryCqOut.SIZE)
    ).cq_context
    assert (told.log_cq_size, told.producer_counter) == (LOG_CQ + 2, 1)


@pytest.mark.parametrize(
    ("select", "op_mod", "fields", "status"),
    [
        (8, 0, {}, Status.BAD_PARAM),
        (0, 2, {}, Status.BAD_PARAM),
        (3, 1, {}, Status.BAD_PARAM),
        (7, 1, {"log_cq_size": 31}, Status.LIM_ERR),
        (7, 1, {"cqe_sz": 1, "log_cq_size": LOG_CQ}, Status.BAD_PARAM),
    ],
)
def test_a_change_of_a_completion_queue_that_is_refused(
    bench: Bench, select: int, op_mod: int, fields: dict[str, int], status: Status
) -> None:
    view = cmd.ModifyCqIn(cqn=bench.cq(), modify_field_select_resize_field_select=select)
    for name, value in fields.items():
        setattr(view.cq_context, name, value)
    refused(bench.driver, status, Op.MODIFY_CQ, view, bench.driver.pages(64 * PAGE, CQ_BYTES), op_mod=op_mod)


# ---- memory keys ----


def test_a_key_tells_its_region(bench: Bench) -> None:
    driver = bench.driver
    out = driver.run(Op.CREATE_MKEY, bench.mkey_view(), driver.pages(64 * PAGE, 4 * PAGE))
    index = cmd.CreateMkeyOut.from_bytes(out).mkey_index
    ask = cmd.QueryMkeyIn(mkey_index=index)
    told = cmd.QueryMkeyOut.from_bytes(driver.run(Op.QUERY_MKEY, ask, out_size=cmd.QueryMkeyOut.SIZE))
    assert (told.memory_key_mkey_entry.len, told.memory_key_mkey_entry.pd) == (2 * PAGE, bench.pd)
    assert int.from_bytes(told.bsf0_klm0_pas_mtt0_1[:8], "big") & ~0xFFF == 64 * PAGE
    refused(driver, Status.BAD_RES_STATE, Op.DEALLOC_PD, cmd.DeallocPdIn(pd=bench.pd))
    driver.run(Op.DESTROY_MKEY, cmd.DestroyMkeyIn(mkey_index=index))
    driver.run(Op.DEALLOC_PD, cmd.DeallocPdIn(pd=bench.pd))


@pytest.mark.parametrize(("log_size", "good"), [(0, False), (11, False), (12, True), (31, True)])
def test_the_entities_of_a_list_have_4_kib_at_least(bench: Bench, log_size: int, good: bool) -> None:
    view = bench.mkey_view()
    view.memory_key_mkey_entry.access_mode_1_0 = 3
    view.memory_key_mkey_entry.log_page_size = log_size
    if good:
        bench.driver.run(Op.CREATE_MKEY, view, bytes(32))
    else:
        refused(bench.driver, Status.BAD_PARAM, Op.CREATE_MKEY, view, bytes(32))


def test_unknown_numbers_make_no_counters_of_their_own(bench: Bench) -> None:
    driver = bench.driver
    before = len(driver.board.counters())
    for opcode in range(0x4000, 0x4020):
        assert driver.raw(opcode.to_bytes(2, "big") + bytes(14))[0] == Status.BAD_OP
    for register in range(0x7000, 0x7020):
        view = cmd.AccessRegisterIn(opcode=Op.ACCESS_REG, op_mod=1, register_id=register)
        assert driver.raw(view.to_bytes() + bytes(16), 0x20)[0]
    assert len(driver.board.counters()) <= before + 4
    assert driver.board.counters()["command_unknown"] == 32
    assert driver.board.counters()["register_unknown"] == 32


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"pd": 99}, Status.BAD_RES),
        ({"access_mode_4_2": 7}, Status.BAD_PARAM),
        ({"bsf_en": 1}, Status.BAD_PARAM),
        ({"log_page_size": 11}, Status.BAD_PARAM),
        ({"length64": 1}, Status.BAD_PARAM),
        ({"len": 64 * PAGE}, Status.BAD_PARAM),
        ({"translations_octword_size": 1}, Status.BAD_PARAM),
    ],
)
def test_a_key_that_is_refused(bench: Bench, fields: dict[str, int], status: Status) -> None:
    view = bench.mkey_view()
    for name, value in fields.items():
        setattr(view.memory_key_mkey_entry, name, value)
    refused(bench.driver, status, Op.CREATE_MKEY, view, bench.driver.pages(64 * PAGE, 4 * PAGE))


# ---- user contexts and their memory ----


def user(driver: Driver) -> int:
    out = driver.run(Op.CREATE_UCTX, cmd.CreateUctxIn(), out_size=16)
    return cmd.CreateUctxOut.from_bytes(out).uid


def umem(driver: Driver, uid: int, buffer: int, pages: int, offset: int = 0) -> int:
    view = cmd.CreateUmemIn()
    view.umem.num_of_mtt = pages
    view.umem.page_offset = offset
    out = as_user(driver, uid, Op.CREATE_UMEM, view, driver.pages(buffer, pages * PAGE))
    assert out[0] == Status.OK
    return cmd.CreateUmemOut.from_bytes(out).umem_id


def test_a_queue_in_user_memory(bench: Bench) -> None:
    driver = bench.driver
    uid = user(driver)
    ring, record = umem(driver, uid, driver.alloc(PAGE), 1), umem(driver, uid, driver.alloc(PAGE), 1)
    view = bench.cq_view()
    view.cq_umem_valid, view.cq_umem_id = 1, ring
    view.cq_context.dbr_umem_valid, view.cq_context.dbr_umem_id, view.cq_context.dbr_addr = 1, record, 64
    made = as_user(driver, uid, Op.CREATE_CQ, view)
    assert made[0] == Status.OK
    cqn = cmd.CreateCqOut.from_bytes(made).cqn
    # others may not name it
    other = user(driver)
    assert as_user(driver, other, Op.QUERY_CQ, cmd.QueryCqIn(cqn=cqn))[0] == Status.BAD_RES
    assert as_user(driver, other, Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=ring))[0] == Status.BAD_RES
    assert as_user(driver, uid, Op.DESTROY_CQ, cmd.DestroyCqIn(cqn=cqn))[0] == Status.OK
    assert as_user(driver, uid, Op.DESTROY_UMEM, cmd.DestroyUmemIn(umem_id=ring))[0] == Status.OK


@pytest.mark.parametrize(
    ("offset", "record", "status"),
    [(4096, 0, Status.BAD_PARAM), (8, 0, Status.BAD_PARAM), (0, 4092, Status.BAD_PARAM), (0, 4, Status.BAD_PARAM)],
)
def test_user_memory_that_does_not_hold_the_queue(bench: Bench, offset: int, record: int, status: Status) -> None:
    driver = bench.driver
    uid = user(driver)
    view = bench.cq_view()
    view.cq_umem_valid, view.cq_umem_id, view.cq_umem_offset = 1, umem(driver, uid, driver.alloc(PAGE), 1), offset
    context = view.cq_context
    context.dbr_umem_valid, context.dbr_umem_id, context.dbr_addr = 1, view.cq_umem_id, record
    assert as_user(driver, uid, Op.CREATE_CQ, view)[0] == status


def test_user_memory_without_pages_or_with_an_offset_behind_the_first(driver: Driver) -> None:
    uid = user(driver)
    empty = cmd.CreateUmemIn()
    assert as_user(driver, uid, Op.CREATE_UMEM, empty)[0] == Status.BAD_PARAM
    late = cmd.CreateUmemIn()
    late.umem.num_of_mtt = 1
    late.umem.page_offset = PAGE
    assert as_user(driver, uid, Op.CREATE_UMEM, late, driver.pages(0, PAGE))[0] == Status.BAD_PARAM


def test_a_key_over_user_memory(bench: Bench) -> None:
    driver = bench.driver
    uid = user(driver)
    pd = cmd.AllocPdOut.from_bytes(as_user(driver, uid, Op.ALLOC_PD, cmd.BareIn())).pd
    memory = umem(driver, uid, driver.alloc(4 * PAGE), 4)
    view = bench.mkey_view(3)
    view.memory_key_mkey_entry.pd = pd
    view.mkey_umem_valid, view.mkey_umem_id, view.mkey_umem_offset = 1, memory, PAGE
    assert as_user(driver, uid, Op.CREATE_MKEY, view)[0] == Status.OK
    view.mkey_umem_offset = 2 * PAGE
    assert as_user(driver, uid, Op.CREATE_MKEY, view)[0] == Status.BAD_PARAM
    view.mkey_umem_offset = 16
    assert as_user(driver, uid, Op.CREATE_MKEY, view)[0] == Status.BAD_PARAM


# ---- queue pairs and multicast ----


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"st": 9}, Status.BAD_PARAM),
        ({"wq_signature": 1}, Status.BAD_PARAM),
        ({"pd": 999}, Status.BAD_RES),
        ({"rq_type": 2}, Status.BAD_PARAM),
        ({"uar_page": 1}, Status.BAD_RES),
        ({"cqn_snd": 0x7777}, Status.BAD_RES),
        ({"rq_type": 1, "srqn_rmpn_xrqn": 77}, Status.BAD_RES),
    ],
)
def test_a_queue_pair_that_is_refused(bench: Bench, fields: dict[str, int], status: Status) -> None:
    view = bench.qp_view()
    for name, value in fields.items():
        setattr(view.qpc, name, value)
    refused(bench.driver, status, Op.CREATE_QP, view, bench.driver.pages(64 * PAGE, 2 * PAGE))
    assert bench.driver.board.objects()["qp"] == 0


def test_multicast_membership_holds_the_queue_pair(bench: Bench) -> None:
    driver, qpn = bench.driver, bench.qp()
    join = cmd.AttachToMcgIn(qpn=qpn, multicast_gid=MGID)
    driver.run(Op.ATTACH_TO_MCG, join)
    driver.run(Op.ATTACH_TO_MCG, join)
    assert driver.board.objects()["multicast_group"] == 1
    refused(driver, Status.BAD_RES_STATE, Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qpn))
    leave = cmd.DetachFromMcgIn(qpn=qpn, multicast_gid=MGID)
    driver.run(Op.DETACH_FROM_MCG, leave)
    refused(driver, Status.BAD_PARAM, Op.DETACH_FROM_MCG, leave)
    driver.run(Op.DESTROY_QP, cmd.DestroyQpIn(qpn=qpn))


def test_multicast_is_for_datagrams_and_multicast_addresses(bench: Bench) -> None:
    driver = bench.driver
    refused(driver, Status.BAD_PARAM, Op.ATTACH_TO_MCG, cmd.AttachToMcgIn(qpn=bench.qp(0), multicast_gid=MGID))
    refused(driver, Status.BAD_PARAM, Op.ATTACH_TO_MCG, cmd.AttachToMcgIn(qpn=bench.qp(), multicast_gid=bytes(16)))


# ---- ports and registers ----


def access(driver: Driver, register: int, data: bytes, op_mod: int) -> bytes:
    header = cmd.AccessRegisterIn(register_id=register)
    return driver.run(Op.ACCESS_REG, header, data, out_size=16 + len(data), op_mod=op_mod)[16:]


def test_port_registers(driver: Driver) -> None:
    driver.board.link_change(1, True)
    pmtu = registers.PmtuReg(local_port=1)
    told = registers.PmtuReg.from_bytes(access(driver, RegisterId.PMTU, pmtu.to_bytes(), 1))
    assert (told.max_mtu, told.oper_mtu) == (4096, 4096)
    ptys = registers.PtysReg(local_port=1, proto_mask=1)
    speed = registers.PtysReg.from_bytes(access(driver, RegisterId.PTYS, ptys.to_bytes(), 1))
    assert (speed.ib_link_width_oper, speed.ib_proto_oper) == (4, 0x20)
    pvlc = registers.PvlcReg(local_port=1)
    assert registers.PvlcReg.from_bytes(access(driver, RegisterId.PVLC, pvlc.to_bytes(), 1)).vl_hw_cap == 4
    access(driver, RegisterId.NODE_DESC, b"a new name".ljust(64, b"\0"), 0)
    assert access(driver, RegisterId.NODE_DESC, bytes(64), 1).rstrip(b"\0") == b"a new name"
    mask = registers.PcapReg(local_port=1, port_capability_mask=bytes.fromhex("0241c848") + bytes(12))
    access(driver, RegisterId.PCAP, mask.to_bytes(), 0)
    ask = cmd.QueryHcaVportContextIn()
    out = driver.run(Op.QUERY_HCA_VPORT_CONTEXT, ask, out_size=cmd.QueryHcaVportContextOut.SIZE)
    port = cmd.QueryHcaVportContextOut.from_bytes(out).hca_vport_context
    assert (port.cap_mask1, port.vport_state, port.port_physical_state) == (0x0241C848, 2, 5)


@pytest.mark.parametrize(
    ("register", "data", "op_mod", "status"),
    [
        (0x1234, bytes(16), 1, Status.BAD_PARAM),
        (RegisterId.PMTU, bytes(16), 2, Status.BAD_PARAM),
        (RegisterId.PMTU, registers.PmtuReg(local_port=2).to_bytes(), 1, Status.BAD_PARAM),
        (RegisterId.HOST_ENDIANNESS, b"\x01" + bytes(15), 0, Status.BAD_PARAM),
        (RegisterId.PCAP, bytes(4), 0, Status.BAD_INP_LEN),
        (RegisterId.NODE_DESC, bytes(8), 0, Status.BAD_INP_LEN),
        (RegisterId.PAOS, registers.PaosReg(local_port=1, admin_status=7, ase=1).to_bytes(), 0, Status.BAD_PARAM),
    ],
)
def test_a_register_access_that_is_refused(
    driver: Driver, register: int, data: bytes, op_mod: int, status: Status
) -> None:
    header = cmd.AccessRegisterIn(register_id=register)
    refused(driver, status, Op.ACCESS_REG, header, data, out_size=16 + len(data), op_mod=op_mod)


def test_gids_pkeys_and_state_of_the_port(driver: Driver) -> None:
    gid = driver.run(Op.QUERY_HCA_VPORT_GID, cmd.QueryHcaVportGidIn(), out_size=32)[16:]
    assert gid[8:] == driver.board.info.port_guids[0].to_bytes(8, "big")
    pkey = driver.run(Op.QUERY_HCA_VPORT_PKEY, cmd.QueryHcaVportPkeyIn(), out_size=20)[16:]
    assert int.from_bytes(pkey, "big") == 0xFFFF
    refused(driver, Status.IX_ERR, Op.QUERY_HCA_VPORT_GID, cmd.QueryHcaVportGidIn(gid_index=99), out_size=32)
    refused(driver, Status.IX_ERR, Op.QUERY_HCA_VPORT_PKEY, cmd.QueryHcaVportPkeyIn(pkey_index=128), out_size=32)
    table = driver.run(Op.QUERY_HCA_VPORT_PKEY, cmd.QueryHcaVportPkeyIn(pkey_index=0xFFFF), out_size=16 + 4 * 128)[16:]
    assert table == bytes.fromhex("0000ffff") + bytes(4 * 127), "as many as the capability pkey_table_size says"
    state = driver.run(Op.QUERY_VPORT_STATE, cmd.QueryVportStateIn(), out_size=16)
    assert cmd.QueryVportStateOut.from_bytes(state).state == 0


def mad(driver: Driver, management_class: int, attribute: int, port: int = 1, method: int = 1) -> Callable[[], bytes]:
    datagram = bytearray(MAD_BYTES)
    datagram[0:4] = bytes((1, management_class, 1, method))
    datagram[16:18] = attribute.to_bytes(2, "big")
    view = cmd.MadIfcIn(port=port, mad=bytes(datagram))
    return lambda: driver.run(Op.MAD_IFC, view, out_size=cmd.MadIfcOut.SIZE, op_mod=3)[16:]


def test_datagrams_of_the_host_reach_the_agents(driver: Driver) -> None:
    node = mad(driver, 0x01, smp.NODE_INFO)()
    assert node[3] == 0x81
    assert node[64 + 12 : 64 + 20] == driver.board.info.node_guid.to_bytes(8, "big")
    performance = mad(driver, 0x04, 0x0001)()
    assert performance[3] == 0x81
    for call in (mad(driver, 0x01, smp.NODE_INFO, port=2), mad(driver, 0x04, 1, method=0x81)):
        with pytest.raises(CommandFailed):
            call()


# two classes of the vendor and congestion control: those that mlx5_ib hands down besides performance management
@pytest.mark.parametrize("management_class", [0x09, 0x0A, 0x21])
@pytest.mark.parametrize("method", [1, 2])
def test_a_class_that_the_card_lacks_is_refused_inside_the_datagram(
    driver: Driver, management_class: int, method: int
) -> None:
    answer = mad(driver, management_class, 0x0011, method=method)()
    assert answer[:6] == bytes((1, management_class, 1, 0x81, 0, 0x0C))
    assert answer[16:18] == b"\0\x11"
    counters = driver.board.counters()
    # Of the second class of the vendor it has other attributes.
    assert counters.get(f"mad_class_{management_class:#04x}_refused", 0) == (management_class != 0x0A)


def test_a_trap_repress_of_the_host_is_taken_without_an_answer(driver: Driver) -> None:
    answer = mad(driver, 0x01, 0x0002, method=0x07)()
    assert answer[3] == 0x07, "what comes back is what went in: the driver looks for no response"


def test_life_cycle_commands_out_of_order(driver: Driver) -> None:
    refused(driver, Status.BAD_SYS_STATE, Op.INIT_HCA, cmd.InitHcaIn())
    refused(driver, Status.BAD_SYS_STATE, Op.SET_HCA_CAP, cmd.SetHcaCapIn())
    refused(driver, Status.BAD_PARAM, Op.ENABLE_HCA, cmd.EnableHcaIn(function_id=1))
    refused(driver, Status.BAD_PARAM, Op.TEARDOWN_HCA, cmd.TeardownHcaIn(profile=1))
    refused(driver, Status.BAD_PARAM, Op.QUERY_PAGES, cmd.QueryPagesIn(), out_size=16, op_mod=7)
    refused(driver, Status.BAD_PARAM, Op.MANAGE_PAGES, cmd.ManagePagesIn(input_num_entries=3), bytes(24), op_mod=1)
    driver.run(Op.MANAGE_PAGES, cmd.ManagePagesIn(), op_mod=2, out_size=16)
    refused(driver, Status.BAD_PARAM, Op.SET_ISSI, cmd.SetIssiIn(current_issi=9))
    refused(driver, Status.BAD_PARAM, Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=0x7F)
    driver.run(Op.TEARDOWN_HCA, cmd.TeardownHcaIn())
    driver.run(Op.DISABLE_HCA, cmd.DisableHcaIn())
    refused(driver, Status.BAD_SYS_STATE, Op.INIT_HCA, cmd.InitHcaIn())
