"""Registration by work request, field by field: what the mask names is changed, and nothing else."""

import pytest

from firmware.model.objects import (
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_KLM,
    MODE_PA,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Mkey,
)
from tests.scenario.registration import free_key, registration_queue, umr, used_key
from tests.scenario.test_device_memory import device_key
from tests.scenario.test_umr import configure, strided
from tests.scenario.world import pair
from tests.support.commands import CommandFailed
from vhca.wire.connectx.cqe import CqeSyndrome
from vhca.wire.connectx.wqe import MkeyMask, UmrCheckFree, UmrCtrlSegment, UmrMkeySegment, WqeOpcode

RIGHTS = {MkeyMask.LR: LOCAL_READ, MkeyMask.LW: LOCAL_WRITE, MkeyMask.RR: REMOTE_READ, MkeyMask.RW: REMOTE_WRITE,
          MkeyMask.A: REMOTE_ATOMIC}  # fmt: skip
FIELDS = [MkeyMask.KEY, MkeyMask.START_ADDR, MkeyMask.LEN, MkeyMask.FREE, MkeyMask.EN_RINVAL, MkeyMask.QPN, *RIGHTS]


def state(mkey: Mkey) -> dict[int, object]:
    """A key as the bits of a mask see it."""
    return {
        MkeyMask.KEY: mkey.variant,
        MkeyMask.PD: mkey.pd,
        MkeyMask.START_ADDR: mkey.start,
        MkeyMask.LEN: (mkey.length, mkey.length64),
        MkeyMask.FREE: mkey.free,
        MkeyMask.EN_RINVAL: mkey.remote_invalidate,
        MkeyMask.QPN: mkey.qpn,
        **{bit: mkey.rights & right for bit, right in RIGHTS.items()},
    }


@pytest.mark.parametrize(("bit", "exempt"), [*((bit, False) for bit in FIELDS), (MkeyMask.PD, True),
                                             *((bit, True) for bit in FIELDS if bit != MkeyMask.QPN)])  # fmt: skip
def test_only_what_the_mask_names_is_changed(bit: int, exempt: bool) -> None:
    _, _, b = pair()
    if exempt:
        b = registration_queue(b.card)
    mkey = used_key(b.card)
    other = b.card.alloc_pd()
    before = state(mkey)
    # A key to be freed is named as it is.
    umr(b, mkey, mask=1 << bit, variant=0x10 if bit == MkeyMask.FREE else 0x77, pd=other, start_addr=0x1234000,
        len=99, length64=1, free=1, en_rinval=1, qpn=b.qpn, lr=1, lw=1, rr=1, rw=1, a=1)  # fmt: skip
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    assert {name for name, value in state(mkey).items() if value != before[name]} == {bit}
    if bit == MkeyMask.LEN:
        assert (mkey.length, mkey.length64) == (99, True)


def test_the_registration_queue_names_domains_that_exist() -> None:
    _, _, b = pair()
    queue = registration_queue(b.card)
    mkey = free_key(b.card)
    umr(queue, mkey, mask=1 << MkeyMask.LEN, pd=999, len=5)
    umr(queue, mkey, mask=1 << MkeyMask.PD, pd=999)
    assert [c.syndrome for c in queue.send_cq.poll()] == [0, CqeSyndrome.MW_BIND_ERR]


def test_a_translation_that_is_not_inline_has_a_data_segment() -> None:
    _, _, b = pair()
    mkey = free_key(b.card)
    ctrl = UmrCtrlSegment(mkey_mask=1 << MkeyMask.LEN, xlt_octowords=4)
    b.post(WqeOpcode.UMR, ctrl.to_bytes() + UmrMkeySegment().to_bytes(), imm=mkey.handle << 8)
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.LOCAL_QP_OP_ERR]


@pytest.mark.parametrize("mask", [1 << MkeyMask.FREE, 1 << MkeyMask.KEY, 1 << MkeyMask.LEN])
def test_a_key_of_device_memory_is_no_work_request_s_business(mask: int) -> None:
    _, _, b = pair()
    mkey = b.card.mkey(device_key(b.card))
    with pytest.raises(CommandFailed):
        device_key(b.card, umr_en=1)
    before = state(mkey)
    queue = registration_queue(b.card)
    for end in (b, queue):
        umr(end, mkey, mask=mask, free=1, variant=mkey.variant, len=5)
        assert [c.syndrome for c in end.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]
    assert state(mkey) == before


def test_a_key_of_bus_addresses_may_be_invalidated_and_has_no_table() -> None:
    _, _, b = pair()
    mkey = b.card.mkey(b.card.create_key(MODE_PA, umr_en=1))
    umr(b, mkey, mask=1 << MkeyMask.FREE, free=1, variant=mkey.variant)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    assert mkey.free
    umr(b, mkey, mask=0, payload=bytes(64), variant=mkey.variant)
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR]


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("check", [0, UmrCheckFree.FAIL_IF_FREE, UmrCheckFree.FAIL_IF_NOT_FREE])
def test_a_registration_may_ask_for_a_key_that_is_free_or_is_not(check: int, free: bool) -> None:
    _, _, b = pair()
    mkey = free_key(b.card) if free else used_key(b.card)
    umr(b, mkey, mask=1 << MkeyMask.LEN, len=5, check_free=check)
    refused = check == (UmrCheckFree.FAIL_IF_FREE if free else UmrCheckFree.FAIL_IF_NOT_FREE)
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR if refused else 0]
    assert mkey.length == (0 if refused else 5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value", [0, 1])
def test_signatures_are_refused_where_they_are_asked_for(masked: bool, value: int) -> None:
    _, _, b = pair()
    mkey = free_key(b.card)
    umr(b, mkey, mask=1 << MkeyMask.LEN | masked << MkeyMask.BSF_EN, bsf_en=value, len=5)
    refused = masked and value
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR if refused else 0]
    assert mkey.length == (0 if refused else 5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("whose", ["own", "any", "another's"])
def test_a_window_is_bound_to_its_own_queue_pair_or_to_none(masked: bool, whose: str) -> None:
    _, _, b = pair()
    mkey = free_key(b.card)
    number = {"own": b.qpn, "any": 0xFFFFFF, "another's": b.qpn + 1}[whose]
    umr(b, mkey, mask=1 << MkeyMask.LEN | masked << MkeyMask.QPN, qpn=number, len=5)
    refused = masked and whose == "another's"
    assert [c.syndrome for c in b.send_cq.poll()] == [CqeSyndrome.MW_BIND_ERR if refused else 0]
    assert mkey.qpn == (number if masked and not refused else 0xFFFFFF)


@pytest.mark.parametrize(("mask", "shown", "log"), [
    (1 << MkeyMask.PAGE_SIZE, 0x2C, 12),
    (1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5, 0x2C, 44),
    (1 << MkeyMask.PAGE_SIZE | 1 << MkeyMask.PAGE_SIZE_5, 0x15, 21),
    (1 << MkeyMask.PAGE_SIZE_5, 0x2C, 20),
])  # fmt: skip
def test_the_sixth_bit_of_the_page_size_has_a_mask_of_its_own(mask: int, shown: int, log: int) -> None:
    _, _, b = pair()
    mkey = free_key(b.card, log_page_size=20)
    umr(b, mkey, mask=mask, log_page_size=shown)
    assert [c.syndrome for c in b.send_cq.poll()] == [0]
    assert mkey.log_page_size == log


@pytest.mark.parametrize(("start", "good"), [(0, True), (28, True), (29, False), (60, False)])
def test_a_strided_window_lies_in_its_region_up_to_the_last_round(start: int, good: bool) -> None:
    _, _, b = pair()
    page = b.card.alloc(4096)
    region = b.card.register(page, 64)
    mkey = free_key(b.card, MODE_KLM)
    # 4 bytes every 8 bytes, five times: 36 bytes from the first to the last.
    configure(b, mkey, strided([(4, 8, region, page + start)], 5), 20)
    assert [c.syndrome for c in b.send_cq.poll()] == [0 if good else CqeSyndrome.MW_BIND_ERR]


@pytest.mark.parametrize(("rights", "local", "good"), [
    (REMOTE_READ, LOCAL_READ, True),
    (REMOTE_READ, 0, True),
    (REMOTE_WRITE, LOCAL_READ, False),
    (REMOTE_ATOMIC, LOCAL_READ, False),
    (REMOTE_WRITE, LOCAL_READ | LOCAL_WRITE, True),
])  # fmt: skip
def test_a_window_that_writes_needs_a_region_that_may_be_written(rights: int, local: int, good: bool) -> None:
    _, _, b = pair()
    page = b.card.alloc(4096)
    region = b.card.register(page, 4096, rights=local | REMOTE_READ)
    mkey = free_key(b.card, MODE_KLM, lr=0)
    mask = sum(1 << bit for bit in (MkeyMask.LEN, MkeyMask.FREE, MkeyMask.RR, MkeyMask.RW, MkeyMask.A))
    klm = (64).to_bytes(4, "big") + region.to_bytes(4, "big") + page.to_bytes(8, "big")
    umr(b, mkey, mask=mask, payload=klm + bytes(48), len=64, rr=int(rights == REMOTE_READ),
        rw=int(rights == REMOTE_WRITE), a=int(rights == REMOTE_ATOMIC))  # fmt: skip
    assert [c.syndrome for c in b.send_cq.poll()] == [0 if good else CqeSyndrome.MW_BIND_ERR]
