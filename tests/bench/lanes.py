"""Directions between two cards that are kept busy by whole rings, filled in advance, which cost the filler one copy."""

from __future__ import annotations

from tests.support.remote import BLOCK, RemoteDriver, WqeOpcode, pair
from vhca.wire.connectx.wqe import CtrlSegment

Ends = tuple[RemoteDriver, RemoteDriver]


class Lane:
    """One direction between two cards: a ring's worth of WRITEs, and a last one to a place of its own."""

    def __init__(self, ends: Ends, lids: dict[RemoteDriver, int], size: int, log: int) -> None:
        self.near, self.far = near, far = ends
        self.log = log
        self.qp = pair(near, far, lids, log_sq=log)[0]
        self.source, target = near.alloc(size), far.alloc(size)
        self.mark = far.alloc(64)
        self.number = 0
        self.body = self.qp.write(self.source, size, target, far.key)
        self.last = self.qp.write(self.source, 8, self.mark, far.key)
        # An index has 16 bits: so many laps until the ring is as it was.
        self.laps = [self._lap(lap) for lap in range(1 << 16 - log)]

    def _lap(self, lap: int) -> bytes:
        pack = CtrlSegment.packer("wqe_index", "opcode", "qpn", "ds", "ce")
        count = 1 << self.log
        body = self.body.ljust(BLOCK - 16, b"\0")
        units = 1 + len(self.body) // 16
        write = int(WqeOpcode.RDMA_WRITE)
        first = lap << self.log
        wqes = [pack(first + slot, write, self.qp.number, units, 0)[:16] + body for slot in range(count - 1)]
        wqes.append(pack(first + count - 1, write, self.qp.number, units, 2)[:16] + self.last.ljust(BLOCK - 16, b"\0"))
        return b"".join(wqes)

    def fill(self) -> None:
        """Post a whole ring, without a doorbell."""
        self.near.memory.write(self.qp.sq, self.laps[self.number % len(self.laps)])
        self.number += 1
        self.near.memory.write(self.source, self.number.to_bytes(8, "little"))
        self.qp.posted += 1 << self.log

    def arrived(self) -> bool:
        """Whether the last message of this run is there."""
        return int.from_bytes(self.far.memory.read(self.mark, 8), "little") == self.number


def lanes_of(machines: list[RemoteDriver], size: int, log: int, queue_pairs: int) -> list[list[Lane]]:
    """Of each pair of machines, the first to the second."""
    lids = {driver: driver.lid() for driver in machines}
    ways = list(zip(machines[::2], machines[1::2], strict=True))
    return [[Lane(way, lids, size, log) for _ in range(queue_pairs)] for way in ways]


def mixed(lanes: list[list[Lane]]) -> list[Lane]:
    """The lanes of all pairs, in turn."""
    return [lane for of_pair in zip(*lanes, strict=True) for lane in of_pair]
