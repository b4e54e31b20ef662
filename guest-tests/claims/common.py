"""What the scripts that run inside a guest share: an RDMA endpoint, its peer, and how to say what was seen.

A script observes; it does not judge. It ends by printing one JSON object (`tell`); the host compares that with
the claim. Two-sided scripts get `--peer SIDE:PORT` and exchange Python dicts over the management network.
"""

import argparse
import ctypes
import errno
import json
import mmap
import os
import select
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.libibverbs_enums import ibv_event_type, ibv_wc_opcode, ibv_wc_status
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE = os.environ.get("DEVICE", "mlx5_0")
PORT = 1
PSN = 0x1000
QKEY = 0x11111111
LINK_LAYER_ETHERNET = 2
ALL_ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
)
RIGHTS = {
    "local write": e.IBV_ACCESS_LOCAL_WRITE,
    "remote write": e.IBV_ACCESS_REMOTE_WRITE,
    "remote read": e.IBV_ACCESS_REMOTE_READ,
    "remote atomic": e.IBV_ACCESS_REMOTE_ATOMIC,
    "mw bind": e.IBV_ACCESS_MW_BIND,
}
STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
BUSY_S = 20.0


# ---- saying what was seen ----


def tell(**seen):
    """Print what was seen, as the script's last line."""
    print(json.dumps(seen, default=str), flush=True)


def say(*words):
    """Print a line for people; it becomes part of the evidence."""
    print(*words, flush=True)


def status_name(status):
    """`SUCCESS`, `REM_ACCESS_ERR`, ... for a completion status."""
    return ibv_wc_status(status).name.removeprefix("IBV_WC_")


def opcode_name(opcode):
    """`SEND`, `RECV`, `RECV_RDMA_WITH_IMM`, ... for a completion's opcode."""
    try:
        return ibv_wc_opcode(opcode).name.removeprefix("IBV_WC_")
    except ValueError:  # of a completion in error it need not be one
        return str(opcode)


def event_name(event_type):
    """`QP_LAST_WQE_REACHED`, `SRQ_LIMIT_REACHED`, ... for an asynchronous event's type."""
    return ibv_event_type(event_type).name.removeprefix("IBV_EVENT_")


def error_of(call, *args, **kwargs):
    """Call something that may be refused: None if it worked, else the name of its errno (`EINVAL`)."""
    try:
        call(*args, **kwargs)
    except PyverbsRDMAError as error:
        code = abs(error.error_code)
        return errno.errorcode.get(code, str(code))
    except PyverbsError as error:
        return str(error)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return None


# ---- the other side ----


def arguments(*more):
    """Parse the command line: `--peer`, and what `more` adds, as (name, keywords of add_argument) pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="")
    for name, keywords in more:
        parser.add_argument(name, **keywords)
    return parser.parse_args()


class Peer:
    """The script that runs in the other guest at the same time. Side 0 listens, side 1 calls."""

    def __init__(self, options):
        side, port = options.peer.split(":")
        self.side = int(side)
        if self.side == 0:
            listener = socket.create_server(("", int(port)))
            listener.settimeout(60)
            self._socket, _ = listener.accept()
            listener.close()
        else:
            self._socket = self._call("g0", int(port))
        self._socket.settimeout(60)
        self._lines = self._socket.makefile("rw")

    @staticmethod
    def _call(host, port):
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection((host, port), timeout=60)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def send(self, **what):
        """Give the other side something."""
        self._lines.write(json.dumps(what) + "\n")
        self._lines.flush()

    def receive(self):
        """What the other side gives next."""
        line = self._lines.readline()
        if not line:
            raise SystemExit("the other side has gone")
        return json.loads(line)

    def swap(self, **what):
        """Give and receive; both sides call it at the same place."""
        self.send(**what)
        return self.receive()

    def meet(self):
        """Wait until the other side is here too."""
        self.swap()


# ---- verbs ----


def open_device(name=None):
    """The device's context."""
    return Context(name=name or DEVICE)


class Memory:
    """A page-aligned buffer of this process that can be registered."""

    def __init__(self, size):
        self.size = size
        self._map = mmap.mmap(-1, max(size, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def address(self):
        """Where it is in this process."""
        return self._address

    def write(self, data, offset=0):
        """Put bytes into it."""
        self._map[offset : offset + len(data)] = data

    def read(self, count, offset=0):
        """Bytes of it."""
        return self._map[offset : offset + count]

    def advise(self, advice):
        """madvise over all of it."""
        self._map.madvise(advice)

    def register(self, pd, access=ALL_ACCESS):
        """A memory region over all of it."""
        return MR(pd, self.size, access, self.address)


class Endpoint:
    """Context, PD, CQ, memory and one QP.  Everything can be given from outside or replaced afterwards.

    `qp_type`: RC, UC or UD (`e.IBV_QPT_...`). `access`: rights of the region and of the QP.
    """

    def __init__(
        self,
        qp_type=e.IBV_QPT_RC,
        *,
        size=65536,
        access=ALL_ACCESS,
        qp_access=None,
        depth=64,
        sge=2,
        ctx=None,
        pd=None,
        cq=None,
        srq=None,
        inline=0,
        signal_all=False,
        channel=False,
        memory=True,
    ):
        self.qp_type = qp_type
        self.qp_access = access if qp_access is None else qp_access
        self.ctx = ctx or open_device()
        self.pd = pd or PD(self.ctx)
        self.channel = CompChannel(self.ctx) if channel else None
        self.cq = cq or CQ(self.ctx, 4 * depth, None, self.channel, 0)
        self.srq = srq
        self.memory = Memory(size) if memory else None
        self.mr = self.memory.register(self.pd, access) if memory else None
        self.cap = QPCap(
            max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline
        )
        self.signal_all = signal_all
        self.qp = self.new_qp()

    def new_qp(self):
        """Another QP like this endpoint's, in RESET."""
        init = QPInitAttr(
            qp_type=self.qp_type,
            scq=self.cq,
            rcq=self.cq,
            srq=self.srq,
            cap=self.cap,
            sq_sig_all=int(self.signal_all),
        )
        return QP(self.pd, init)

    # what the peer must know
    def card(self, **more):
        """How the peer finds this endpoint."""
        attr = self.ctx.query_port(PORT)
        found = {
            "qpn": self.qp.qp_num,
            "lid": attr.lid,
            "psn": PSN,
            "gid": str(self.ctx.query_gid(PORT, self.gid_index())),
        }
        if self.mr is not None:
            found.update(addr=self.memory.address, rkey=self.mr.rkey, size=self.memory.size)
        return {**found, **more}

    # the life of the QP
    def to_init(self, qp=None):
        """RESET -> INIT."""
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=PORT)
        mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
        attr.pkey_index = 0
        if self.qp_type == e.IBV_QPT_UD:
            attr.qkey = QKEY
            mask |= e.IBV_QP_QKEY
        else:
            attr.qp_access_flags = self.qp_access & ~(e.IBV_ACCESS_MW_BIND | e.IBV_ACCESS_ZERO_BASED)
            mask |= e.IBV_QP_ACCESS_FLAGS
        (qp or self.qp).modify(attr, mask)

    def to_rtr(self, other, qp=None, *, min_rnr_timer=1, max_dest_rd_atomic=8, mtu=e.IBV_MTU_1024):
        """INIT -> RTR, toward `other` (a peer's `card()`; unused for UD)."""
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        mask = e.IBV_QP_STATE
        if self.qp_type != e.IBV_QPT_UD:
            attr.path_mtu = mtu
            attr.dest_qp_num = other["qpn"]
            attr.rq_psn = other["psn"]
            attr.ah_attr = self.route(other)
            mask |= e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        if self.qp_type == e.IBV_QPT_RC:
            attr.max_dest_rd_atomic = max_dest_rd_atomic
            attr.min_rnr_timer = min_rnr_timer
            mask |= e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
        (qp or self.qp).modify(attr, mask)

    def route(self, other):
        """The address of a peer, for INIT -> RTR and for address handles: by LID, on Ethernet by GID."""
        if self.ctx.query_port(PORT).link_layer != LINK_LAYER_ETHERNET:
            return AHAttr(dlid=other["lid"], port_num=PORT)
        route = GlobalRoute(dgid=GID(other["gid"]), sgid_index=self.gid_index())
        return AHAttr(port_num=PORT, is_global=1, gr=route)

    def gid_index(self):
        """The GID to use: on Ethernet that of an IPv4 address, if there is one."""
        if self.ctx.query_port(PORT).link_layer != LINK_LAYER_ETHERNET:
            return 0
        return 1 if str(self.ctx.query_gid(PORT, 1)).replace(":", "").strip("0") else 0

    def to_rts(self, qp=None, *, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=8):
        """RTR -> RTS.  `timeout`: 4.096 us * 2**timeout, 0 never; `rnr_retry` 7: for ever."""
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn = PSN
        mask = e.IBV_QP_STATE | e.IBV_QP_SQ_PSN
        if self.qp_type == e.IBV_QPT_RC:
            attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = (
                timeout,
                retry_cnt,
                rnr_retry,
                max_rd_atomic,
            )
            mask |= e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
        (qp or self.qp).modify(attr, mask)

    def connect(self, other, qp=None, *, mtu=e.IBV_MTU_1024, min_rnr_timer=1, **rts):
        """RESET -> RTS.  For both sides of a connection: connect, then `peer.meet()` before the first post."""
        self.to_init(qp)
        self.to_rtr(other, qp, mtu=mtu, min_rnr_timer=min_rnr_timer)
        self.to_rts(qp, **rts)

    def to_state(self, state, qp=None):
        """Modify with the state alone (`RESET`, `ERR`, `SQD`, ...)."""
        (qp or self.qp).modify(QPAttr(qp_state=getattr(e, "IBV_QPS_" + state)), e.IBV_QP_STATE)

    def state(self, qp=None):
        """Name of the QP's state, as the driver answers a query."""
        attr, _ = (qp or self.qp).query(e.IBV_QP_STATE)
        return STATES[attr.qp_state] if attr.qp_state < len(STATES) else str(attr.qp_state)

    # work
    def sge(self, length=64, offset=0, lkey=None, address=None):
        """A scatter-gather entry over the endpoint's memory."""
        base = self.memory.address if address is None else address
        return SGE(base + offset, length, self.mr.lkey if lkey is None else lkey)

    def send_wr(self, opcode=e.IBV_WR_SEND, *, wr_id=1, sges=None, flags=e.IBV_SEND_SIGNALED, remote=None, imm=None):
        """A send work request; `remote` is (address, rkey) for WRITE, READ and atomics."""
        entries = [self.sge()] if sges is None else sges
        wr = SendWR(wr_id=wr_id, num_sge=len(entries), sg=entries, opcode=opcode, send_flags=flags)
        if imm is not None:
            wr.imm_data = imm
        if remote is not None:
            wr.set_wr_rdma(remote[1], remote[0])
        return wr

    def post_send(self, opcode=e.IBV_WR_SEND, *, qp=None, ah=None, **how):
        """Build a send work request as `send_wr` does, and post it."""
        wr = self.send_wr(opcode, **how)
        if ah is not None:
            wr.set_wr_ud(ah[0], ah[1], QKEY)
        (qp or self.qp).post_send(wr)

    def post_recv(self, *, wr_id=100, sges=None, qp=None):
        """Post a receive."""
        entries = [self.sge()] if sges is None else sges
        (qp or self.qp).post_recv(RecvWR(wr_id=wr_id, num_sge=len(entries), sg=entries))

    def poll(self, count=1, timeout_s=BUSY_S, cq=None):
        """Poll until `count` completions are there; fewer if the time is up."""
        found = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            number, wcs = (cq or self.cq).poll(count - len(found))
            found += wcs[:number]
            if number == 0 and time.monotonic() > deadline:
                break
        return found

    def outcome(self, timeout_s=BUSY_S, cq=None):
        """Name of the next completion's status, or `nothing`."""
        found = self.poll(1, timeout_s, cq)
        return status_name(found[0].status) if found else "nothing"


def describe(wc):
    """A completion as a dict: wr_id, status, opcode (meaningless unless SUCCESS), byte_len, qp_num, imm_data."""
    return {
        "wr_id": wc.wr_id,
        "status": status_name(wc.status),
        "opcode": opcode_name(wc.opcode),
        "byte_len": wc.byte_len,
        "qp_num": wc.qp_num,
        "imm_data": wc.imm_data,
        "flags": wc.wc_flags,
    }


def async_event(ctx, timeout_s=5.0):
    """The next asynchronous event's name, or None. It is acknowledged."""
    poller = select.poll()
    poller.register(_async_fd(), select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        return None
    event = ctx.get_async_event()
    name = event_name(event.event_type)
    event.ack()
    return name


def _async_fd():
    """The descriptor of the device's event file: the one open file of this process with that name."""
    for number in sorted(map(int, os.listdir("/proc/self/fd")), reverse=True):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[infinibandevent]":
                return number
        except OSError:
            continue
    raise RuntimeError("this process has no event file")


def pair(**how):
    """Two RC endpoints on one context, PD and CQ-each, connected with each other through the card."""
    first = Endpoint(**how)
    second = Endpoint(ctx=first.ctx, pd=first.pd, **how)
    connect_pair(first, second)
    return first, second


def connect_pair(first, second, **how):
    """Connect two endpoints of this process."""
    one, two = first.card(), second.card()
    first.connect(two, **how)
    second.connect(one, **how)


def fresh_connection(end, peer, **how):
    """A new QP in place of the endpoint's, connected with the peer's new one. Returns the peer's `card()`.

    Both sides call it at the same place.
    """
    end.qp.close()
    end.qp = end.new_qp()
    other = peer.swap(**end.card())
    end.connect(other, **how)
    peer.meet()
    return other


def vm_kib(field, pid="self"):
    """A figure of /proc/PID/status in KiB, such as VmPin."""
    with open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return -1


def page_of(address):
    """Where the page at a virtual address of this process is: `frame N`, `swapped out` or `nowhere`."""
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        entry = int.from_bytes(pagemap.read(8), sys.byteorder)
    if entry >> 63:
        return f"frame {entry & ((1 << 55) - 1)}"
    return "swapped out" if entry >> 62 & 1 else "nowhere"
