"""On-demand paging in commands: what is announced, which keys may lack pages, and the host's answers."""

import pytest

from firmware.kernel import Kernel
from firmware.memory import AccessError, PageFault, direct, translate
from firmware.model.hca import NULL_MKEY, Hca
from firmware.model.objects import LOCAL_READ, PageRequest, Waiter, WaitKind
from firmware.transport import engine
from tests.support.driver import CommandFailed, Driver
from vhca.wire.connectx import cmd
from vhca.wire.connectx.caps import CapType, CmdHcaCap
from vhca.wire.connectx.caps_groups import CmdHcaCap2, OdpCap
from vhca.wire.connectx.cmd import Op, Status
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


def caps(driver: Driver, group: int, current: bool) -> bytes:
    block = driver.run(Op.QUERY_HCA_CAP, cmd.QueryHcaCapIn(), out_size=0x1010, op_mod=group << 1 | current)
    return block[16:]


def test_the_driver_chooses_the_memory_scheme() -> None:
    driver = Driver()
    driver.run(Op.ENABLE_HCA, cmd.EnableHcaIn())
    general = CmdHcaCap.from_bytes(caps(driver, CapType.GENERAL, True))
    assert (general.pg, general.umr_extended_translation_offset, general.null_mkey) == (1, 1, 1)
    possible = OdpCap.from_bytes(caps(driver, CapType.ODP, False)[:256])
    assert possible.mem_page_fault
    scheme = possible.memory_page_fault_scheme_cap
    assert scheme.page_prefetch
    for transport in (scheme.rc_odp_caps, scheme.xrc_odp_caps):
        assert (transport.send, transport.receive, transport.write, transport.read, transport.atomic) == (1,) * 5
    assert (scheme.ud_odp_caps.send, scheme.ud_odp_caps.receive, scheme.ud_odp_caps.write) == (1, 1, 0)
    assert not any(scheme.uc_odp_caps.to_bytes())
    assert not any(possible.transport_page_fault_scheme_cap.to_bytes())
    assert not OdpCap.from_bytes(caps(driver, CapType.ODP, True)[:256]).mem_page_fault
    choice = cmd.SetHcaCapIn()
    choice.capability = bytes(4096)
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.SET_HCA_CAP, choice, op_mod=CapType.ODP << 1)
    assert refused.value.status == Status.BAD_PARAM
    choice.capability = OdpCap(mem_page_fault=1).to_bytes().ljust(4096, b"\0")
    driver.run(Op.SET_HCA_CAP, choice, op_mod=CapType.ODP << 1)
    chosen = OdpCap.from_bytes(caps(driver, CapType.ODP, True)[:256])
    assert chosen.mem_page_fault
    assert chosen.transport_page_fault_scheme_cap.dc_odp_caps.srq_receive


def test_indirect_pages_may_be_large_enough_for_five_levels(driver: Driver) -> None:
    second = CmdHcaCap2.from_bytes(caps(driver, CapType.GENERAL_2, True)[:256])
    assert second.umr_log_entity_size_5
    assert second.max_mkey_log_entity_size_fixed_buffer >= 34


def test_the_null_key_is_reserved_and_gives_access_to_nothing(driver: Driver) -> None:
    out = cmd.QuerySpecialContextsOut.from_bytes(
        driver.run(Op.QUERY_SPECIAL_CONTEXTS, out_size=cmd.QuerySpecialContextsOut.SIZE)
    )
    assert out.null_mkey == NULL_MKEY
    assert hca_of(driver).mkeys.first > NULL_MKEY >> 8


def create_key(driver: Driver, tail: bytes, **fields: int) -> int:
    view = cmd.CreateMkeyIn(pg_access=fields.pop("pg_access", 1), translations_octword_actual_size=len(tail) // 16)
    entry = view.memory_key_mkey_entry
    entry.pd = cmd.AllocPdOut.from_bytes(driver.run(Op.ALLOC_PD)).pd
    entry.access_mode_1_0 = 1
    entry.qpn = 0xFFFFFF
    entry.lr = entry.lw = 1
    entry.translations_octword_size = len(tail) // 16
    for name, value in fields.items():
        setattr(entry, name, value)
    return cmd.CreateMkeyOut.from_bytes(driver.run(Op.CREATE_MKEY, view, tail)).mkey_index


def entries(*values: int) -> bytes:
    raw = b"".join(value.to_bytes(8, "big") for value in values)
    return raw + bytes(-len(raw) % 64)


def test_entries_with_rights_may_lack_pages(driver: Driver) -> None:
    hca = hca_of(driver)
    index = create_key(driver, entries(0x10003, 0x11001, 0), log_page_size=12, len=3 * 4096)
    mkey = hca.mkeys.get(index)
    assert mkey is not None
    assert translate(hca, mkey, 0, 8192, LOCAL_READ) == [(0x10000, 8192)]
    with pytest.raises(PageFault) as fault:
        translate(hca, mkey, 4096, 8192, LOCAL_READ)
    assert (fault.value.va, fault.value.length) == (8192, 4096)
    out = driver.run(Op.QUERY_MKEY, cmd.QueryMkeyIn(mkey_index=index), out_size=cmd.QueryMkeyOut.SIZE)
    assert cmd.QueryMkeyOut.from_bytes(out).bsf0_klm0_pas_mtt0_1 == entries(0x10003, 0x11001)[:16]


def test_entries_without_rights_are_all_there(driver: Driver) -> None:
    hca = hca_of(driver)
    for pg_access, rights in ((0, 0), (1, 3)):
        index = create_key(
            driver, entries(0x10000 | rights, 0x11000 | rights), pg_access=pg_access, log_page_size=12, len=8192
        )
        mkey = hca.mkeys.get(index)
        assert mkey is not None
        assert direct(mkey, 5000) == 0x10000 + 5000


def test_a_key_of_one_missing_page_for_all_addresses(driver: Driver) -> None:
    hca = hca_of(driver)
    mkey = hca.mkeys.get(create_key(driver, bytes(64), log_page_size=61, length64=1))
    assert mkey is not None
    for va in (5, (1 << 61) + 5, (1 << 64) - 8):
        with pytest.raises(PageFault) as fault:
            translate(hca, mkey, va, 8, LOCAL_READ)
        assert fault.value.va == va
    with pytest.raises(CommandFailed):
        create_key(driver, bytes(64), pg_access=0, log_page_size=61, length64=1)
    with pytest.raises(AccessError):
        translate(hca, hca.mkeys.get(create_key(driver, bytes(64), log_page_size=12)) or mkey, 8 << 12, 8, LOCAL_READ)


def test_translations_have_an_upper_limit(driver: Driver) -> None:
    with pytest.raises(CommandFailed) as refused:
        create_key(driver, bytes(64), log_page_size=12, free=1, translations_octword_size=(1 << 22) + 1)
    assert refused.value.status == Status.LIM_ERR


def resume(token: int, error: int = 0) -> cmd.PageFaultResumeIn:
    return cmd.PageFaultResumeIn(fault_token_47_32=token >> 32, fault_token_31_0=token & 0xFFFFFFFF, error=error)


def test_an_answer_reaches_who_waits_and_only_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    hca = hca_of(driver)
    answers: list[bool] = []
    waiter = Waiter(WaitKind.REQUEST, None, None, None, "")
    monkeypatch.setitem(engine._RESUME, WaitKind.REQUEST, lambda hca, waiter, good: answers.append(good))
    token = 0x1234_89AB_CDEF
    hca.page_faults.outstanding[token] = PageRequest(0x1000, 0x2000, 1, 0, waiter)
    driver.run(Op.PAGE_FAULT_RESUME, resume(token))
    assert answers == [True]
    with pytest.raises(CommandFailed) as refused:
        driver.run(Op.PAGE_FAULT_RESUME, resume(token))
    assert refused.value.status == Status.BAD_RES


def test_only_the_kernel_answers(driver: Driver) -> None:
    data = bytearray(resume(1).to_bytes())
    data[0:4] = int(Op.PAGE_FAULT_RESUME).to_bytes(2, "big") + b"\0\1"
    assert driver.raw(bytes(data))[0] == Status.BAD_PARAM


def test_the_driver_may_make_an_event_queue_for_faults(driver: Driver) -> None:
    number, _ = driver.create_eq(13, 1 << EventType.PAGE_FAULT)
    eq = hca_of(driver).eqs.get(number)
    assert eq is not None
    assert eq.event_mask == 1 << 0x0C
