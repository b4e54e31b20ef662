"""Device memory: pieces of the card's own RAM that the host sees through the BAR.

The host chooses the place in the BAR, the card agrees or says that the place is taken. A piece stays while keys show
it. The three windows of the range (bytes, increment, test-and-set) are the board's.
"""

from typing import Final

from firmware.commands.registry import Command, command, refuse
from firmware.commands.resources import allocate
from firmware.model.capabilities import MEMIC_GRANULE_BYTES
from firmware.model.hca import Hca
from firmware.model.objects import Memic
from vhca.hw.effects import DeviceWrite
from vhca.layout import Layout
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op, Status

OPEN_OPERATION: Final = 0
CLOSE_OPERATION: Final = 1


@command(Op.ALLOC_MEMIC, cmd.AllocMemicIn, cmd.AllocMemicOut.SIZE)
def alloc_memic(hca: Hca, request: Command[cmd.AllocMemicIn]) -> Layout:
    """A piece of device memory within the range that the host names."""
    view = request.view
    caps = hca.capabilities.device_memory
    if not view.memic_size or view.memic_size % MEMIC_GRANULE_BYTES:
        refuse(Status.BAD_PARAM, "memic_size: a multiple of 64 bytes")
    if view.memic_size > caps.max_memic_size:
        refuse(Status.LIM_ERR, "memic_size exceeds max_memic_size")
    if view.log_memic_addr_alignment > caps.log_max_memic_addr_alignment:
        refuse(Status.BAD_PARAM, "log_memic_addr_alignment exceeds log_max_memic_addr_alignment")
    first, bar_end = caps.memic_bar_start_addr, caps.memic_bar_start_addr + caps.memic_bar_size
    range_end = view.range_start_addr + view.range_size
    if not first <= view.range_start_addr < range_end <= bar_end:
        refuse(Status.BAD_PARAM, "range_start_addr, range_size: outside the range of device memory")
    alignment = MEMIC_GRANULE_BYTES << view.log_memic_addr_alignment
    start = -(-view.range_start_addr // alignment) * alignment
    for piece in sorted(hca.memics, key=lambda piece: piece.start):
        if start < piece.start + piece.size_bytes and piece.start < start + view.memic_size:
            start = -(-(piece.start + piece.size_bytes) // alignment) * alignment
    if start + view.memic_size > range_end:
        refuse(Status.NO_RES_ERR, "memic: no room is left in this range")
    allocate(hca.memics, Memic(uid=request.uid, start=start, size_bytes=view.memic_size))
    # What an earlier owner left is not for this one.
    hca.out.append(DeviceWrite(start, bytes(view.memic_size)))
    out = cmd.AllocMemicOut()
    out.memic_start_addr = start
    return out


@command(Op.DEALLOC_MEMIC, cmd.DeallocMemicIn)
def dealloc_memic(hca: Hca, request: Command[cmd.DeallocMemicIn]) -> bytes:
    """Give a piece back; keys that show it are in the way."""
    piece = _find(hca, request.view.memic_start_addr)
    if piece.size_bytes != request.view.memic_size:
        refuse(Status.BAD_PARAM, "memic_size: not what was allocated")
    if piece.refs:
        refuse(Status.BAD_RES_STATE, "memic: still in use")
    hca.memics.remove(piece)
    return bytes(16)


@command(Op.MODIFY_MEMIC, cmd.ModifyMemicIn, 24)
def modify_memic(hca: Hca, request: Command[cmd.ModifyMemicIn]) -> Layout:
    """Open or close the address at which one operation works on a piece."""
    piece = _find(hca, request.view.memic_start_addr)
    operation = request.view.memic_operation_type
    caps = hca.capabilities.device_memory
    if operation > 31 or not caps.memic_operations >> operation & 1:
        refuse(Status.BAD_PARAM, "memic_operation_type: not in memic_operations")
    out = cmd.ModifyMemicOut()
    if request.op_mod == OPEN_OPERATION:
        piece.operations |= 1 << operation
        out.memic_operation_addr = piece.start + (operation + 1) * caps.memic_bar_size
    elif request.op_mod == CLOSE_OPERATION and piece.operations >> operation & 1:
        piece.operations &= ~(1 << operation)
    else:
        refuse(Status.BAD_PARAM, "op_mod: 0 opens an operation, 1 closes one that is open")
    return out


def covering(hca: Hca, start: int, length: int) -> Memic:
    """The piece that `length` bytes from `start` lie in, or refuse."""
    for piece in hca.memics:
        if piece.start <= start and start + length <= piece.start + piece.size_bytes:
            break
    else:
        refuse(Status.BAD_PARAM, "mkc: the region is not inside a piece of device memory")
    return piece


def _find(hca: Hca, start: int) -> Memic:
    for piece in hca.memics:
        if piece.start == start:
            break
    else:
        refuse(Status.BAD_RES, "memic: no such object")
    return piece
