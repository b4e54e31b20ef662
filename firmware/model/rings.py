"""The rings of a card's queues in host memory: where their entries are, and how far both sides have come.

All indices are kept free running in Python integers and cut to the width of the wire where they meet it.
"""

from collections.abc import Sequence
from typing import Final

from firmware.model.hot import ReceiveRing, SendRing
from firmware.model.lists import Sge
from firmware.model.objects import Srq
from firmware.model.queue_buffer import QueueBuffer
from vhca.hw.memory import Memory

# Send queue blocks that are copied in one go.
PREFETCH_BLOCKS: Final = 32


class SendQueue(SendRing):
    """Send queue of a QP; `base` is its offset in its buffer, `chunk` a copy of the blocks from `chunk_first` on."""

    __slots__ = ("base", "buffer", "chunk", "chunk_end", "chunk_first")

    def __init__(self, buffer: QueueBuffer, base: int, log_size: int, dbr_addr: int) -> None:
        super().__init__(log_size=log_size, dbr_addr=dbr_addr, linear=buffer.linear_at(base))
        self.buffer = buffer
        self.base = base
        self.chunk = b""
        self.chunk_first = 0
        self.chunk_end = 0

    def peek(self, memory: Memory) -> tuple[bytes, int]:
        """The WQE at `consumer`: a copy of posted blocks and where in it the WQE begins; it may end inside the WQE.

        Blocks are copied in runs: until it is complete, a posted WQE belongs to the card, so that early is as good.
        """
        index = self.consumer
        if not self.chunk_first <= index < self.chunk_end:
            slot = index & ((1 << self.log_size) - 1)
            blocks = min(self.producer - index, (1 << self.log_size) - slot, PREFETCH_BLOCKS)
            self.chunk = self.buffer.read(memory, self.base + (slot << 6), blocks << 6)
            self.chunk_first = index
            self.chunk_end = index + blocks
        return self.chunk, (index - self.chunk_first) << 6

    def refresh(self, memory: Memory) -> int:
        """Read the doorbell record; return how many BBs wait. More than the ring holds is cut to the ring."""
        posted = int.from_bytes(memory.read(self.dbr_addr + 4, 4), "big") & 0xFFFF
        waiting = (posted - self.consumer) & 0xFFFF
        waiting = min(waiting, 1 << self.log_size)
        self.producer = self.consumer + waiting
        return waiting

    def read_blocks(self, memory: Memory, index: int, blocks: int) -> bytes:
        """Copy `blocks` BBs from free running BB `index`, wrapping at the ring's end."""
        size = 1 << self.log_size
        index &= size - 1
        if index + blocks <= size:
            return self.buffer.read(memory, self.base + (index << 6), blocks << 6)
        head = size - index
        return self.buffer.read(memory, self.base + (index << 6), head << 6) + self.buffer.read(
            memory, self.base, (blocks - head) << 6
        )

    def reset(self) -> None:
        """Back to empty (2RST)."""
        self.producer = self.consumer = self.flush_end = 0
        self.chunk_first = self.chunk_end = 0


class RecordlessSendQueue(SendQueue):
    """A send queue without a doorbell record: the doorbell itself says how far the host has come."""

    __slots__ = ("posted",)

    def __init__(self, buffer: QueueBuffer, base: int, log_size: int) -> None:
        super().__init__(buffer, base, log_size, 0)
        self.posted = 0

    def rung(self, opmod_idx_opcode: int, qpn_ds: int) -> None:
        """A doorbell: index and 16-byte units of the last WQE that was posted."""
        self.posted = (opmod_idx_opcode >> 8) + ((qpn_ds & 0x3F) + 3 >> 2) & 0xFFFF

    def refresh(self, memory: Memory) -> int:
        """Count the blocks that wait by the last doorbell. More than the ring holds is cut to the ring."""
        waiting = min((self.posted - self.consumer) & 0xFFFF, 1 << self.log_size)
        self.producer = self.consumer + waiting
        return waiting

    def reset(self) -> None:
        """Back to empty (2RST)."""
        super().reset()
        self.posted = 0


class RecvQueue(ReceiveRing):
    """Receive queue of one QP, at the beginning of its buffer."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: QueueBuffer, log_size: int, log_stride: int, dbr_addr: int) -> None:
        super().__init__(log_size=log_size, log_stride=log_stride, dbr_addr=dbr_addr, linear=buffer.linear_at(0))
        self.buffer = buffer

    def waiting(self, memory: Memory) -> int:
        """Read the doorbell record: how many posted WQEs have not been taken."""
        posted = int.from_bytes(memory.read(self.dbr_addr, 4), "big") & 0xFFFF
        return min((posted - self.consumer) & 0xFFFF, 1 << self.log_size)

    def reset(self) -> None:
        """Back to empty (2RST)."""
        self.consumer = self.flush_end = 0


class RecvWqe:
    """A receive that was taken: its scatter list and what its completion must name (`wqe_counter`, 16 bit)."""

    __slots__ = ("segments", "srq", "wqe_counter")

    def __init__(self, wqe_counter: int, segments: Sequence[Sge], srq: Srq | None) -> None:
        self.wqe_counter = wqe_counter
        self.segments = segments
        self.srq = srq
