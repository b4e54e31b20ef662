"""Device memory of the card (MEMIC): a range of BAR0 that is RAM of the card itself.

The range has three windows of one size. Through the first the host reads and writes bytes. The others carry out an
operation on the same bytes: a store to the second adds, a load from the third reads and leaves 1 behind. The card's own
engines reach the memory by its offset in BAR0.
"""

from typing import Final

from vhca.hw.memory import FlatMemory

INCREMENT: Final = 1
TEST_AND_SET: Final = 2
OPERAND_SIZES: Final = (1, 2, 4, 8)


class DeviceMemory:
    """The memory behind the windows; `start` is the offset of the first one in BAR0."""

    def __init__(self, start: int, size_bytes: int) -> None:
        self.start = start
        self.size_bytes = size_bytes
        self.ram = FlatMemory(size_bytes, start)
        self.ignored = 0

    def reset(self) -> None:
        """Power-up: what one host left, the next does not see."""
        self.ram.data[:] = bytes(self.size_bytes)

    def read(self, offset: int, count: int) -> bytes:
        """A host's load at an offset of BAR0 behind `start`; what is no window reads as zeros."""
        window, at = divmod(offset - self.start, self.size_bytes)
        if at + count > self.size_bytes or window not in (0, TEST_AND_SET):
            self.ignored += 1
            return bytes(count)
        old = bytes(self.ram.data[at : at + count])
        if window == TEST_AND_SET:
            if count not in OPERAND_SIZES:
                self.ignored += 1
                return bytes(count)
            self.ram.data[at : at + count] = (1).to_bytes(count, "little")
        return old

    def write(self, offset: int, data: bytes) -> None:
        """A host's store at an offset of BAR0 behind `start`."""
        window, at = divmod(offset - self.start, self.size_bytes)
        count = len(data)
        if at + count > self.size_bytes or window > INCREMENT:
            self.ignored += 1
        elif window == 0:
            self.ram.data[at : at + count] = data
        elif count in OPERAND_SIZES:
            old = int.from_bytes(self.ram.data[at : at + count], "little")
            total = old + int.from_bytes(data, "little") & (1 << 8 * count) - 1
            self.ram.data[at : at + count] = total.to_bytes(count, "little")
        else:
            self.ignored += 1
