"""Two connected RC queue pairs of one process, for the exhibits' programs."""

import ctypes
import mmap

import pyverbs.enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.libibverbs_enums import ibv_wc_status
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ALL = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Memory:
    """Pages of this process, or of a file that may only be read."""

    def __init__(self, size=mmap.PAGESIZE, file=None):
        if file is None:
            self._map = mmap.mmap(-1, size)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        else:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            self.address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        self.size = size

    def write(self, data):
        """Put bytes at its beginning."""
        ctypes.memmove(self.address, data, len(data))

    def read(self, count):
        """Bytes of its beginning."""
        return ctypes.string_at(self.address, count)


class Pair:
    """The queue pairs, and what they are made of."""

    def __init__(self):
        self.context = Context(name="mlx5_0")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.ends = [QP(self.pd, init), QP(self.pd, init)]
        lid = self.context.query_port(1).lid
        for end, other in (self.ends, self.ends[::-1]):
            attr = QPAttr(port_num=1)
            attr.qp_access_flags = ALL
            attr.path_mtu = e.IBV_MTU_1024
            attr.dest_qp_num = other.qp_num
            attr.ah_attr = AHAttr(dlid=lid, port_num=1)
            attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
            attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, 14, 7, 7
            end.to_rts(attr)

    def register(self, memory, access=ALL):
        """A memory region over all of it."""
        return MR(self.pd, memory.size, access, memory.address)

    def transfer(self, opcode, into, mr, remote, remote_mr, count):
        """A READ or WRITE of the first bytes; the name of its status."""
        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(into.address, count, mr.lkey)])
        request.set_wr_rdma(remote_mr.rkey, remote.address)
        self.ends[0].post_send(request)
        while True:
            done, completions = self.cq.poll(1)
            if done:
                return ibv_wc_status(completions[0].status).name.removeprefix("IBV_WC_")
