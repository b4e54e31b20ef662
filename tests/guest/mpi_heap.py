"""MPI messages in memory that goes back to the kernel and comes again: at the same address, with other pages.

`mpi_heap.py ROUNDS`, for two processes. A buffer at the end of the heap is freed after each message; malloc gives it
back by sbrk(), and takes it anew for the next one. Who keeps registrations of memory has to notice. Each message is
compared; the last line of rank 1 says how many were not what had been sent, and whose code sbrk() runs.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

from mpi4py import MPI  # type: ignore[import-not-found]

BYTES = 300_000
PAGE = 4096
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def prepare() -> None:
    """Let malloc serve large blocks from the heap, and give back at once what is free at its end."""
    for option, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, 0), (M_TOP_PAD, 0)):
        libc.mallopt(option, value)
    # A hole that is too small for a buffer: what others allocate meanwhile is not to be behind it.
    hole, _guard = libc.malloc(BYTES - PAGE), libc.malloc(PAGE)
    libc.free(hole)


def sbrk_runs() -> str:
    """The file whose code a call of sbrk() reaches: a library that wants to know wrote a jump to its own there."""
    at = ctypes.cast(libc.sbrk, ctypes.c_void_p).value
    assert at is not None
    code = ctypes.string_at(at, 16)
    if code[0] == 0xE9:  # jmp, relative
        at += 5 + struct.unpack("<i", code[1:5])[0]
    elif code[:2] == b"\x49\xbb":  # mov to r11, jmp to it
        at = struct.unpack("<Q", code[2:10])[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, file = line.split()
        first, end = (int(number, 16) for number in place.split("-"))
        if first <= at < end:
            return Path(file).name
    return "nobody's"


def main(rounds: int) -> None:
    """See the module."""
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    prepare()
    wrong = again = 0
    last = None
    for number in range(rounds):
        addr = libc.malloc(BYTES)
        again += addr == last
        last = addr
        view = memoryview((ctypes.c_char * BYTES).from_address(addr)).cast("B")
        word = number % 255
        ctypes.memset(addr, word if rank == 0 else 255, BYTES)
        if rank == 0:
            world.Send([view, MPI.BYTE], dest=1)
        else:
            world.Recv([view, MPI.BYTE], source=0)
            wrong += bytes(view) != bytes([word]) * BYTES
        view.release()
        libc.free(addr)
        world.Barrier()
    if rank == 1:
        print(f"{wrong} of {rounds} wrong, {again} at the same address, sbrk of {sbrk_runs()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
