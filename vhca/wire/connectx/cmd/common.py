"""The start of every command: which one it is and who asks, and how it ended.

Where a command takes no `uid` (it does not belong to a user context) those bits are reserved.
"""

from vhca.layout import Layout, bits, u32


class CmdIn(Layout, partial=True):
    """Header of every command input."""

    opcode: int = bits(0x000, 31, 16)
    uid: int = bits(0x000, 15, 0)
    op_mod: int = bits(0x004, 15, 0)


class CmdOut(Layout, partial=True):
    """Header of every command output."""

    status: int = bits(0x000, 31, 24)
    syndrome: int = u32(0x004)


class BareIn(CmdIn, size=0x10):
    """Input of a command that has only the header."""
