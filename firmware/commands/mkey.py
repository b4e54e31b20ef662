"""Memory keys: create with a translation list, query, destroy."""

from firmware.commands.memic import covering
from firmware.commands.registry import Command, command, page_list, refuse
from firmware.commands.resources import allocate, find, note_use
from firmware.commands.umem import hold_umems, release_umems
from firmware.entries import CHUNK, KLM_BYTES, MIN_LOG_ENTITY, prepare
from firmware.model.capabilities import MAX_LOG_PAGE
from firmware.model.hca import Hca
from firmware.model.objects import (
    LOCAL_READ,
    LOCAL_WRITE,
    MODE_KLM,
    MODE_KSM,
    MODE_MEMIC,
    MODE_MTT,
    MODE_PA,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Mkey,
)
from firmware.model.pages import ENTRY_BYTES
from firmware.programs import is_program
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status
from vhca.wire.connectx.mkey import Mkc

OCTWORD_BYTES = 16
# Translation of one key: 32 GiB in pages of 4 KiB; entries of any size are walked, so there are fewer of them.
MAX_OCTWORDS = 1 << 22
MAX_KLMS = 1 << 16
# A region whose pages need not be there may have one that spans (nearly) all addresses.
MAX_LOG_PAGE_PAGED = 61


@command(Op.CREATE_MKEY, cmd.CreateMkeyIn)
def create_mkey(hca: Hca, request: Command[cmd.CreateMkeyIn]) -> Layout:
    """A memory key; a free one (for registration by work request) reserves its table's size only."""
    view = request.view
    context = view.memory_key_mkey_entry
    if view.data_direct:
        refuse(Status.BAD_PARAM, "data_direct: not advertised")
    pd = find(hca.pds, context.pd, request.uid)
    mode = context.access_mode_4_2 << 2 | context.access_mode_1_0
    if mode not in (MODE_PA, MODE_MTT, MODE_KLM, MODE_KSM, MODE_MEMIC):
        refuse(Status.BAD_PARAM, "mkc.access_mode: not supported")
    if mode in (MODE_PA, MODE_MEMIC) and is_program(request.uid):
        refuse(Status.BAD_PARAM, "mkc.access_mode: bus addresses and device memory are given out by the kernel alone")
    if mode == MODE_MTT and not view.mkey_umem_valid and is_program(request.uid):
        refuse(Status.BAD_PARAM, "mkey_umem_valid: a program's pages are those of a user memory object")
    if context.bsf_en:
        refuse(Status.BAD_PARAM, "mkc.bsf_en: signature offload is not advertised")
    if context.a and not hca.capabilities.general.atomic:
        refuse(Status.BAD_PARAM, "mkc.a: atomics are not advertised")
    mkey = Mkey(
        uid=request.uid,
        variant=context.mkey_7_0,
        pd=context.pd,
        rights=rights_of(context),
        mode=mode,
        start=context.start_addr,
        length=context.len,
        length64=bool(context.length64),
        log_page_size=context.log_page_size,
        free=bool(context.free),
        umr_enabled=bool(context.umr_en),
        remote_invalidate=bool(context.en_rinval),
        qpn=context.qpn,
        capacity_octwords=context.translations_octword_size,
        context=context.to_bytes(),
    )
    octwords = view.translations_octword_actual_size
    if max(octwords, mkey.capacity_octwords) > (MAX_KLMS if mode == MODE_KLM else MAX_OCTWORDS):
        refuse(Status.LIM_ERR, "translations_octword_size: more than this card holds for one key")
    if mode == MODE_MEMIC:
        _load_memic(hca, mkey)
    elif view.mkey_umem_valid:
        _load_umem(hca, mkey, request)
    elif mode != MODE_PA and octwords:
        _load_translation(mkey, request.tail, octwords, bool(view.pg_access))
    elif mode == MODE_MTT and not mkey.free:
        refuse(Status.BAD_PARAM, "translations_octword_actual_size: a key with pages needs them")
    out = cmd.CreateMkeyOut()
    out.mkey_index = allocate(hca.mkeys, mkey, _list_bytes(mkey))
    pd.refs += 1
    if view.mkey_umem_valid and mode not in (MODE_PA, MODE_MEMIC):
        hold_umems(hca, mkey, view.mkey_umem_id)
    if mkey.memic is not None:
        mkey.memic.refs += 1
    return out


def _list_bytes(mkey: Mkey) -> int:
    """What the translation may take, now and after work requests that fill the room reserved for it."""
    size = max(len(mkey.mtts), len(mkey.klms), len(mkey.ksms), mkey.capacity_octwords * OCTWORD_BYTES)
    # The walk of a list of entries of any size knows where each chunk of them begins.
    return size + size // (2 * CHUNK) if mkey.mode == MODE_KLM else size


def _load_memic(hca: Hca, mkey: Mkey) -> None:
    """Device memory: the context's address is an offset in BAR0, that of an access counts from the region's start."""
    if mkey.free or mkey.umr_enabled or mkey.length64:
        refuse(Status.BAD_PARAM, "mkc: a region of device memory has bounds and no registration by work request")
    mkey.memic = covering(hca, mkey.start, mkey.length)
    mkey.device_offset = mkey.start
    mkey.start = 0


def _load_umem(hca: Hca, mkey: Mkey, request: Command[cmd.CreateMkeyIn]) -> None:
    """Pages from a user memory object: the region starts at an offset in it."""
    umem = find(hca.umems, request.view.mkey_umem_id, request.uid)
    offset = request.view.mkey_umem_offset + umem.offset
    if mkey.mode != MODE_MTT or mkey.length64:
        refuse(Status.BAD_PARAM, "mkey_umem_valid: user memory makes a key of pages")
    if request.view.mkey_umem_offset + mkey.length > umem.size_bytes:
        refuse(Status.BAD_PARAM, "mkey_umem_offset: the region does not fit behind this offset")
    page_mask = (1 << umem.log_page_bytes) - 1
    if (mkey.start ^ offset) & page_mask:
        refuse(Status.BAD_PARAM, "mkc.start_addr and mkey_umem_offset: different offsets in the page")
    mkey.log_page_size = umem.log_page_bytes
    first = offset >> umem.log_page_bytes
    count = -(-((offset & page_mask) + mkey.length) >> umem.log_page_bytes)
    mkey.mtts = umem.pages[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES]


def _load_translation(mkey: Mkey, tail: memoryview, octwords: int, has_rights: bool) -> None:
    if mkey.mode == MODE_MTT:
        if not 12 <= mkey.log_page_size <= (MAX_LOG_PAGE_PAGED if has_rights else MAX_LOG_PAGE):
            refuse(Status.BAD_PARAM, "mkc.log_page_size: 12 is the smallest page")
        if mkey.length64 and not has_rights:
            refuse(Status.BAD_PARAM, "mkc.length64 with a page list")
        first = mkey.start >> mkey.log_page_size
        end = 1 << 64 if mkey.length64 else mkey.start + mkey.length
        count = ((end + (1 << mkey.log_page_size) - 1) >> mkey.log_page_size) - first
        if count > octwords * 2:
            refuse(Status.BAD_PARAM, "mkc.len needs more pages than the translation holds")
        if octwords > mkey.capacity_octwords:
            refuse(Status.BAD_PARAM, "translations_octword_actual_size exceeds translations_octword_size")
        mkey.mtts = page_list(tail, count)
        mkey.paged = has_rights
        return
    if octwords * KLM_BYTES > len(tail):
        refuse(Status.BAD_INP_LEN, "memory entries are shorter than translations_octword_actual_size")
    entries = bytes(tail[: octwords * KLM_BYTES])
    if mkey.mode == MODE_KLM:
        mkey.klms = entries
        prepare(mkey)
        return
    if mkey.log_page_size < MIN_LOG_ENTITY:
        refuse(Status.BAD_PARAM, "mkc.log_page_size: 12 is the smallest entity of a KSM list")
    mkey.ksms = entries


def rights_of(context: Mkc) -> int:
    """The access rights of a memory key context as a mask of :mod:`firmware.model.objects` bits."""
    return (
        (LOCAL_READ if context.lr else 0)
        | (LOCAL_WRITE if context.lw else 0)
        | (REMOTE_READ if context.rr else 0)
        | (REMOTE_WRITE if context.rw else 0)
        | (REMOTE_ATOMIC if context.a else 0)
    )


@command(Op.QUERY_MKEY, cmd.QueryMkeyIn, cmd.QueryMkeyOut.SIZE)
def query_mkey(hca: Hca, request: Command[cmd.QueryMkeyIn]) -> Layout:
    """Context of a memory key as it is in force, with its first translation entries."""
    mkey = find(hca.mkeys, request.view.mkey_index, request.uid)
    out = cmd.QueryMkeyOut()
    context = Mkc.from_bytes(mkey.context)
    context.free = int(mkey.free)
    context.mkey_7_0 = mkey.variant
    context.pd = mkey.pd
    context.start_addr = mkey.device_offset if mkey.mode == MODE_MEMIC else mkey.start
    context.len = mkey.length
    context.qpn = mkey.qpn
    context.lr = int(bool(mkey.rights & LOCAL_READ))
    context.lw = int(bool(mkey.rights & LOCAL_WRITE))
    context.rr = int(bool(mkey.rights & REMOTE_READ))
    context.rw = int(bool(mkey.rights & REMOTE_WRITE))
    context.a = int(bool(mkey.rights & REMOTE_ATOMIC))
    out.memory_key_mkey_entry = context
    entries = _first_entries(mkey).ljust(32, b"\0")
    out.bsf0_klm0_pas_mtt0_1 = entries[:16]
    out.bsf1_klm1_pas_mtt2_3 = entries[16:]
    return out


def _first_entries(mkey: Mkey) -> bytes:
    """Up to 32 bytes of a key's translation, as the host wrote it."""
    return bytes((mkey.ksms or mkey.klms or mkey.mtts)[:32])


@command(Op.DESTROY_MKEY, cmd.DestroyMkeyIn)
def destroy_mkey(hca: Hca, request: Command[cmd.DestroyMkeyIn]) -> bytes:
    """End a memory key."""
    mkey = find(hca.mkeys, request.view.mkey_index, request.uid)
    if mkey.refs:
        note_use(hca.mkeys, mkey, request.uid)
        refuse(Status.BAD_RES_STATE, "mkey: still in use")
    hca.mkeys.remove(mkey)
    if hca.history is not None:
        hca.history.key_removed(mkey)
    # Whoever still holds it must see that it is gone.
    mkey.free = True
    mkey.mtts = mkey.klms = mkey.ksms = b""
    mkey.plan = None
    mkey.translation_changed()
    release_umems(mkey)
    if mkey.memic is not None:
        mkey.memic.refs -= 1
    pd = hca.pds.get(mkey.pd)
    if pd is not None:
        pd.refs -= 1
    return bytes(16)
