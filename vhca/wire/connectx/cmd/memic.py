"""Commands for device memory (MEMIC): allocate, free, and the addresses of its atomic operations."""

from vhca.layout import bits, u32, u64
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut


class AllocMemicIn(CmdIn, size=0x20):
    """ALLOC_MEMIC input: where in the BAR's range it may be, and how much (bytes)."""

    log_memic_addr_alignment: int = bits(0x00C, 7, 0)
    range_start_addr: int = u64(0x010)
    range_size: int = u32(0x018)
    memic_size: int = u32(0x01C)


class AllocMemicOut(CmdOut, size=0x10):
    """ALLOC_MEMIC output: an offset in the BAR."""

    memic_start_addr: int = u64(0x008)


class DeallocMemicIn(CmdIn, size=0x20):
    """DEALLOC_MEMIC input."""

    memic_start_addr: int = u64(0x010)
    memic_size: int = u32(0x018)


class ModifyMemicIn(CmdIn, size=0x40):
    """MODIFY_MEMIC input: op_mod 0 opens, 1 closes the address of one operation."""

    memic_operation_type: int = bits(0x00C, 7, 0)
    memic_start_addr: int = u64(0x010)


class ModifyMemicOut(CmdOut, size=0x40):
    """MODIFY_MEMIC output: an offset in the BAR."""

    memic_operation_addr: int = u64(0x010)
