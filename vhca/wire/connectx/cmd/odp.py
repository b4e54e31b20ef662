"""Commands of on-demand paging: the host's answer to a page fault."""

from vhca.layout import bits, u32
from vhca.wire.connectx.cmd.common import CmdIn


class PageFaultResumeIn(CmdIn, size=0x10):
    """PAGE_FAULT_RESUME input, memory scheme: the token of the fault, and whether the pages could not be had."""

    error: int = bits(0x008, 31)
    fault_token_47_32: int = bits(0x008, 15, 0)
    fault_token_31_0: int = u32(0x00C)
