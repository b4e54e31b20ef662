"""User memory objects, and how queues and doorbell records are found in host memory.

A queue's pages come as a list behind the command, or, for user contexts that build their objects themselves, as a place
in a user memory object registered before.
"""

from firmware.commands.registry import Command, command, page_list, refuse
from firmware.commands.resources import allocate, find, free
from firmware.model.hca import Hca
from firmware.model.ledger import HcaObject
from firmware.model.objects import Umem
from firmware.model.pages import ENTRY_BYTES
from firmware.model.queue_buffer import QueueBuffer
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status

PAGE_LOG = 12
RECORD_BYTES = 8


@command(Op.CREATE_UMEM, cmd.CreateUmemIn)
def create_umem(hca: Hca, request: Command[cmd.CreateUmemIn]) -> Layout:
    """Register user memory by its pages."""
    if not request.uid and not hca.capabilities.general.umem_uid_0:
        refuse(Status.BAD_PARAM, "uid: user memory belongs to a user context")
    view = request.view.umem
    log_page_bytes = PAGE_LOG + view.log_page_size
    if view.page_offset >> log_page_bytes or not view.num_of_mtt:
        refuse(Status.BAD_PARAM, "umem: page_offset lies behind the first page, or there is no page")
    umem = Umem(
        uid=request.uid,
        pages=page_list(request.tail, view.num_of_mtt),
        log_page_bytes=log_page_bytes,
        offset=view.page_offset,
    )
    out = cmd.CreateUmemOut()
    out.umem_id = allocate(hca.umems, umem, len(umem.pages))
    return out


@command(Op.DESTROY_UMEM, cmd.DestroyUmemIn)
def destroy_umem(hca: Hca, request: Command[cmd.DestroyUmemIn]) -> bytes:
    """Give user memory back to the host: what lies in it, or shows it, is in the way."""
    free(hca.umems, request.view.umem_id, request.uid)
    return bytes(16)


def hold_umems(hca: Hca, obj: HcaObject, buffer: int | None, record: int | None = None) -> None:
    """Bind `obj` to the user memory objects of its buffer and its doorbell record (None: it is not in such an object).

    The host takes the pages of an object that is gone for something else: until then nothing may point at them. Both
    are known to exist. Called again, it moves the object.
    """
    release_umems(obj)
    held = tuple(None if number is None else hca.umems.get(number) for number in (buffer, record))
    for umem in held:
        if umem is not None:
            umem.refs += 1
    obj.umems = (held[0], held[1])


def release_umems(obj: HcaObject) -> None:
    """Undo :func:`hold_umems` (the object ends)."""
    for umem in obj.umems:
        if umem is not None:
            umem.refs -= 1
    obj.umems = (None, None)


def queue_buffer(tail: memoryview, log_page_size: int, page_offset: int, size_bytes: int) -> QueueBuffer:
    """The buffer that a context and a page list describe.

    `log_page_size` counts from 4 KiB, `page_offset` in 64ths of a page.
    """
    log_page_bytes = PAGE_LOG + log_page_size
    offset = page_offset << log_page_bytes >> 6
    count = QueueBuffer.pages_needed(log_page_bytes, offset, size_bytes)
    return QueueBuffer(page_list(tail, count), log_page_bytes, offset, size_bytes)


def umem_buffer(hca: Hca, umem_id: int, offset: int, size_bytes: int, uid: int) -> QueueBuffer:
    """The buffer of `size_bytes` at `offset` in a user memory object."""
    umem = find(hca.umems, umem_id, uid)
    if offset + size_bytes > umem.size_bytes:
        refuse(Status.BAD_PARAM, "umem: the queue does not fit behind this offset")
    if (offset + umem.offset) % 64:
        refuse(Status.BAD_PARAM, "umem: a queue starts at a multiple of 64 bytes")
    # A copy of its own pages alone: looking at them costs what the queue is, not what the object is.
    first, into = divmod(offset + umem.offset, 1 << umem.log_page_bytes)
    count = QueueBuffer.pages_needed(umem.log_page_bytes, into, size_bytes)
    pages = umem.pages[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES]
    return QueueBuffer(pages, umem.log_page_bytes, into, size_bytes)


def record_addr(hca: Hca, umem_valid: int, umem_id: int, addr: int, uid: int) -> int:
    """Bus address of a doorbell record; with a user memory object `addr` is the offset in it."""
    if not umem_valid:
        return addr
    umem = find(hca.umems, umem_id, uid)
    # The record's place in its page counts: one that begins in the last bytes would end in somebody else's page.
    if (addr + umem.offset) % RECORD_BYTES or addr + RECORD_BYTES > umem.size_bytes:
        refuse(Status.BAD_PARAM, "dbr_umem: the doorbell record does not fit behind this offset")
    return umem.addr(addr)
