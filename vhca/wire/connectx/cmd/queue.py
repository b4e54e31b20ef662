"""The command queue as it lies in host memory: the entry of one command, and the blocks of its long messages.

The first 16 bytes of input and output are in the entry. Byte `n` beyond them is byte `(n - 16) % 512` of
block `(n - 16) // 512` of the mailbox chain.
"""

from typing import Final

from vhca.layout import Layout, bits, raw, u8, u32, u64

ENTRY_TYPE_PCIE: Final = 0x07
"""`CmdQueueEntry.type` of a command posted through PCI Express."""

INLINE_SIZE: Final = 16
"""Bytes of a message that travel in the entry."""

BLOCK_DATA_SIZE: Final = 512
"""Bytes of a message that travel in one mailbox block."""

OWNER_HW: Final = 1
"""`CmdQueueEntry.ownership` while the card owns the entry."""


class CmdQueueEntry(Layout, size=64):
    """Command queue entry; the card hands it back by writing its last byte, alone and last."""

    type: int = u8(0x000)
    input_length: int = u32(0x004)
    input_mailbox_pointer: int = u64(0x008)
    command_input_inline_data: bytes = raw(0x010, 16)
    command_output_inline_data: bytes = raw(0x020, 16)
    output_mailbox_pointer: int = u64(0x030)
    output_length: int = u32(0x038)
    token: int = bits(0x03C, 31, 24)
    signature: int = bits(0x03C, 23, 16)
    status: int = bits(0x03C, 7, 1)
    ownership: int = bits(0x03C, 0)


class CmdMailboxBlock(Layout, size=576):
    """Block of a mailbox chain; `next_pointer` is 0 in the last one."""

    mailbox_data: bytes = raw(0x000, 512)
    next_pointer: int = u64(0x230)
    block_number: int = u32(0x238)
    token: int = u8(0x23D)
    ctrl_signature: int = u8(0x23E)
    signature: int = u8(0x23F)
