"""Registered memory that is unmapped and mapped again at the same address: what a key shows, and what the process sees.

`old_pages.py DEVICE [odp]`; prints one line. A registration holds its pages, whatever becomes of the addresses; with
on-demand paging (`odp`) it has none of its own, and the device follows the process.
"""

from __future__ import annotations

import ctypes
import sys
import time

import pyverbs.enums as e  # type: ignore[import-not-found]
from pyverbs.addr import AHAttr, GlobalRoute  # type: ignore[import-not-found]
from pyverbs.cq import CQ  # type: ignore[import-not-found]
from pyverbs.device import Context  # type: ignore[import-not-found]
from pyverbs.mr import MR  # type: ignore[import-not-found]
from pyverbs.pd import PD  # type: ignore[import-not-found]
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr  # type: ignore[import-not-found]
from pyverbs.wr import SGE, SendWR  # type: ignore[import-not-found]

BYTES = 64 << 10
PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, MAP_FIXED = 3, 0x22, 0x10
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
LIMIT_S = 30.0

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(addr: int | None = None) -> int:
    """Fresh memory, at this address if one is given."""
    flags = MAP_PRIVATE_ANONYMOUS | (MAP_FIXED if addr else 0)
    return int(libc.mmap(addr, BYTES, PROT_READ_WRITE, flags, -1, 0))


class Loop:
    """A queue pair of a device that is connected to itself."""

    def __init__(self, device: str) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4)
        port = self.context.query_port(1)
        cap = QPCap(max_send_wr=4, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = RIGHTS
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap), attr)
        index = 1 if port.link_layer == e.IBV_LINK_LAYER_ETHERNET else 0  # the second is of its IPv4 address
        route = GlobalRoute(dgid=self.context.query_gid(1, index), sgid_index=index)
        attr.dest_qp_num = self.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.timeout = 18
        attr.retry_cnt = attr.rnr_retry = 7
        attr.ah_attr = AHAttr(port_num=1, dlid=port.lid, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def region(self, addr: int, *, odp: bool = False) -> MR:
        """Register memory."""
        return MR(self.pd, BYTES, RIGHTS | (e.IBV_ACCESS_ON_DEMAND if odp else 0), addr)

    def move(self, opcode: int, mine: MR, other: MR, addr: int) -> None:
        """WRITE `mine` to `other`, or READ `other` into `mine`."""
        work = SendWR(num_sge=1, sg=[SGE(mine.buf, BYTES, mine.lkey)], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        work.set_wr_rdma(other.rkey, addr)
        self.qp.post_send(work)
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            found, completions = self.cq.poll()
            if found:
                assert completions[0].status == e.IBV_WC_SUCCESS, completions[0].status
                return
            time.sleep(0.001)
        raise TimeoutError


def main(device: str, *options: str) -> None:
    """See the module."""
    loop = Loop(device)
    mine = loop.region(mapped())
    addr = mapped()
    ctypes.memset(addr, ord("1"), BYTES)
    key = loop.region(addr, odp="odp" in options)
    ctypes.memset(mine.buf, ord("2"), BYTES)
    loop.move(e.IBV_WR_RDMA_WRITE, mine, key, addr)
    first = ctypes.string_at(addr, BYTES)
    libc.munmap(addr, BYTES)
    assert mapped(addr) == addr
    ctypes.memset(addr, ord("3"), BYTES)
    loop.move(e.IBV_WR_RDMA_READ, mine, key, addr)
    shown = mine.read(BYTES, 0)
    ctypes.memset(mine.buf, ord("4"), BYTES)
    loop.move(e.IBV_WR_RDMA_WRITE, mine, key, addr)
    seen = ctypes.string_at(addr, BYTES)
    words = ["".join(sorted(map(chr, {*data}))) for data in (first, shown, seen)]
    print("written {}; mapped again, set to 3: the key shows {}; 4 written: the process sees {}".format(*words))


if __name__ == "__main__":
    main(*sys.argv[1:])
