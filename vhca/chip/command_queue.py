"""The command queue: entries and mailbox chains in guest memory become command bytes, and outputs go back.

Assumes nothing about the guest: every pointer, number and length is checked, each block is copied once, and the
addresses of the output chain are taken when the command is fetched. Fetching is cut into pieces, since 16 MiB of input
are 32,768 mailboxes. A malformed entry is answered with the delivery status the PRM names for it.
"""

import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from vhca.hw.memory import DmaError, Memory
from vhca.wire.connectx.cmd import DeliveryStatus
from vhca.wire.connectx.cmd.queue import (
    BLOCK_DATA_SIZE,
    ENTRY_TYPE_PCIE,
    INLINE_SIZE,
    OWNER_HW,
    CmdMailboxBlock,
    CmdQueueEntry,
)

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 16 << 20
# Mailboxes that are copied in one go; where a client is asked for each of them, some milliseconds.
BLOCKS_PER_PIECE: Final = 16
# No command answers with more.
MAX_OUTPUT_BYTES: Final = 1 << 20
# Complaints that are logged one by one; of the others, each time their number has doubled.
LOGGED_COMPLAINTS: Final = 20

_entry = CmdQueueEntry.unpacker(
    "type",
    "input_length",
    "input_mailbox_pointer",
    "command_input_inline_data",
    "output_mailbox_pointer",
    "output_length",
    "token",
)
_owner = CmdQueueEntry.unpacker("ownership")
_tail = CmdMailboxBlock.unpacker("next_pointer", "block_number", "token")
_OFFSETS: Final = {field.name: field.offset for layout in (CmdQueueEntry, CmdMailboxBlock) for field in layout.fields()}
_OUTPUT_OFFSET: Final = _OFFSETS["command_output_inline_data"]
# The byte that hands the entry back: status and ownership.
_STATUS_OFFSET: Final = CmdQueueEntry.SIZE - 1
_TAIL_OFFSET: Final = _OFFSETS["next_pointer"]
_ALIGNMENT: Final = 0x1FF


@dataclass(slots=True)
class Pending:
    """A fetched command: where its output goes. `blocks` are bus addresses of the output mailbox blocks."""

    entry_addr: int
    out_size: int
    blocks: list[int]


class Fetch:
    """A command that is being copied, some mailboxes at a time.

    :ivar command: input bytes and size of the output buffer, once it is there; None if there is nothing to run.
    """

    __slots__ = ("_steps", "command", "slot")

    def __init__(self, slot: int, steps: Generator[None, None, tuple[bytes, int] | None]) -> None:
        self.slot = slot
        self._steps = steps
        self.command: tuple[bytes, int] | None = None

    def go_on(self) -> bool:
        """Copy the next mailboxes; True if that was the end."""
        try:
            next(self._steps)
        except StopIteration as end:
            self.command = end.value
            return True
        return False


class DeliveryError(Exception):
    """The entry or a mailbox is malformed; `status` is the delivery status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class CommandQueue:
    """One card's command queue; the address comes from the init segment, sizes are this chip's constants."""

    def __init__(self, memory: Memory, log_entries: int, log_stride: int) -> None:
        self._memory = memory
        self._log_entries = log_entries
        self._log_stride = log_stride
        self.address = 0
        self.pending: dict[int, Pending] = {}
        self.malformed = 0
        self.not_owned = 0
        self.complaints = 0

    def reset(self) -> None:
        """Forget the address and everything under way."""
        self.address = 0
        self.pending.clear()

    def fetch(self, slot: int) -> "Fetch":
        """Begin to copy the command in `slot`; see :class:`Fetch`."""
        return Fetch(slot, self._steps(slot))

    def _steps(self, slot: int) -> Generator[None, None, tuple[bytes, int] | None]:
        """Copy a command in pieces: its input and the size of its output buffer.

        None if the slot holds no command for the device, or a malformed one, which is answered here.
        """
        if not self.address or slot >= 1 << self._log_entries or slot in self.pending:
            self.not_owned += 1
            return None
        addr = self.address + (slot << self._log_stride)
        try:
            raw = self._memory.read(addr, CmdQueueEntry.SIZE)
        except DmaError as error:
            self._complain("command slot %d: %s", slot, error)
            self.malformed += 1
            return None
        if _owner(raw)[0] != OWNER_HW:
            self.not_owned += 1
            return None
        try:
            return (yield from self._fetch(slot, addr, raw))
        except (DeliveryError, DmaError) as error:
            self.malformed += 1
            status = error.status if isinstance(error, DeliveryError) else DeliveryStatus.IN_PTR_ALIGN_ERR
            self._complain("command slot %d refused with delivery status %d: %s", slot, status, error)
            self._write(addr + _STATUS_OFFSET, bytes((status << 1,)))
            return None

    def _fetch(self, slot: int, addr: int, raw: bytes) -> Generator[None, None, tuple[bytes, int]]:
        kind, in_size, in_pointer, inline, out_pointer, out_size, token = _entry(raw)
        if kind != ENTRY_TYPE_PCIE:
            raise DeliveryError(DeliveryStatus.CMD_DESCR_ERR, f"transport type {kind:#x}, not {ENTRY_TYPE_PCIE:#x}")
        if not 8 <= in_size <= MAX_MESSAGE_BYTES:
            raise DeliveryError(DeliveryStatus.IN_LENGTH_ERR, f"input length {in_size}")
        if not 8 <= out_size <= MAX_OUTPUT_BYTES:
            raise DeliveryError(DeliveryStatus.OUT_LENGTH_ERR, f"output length {out_size}")
        parts = [inline[: min(in_size, INLINE_SIZE)]]
        left = in_size - INLINE_SIZE
        pointer, number = in_pointer, 0
        while left > 0:
            block = self._read_block(pointer, DeliveryStatus.IN_PTR_ALIGN_ERR)
            pointer = self._check_tail(block, number, token)
            parts.append(block[: min(left, BLOCK_DATA_SIZE)])
            left -= BLOCK_DATA_SIZE
            number += 1
            if not number % BLOCKS_PER_PIECE:
                yield
        blocks: list[int] = []
        pointer = out_pointer
        for number in range(-(-(out_size - INLINE_SIZE) // BLOCK_DATA_SIZE)):
            pointer = self._output_block(pointer, number, token, blocks)
            if not (number + 1) % BLOCKS_PER_PIECE:
                yield
        self.pending[slot] = Pending(addr, out_size, blocks)
        return b"".join(parts), out_size

    def _output_block(self, pointer: int, number: int, token: int, blocks: list[int]) -> int:
        """Take the address of an output mailbox; return where the next one is."""
        if pointer & _ALIGNMENT or not pointer:
            raise DeliveryError(DeliveryStatus.OUT_PTR_ALIGN_ERR, f"output mailbox at {pointer:#x}")
        blocks.append(pointer)
        tail = self._memory.read(pointer + _TAIL_OFFSET, CmdMailboxBlock.SIZE - _TAIL_OFFSET)
        return self._check_tail(bytes(_TAIL_OFFSET) + tail, number, token)

    def _read_block(self, pointer: int, status: int) -> bytes:
        if pointer & _ALIGNMENT or not pointer:
            raise DeliveryError(status, f"mailbox at {pointer:#x}")
        return self._memory.read(pointer, CmdMailboxBlock.SIZE)

    def _check_tail(self, block: bytes, number: int, token: int) -> int:
        """Check a block's number and token; return its next pointer."""
        next_pointer, block_number, block_token = _tail(block)
        if block_number != number:
            raise DeliveryError(DeliveryStatus.BAD_BLK_NUM_ERR, f"mailbox block {block_number} where {number} belongs")
        if block_token != token:
            raise DeliveryError(DeliveryStatus.TOKEN_ERR, f"mailbox token {block_token:#x}, entry token {token:#x}")
        return int(next_pointer)

    def complete(self, slot: int, output: bytes, delivery_status: int) -> None:
        """Write the output of the command in `slot`, then hand the entry back; unknown slots are an error of ours."""
        pending = self.pending.pop(slot, None)
        if pending is None:
            # The host has given the queue another address while the command ran.
            self._complain("command slot %d: its queue has gone, the output is lost", slot)
            return
        output = output[: pending.out_size].ljust(pending.out_size, b"\0")
        self._write(pending.entry_addr + _OUTPUT_OFFSET, output[:INLINE_SIZE])
        at = INLINE_SIZE
        for block in pending.blocks:
            self._write(block, output[at : at + BLOCK_DATA_SIZE])
            at += BLOCK_DATA_SIZE
        self._write(pending.entry_addr + _STATUS_OFFSET, bytes((delivery_status << 1,)))

    def _write(self, addr: int, data: bytes) -> None:
        try:
            self._memory.write(addr, data)
        except DmaError as error:
            self._complain("command output lost: %s", error)

    def _complain(self, text: str, *details: object) -> None:
        """Log what a guest did wrong, but do not let it fill the log."""
        self.complaints += 1
        if self.complaints <= LOGGED_COMPLAINTS or not self.complaints & (self.complaints - 1):
            log.warning(text + " (complaint %d)", *details, self.complaints)
