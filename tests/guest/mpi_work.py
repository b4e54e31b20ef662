"""What the processes of an MPI run do in guests: ping-pong and allreduce, all data compared; run by mpi4py."""

from __future__ import annotations

import array
import hashlib
import random
import sys
import time
from typing import Any

from mpi4py import MPI  # type: ignore[import-not-found]

SIZES = (8, 4 << 10, 64 << 10, 1 << 20)
ROUNDS = 5


def data_of(rank: int, size_bytes: int) -> bytes:
    """What a rank sends: the same for every process that asks."""
    return random.Random(rank << 32 | size_bytes).randbytes(size_bytes)


def pingpong(world: Any) -> None:
    """Rank 0 and each other one exchange messages of all sizes, and compare what they get."""
    rank = world.Get_rank()
    for peer in range(1, world.Get_size()):
        if rank not in (0, peer):
            continue
        other = peer if rank == 0 else 0
        for size in SIZES:
            mine, expected, got = data_of(rank, size), data_of(other, size), bytearray(size)
            began_s = time.monotonic()
            for _ in range(ROUNDS):
                if rank == 0:
                    world.Send([mine, MPI.BYTE], dest=other)
                    world.Recv([got, MPI.BYTE], source=other)
                else:
                    world.Recv([got, MPI.BYTE], source=other)
                    world.Send([mine, MPI.BYTE], dest=other)
            each_us = (time.monotonic() - began_s) * 1e6 / (2 * ROUNDS)
            if bytes(got) != expected:
                sys.exit(f"rank {rank}: {size} bytes of rank {other} are not what it sent")
            if rank == 0:
                print(f"pingpong with {peer}, {size} bytes: {each_us:.0f} us one way")


def allreduce(world: Any) -> None:
    """Sums over all ranks, compared with what they must be."""
    rank, ranks = world.Get_rank(), world.Get_size()
    for size in SIZES:
        count = size // 8
        mine = array.array("q", (rank * 1_000_003 + index for index in range(count)))
        got = array.array("q", bytes(8 * count))
        world.Allreduce([mine, MPI.INT64_T], [got, MPI.INT64_T], op=MPI.SUM)
        base = sum(range(ranks)) * 1_000_003
        if wrong := [(index, value) for index, value in enumerate(got) if value != base + ranks * index]:
            first = f"the first is number {wrong[0][0]}, {wrong[0][1]} instead of {base + ranks * wrong[0][0]}"
            sys.exit(f"rank {rank}: {len(wrong)} of the sums of {count} numbers are wrong, {first}")


def alltoall(world: Any) -> None:
    """Every rank sends to every other one something that is for that one only."""
    rank, ranks, block = world.Get_rank(), world.Get_size(), 4096
    mine = b"".join(data_of(rank * ranks + to, block) for to in range(ranks))
    got = bytearray(ranks * block)
    world.Alltoall([mine, MPI.BYTE], [got, MPI.BYTE])
    if bytes(got) != b"".join(data_of(source * ranks + rank, block) for source in range(ranks)):
        sys.exit(f"rank {rank}: not what the others sent")


def main() -> None:
    """Do it all; the last line says that it is done."""
    world = MPI.COMM_WORLD
    pingpong(world)
    allreduce(world)
    alltoall(world)
    told = hashlib.sha256(str(world.Get_size()).encode()).hexdigest()[:8]
    if set(world.allgather(told)) != {told}:
        sys.exit("the ranks do not agree")
    if world.Get_rank() == 0:
        print(f"{world.Get_size()} ranks: done")


if __name__ == "__main__":
    main()
