"""B05: datagrams to one, to several, to a multicast group; how long they may be; what else UD refuses.

Side 1 sends from one queue pair. Membership of the group is asked of the subnet administrator by MAD, as any
program without IPoIB must.
"""

import ctypes
import fcntl
import ipaddress
import os
import select
import struct

from common import PORT, QKEY, Endpoint, Peer, arguments, e, error_of, tell
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute

GROUP = "ff12:0b05:fe80:0000:0000:0000:0000:5245"
GRH = 40
MULTICAST_QPN = 0xFFFFFF
PARTITION = 0xFFFF
REGISTER_AGENT, ENABLE_PKEY = 0xC01C1B01, 0x1B03
MCMEMBER_RECORD, SUBN_ADM, SET = 0x38, 3, 2
MGID, PORT_GID, QKEY_BIT, TCLASS, PKEY, SL, FLOW, JOIN = (1 << bit for bit in (0, 1, 2, 6, 7, 12, 13, 16))


def gid_bytes(text):
    """The 16 bytes of a GID."""
    return ipaddress.IPv6Address(text).packed


def join(port_gid):
    """Join the group as a full member, creating it if it is not there; its multicast LID."""
    with open("/sys/class/infiniband/mlx5_0/ports/1/sm_lid") as line:
        sm_lid = int(line.read(), 0)
    umad = os.open("/dev/infiniband/umad0", os.O_RDWR)
    fcntl.ioctl(umad, ENABLE_PKEY)
    request = bytearray(struct.pack("I16sBBB3sBx", 0, bytes(16), 1, SUBN_ADM, 2, bytes(3), 0))
    fcntl.ioctl(umad, REGISTER_AGENT, request)
    agent = struct.unpack_from("I", request)[0]
    head = struct.pack(">BBBBHHQHHI", 1, SUBN_ADM, 2, SET, 0, 0, 0xB05, MCMEMBER_RECORD, 0, 0)
    mask = MGID | PORT_GID | QKEY_BIT | TCLASS | PKEY | SL | FLOW | JOIN
    record = gid_bytes(GROUP) + gid_bytes(port_gid)
    record += struct.pack(">IHBBHBBIBBH", QKEY, 0, 0, 0, PARTITION, 0, 0, 0, 0x21, 0, 0)
    mad = head + bytes(12) + struct.pack(">QHHQ", 0, 0, 0, mask) + record
    address = struct.pack("=5I", agent, 0, 5000, 3, 0)
    address += struct.pack(">IIHBB4x16xI", 1, 0x80010000, sm_lid, 0, 0, 0) + bytes(8)
    os.write(umad, address + mad.ljust(256, b"\0"))
    if not select.select([umad], [], [], 20)[0]:
        raise SystemExit("the subnet administrator does not answer")
    answer = os.read(umad, 64 + 256)
    status = struct.unpack_from(">H", answer, 64 + 4)[0]
    if struct.unpack_from("I", answer, 4)[0] or status:
        raise SystemExit(f"the subnet administrator refuses to let us join: {status:#x}")
    return umad, struct.unpack_from(">H", answer, 64 + 56 + 36)[0]


def verbs_pointer(qp):
    """The `struct ibv_qp *` that a pyverbs object wraps: the one of its words that points at its number."""
    words = type(qp).__basicsize__ // 8
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for word in (ctypes.c_uint64 * words).from_address(id(qp)):
            try:
                memory.seek(word + 6 * 8)  # behind six pointers: handle, qp_num
                if struct.unpack("II", memory.read(8))[1] == qp.qp_num:
                    return word
            except (OSError, OverflowError, struct.error):
                continue
    raise RuntimeError("no pointer to the queue pair")


def membership(call, qp, mlid):
    """`ibv_attach_mcast` or `ibv_detach_mcast` of a queue pair; pyverbs has no call for it."""
    function = getattr(ctypes.CDLL("libibverbs.so.1"), call)
    if function(ctypes.c_void_p(verbs_pointer(qp)), gid_bytes(GROUP), ctypes.c_uint16(mlid)):
        raise SystemExit(f"{call} failed")


def ready(end):
    """RESET -> RTS."""
    end.to_init()
    end.to_rtr(None)
    end.to_rts()


def send(end, ah, qpn, text, wr_id=1):
    """Send bytes and wait for the completion's status."""
    end.memory.write(text)
    end.post_send(wr_id=wr_id, sges=[end.sge(len(text))], ah=(ah, qpn))
    return end.outcome()


def inbox(end, wait_s=1.0):
    """Messages that have come, without the GRH area."""
    return [end.memory.read(wc.byte_len - GRH, wc.wr_id + GRH).decode() for wc in end.poll(9, timeout_s=wait_s)]


def target():
    """Side 0: two queue pairs with 4 receives each, members of the group."""
    peer = Peer(arguments())
    ends = [Endpoint(qp_type=e.IBV_QPT_UD, size=65536)]
    ends.append(Endpoint(qp_type=e.IBV_QPT_UD, size=65536, ctx=ends[0].ctx, pd=ends[0].pd))
    umad, mlid = join(ends[0].card()["gid"])
    for end in ends:
        ready(end)
        for slot in range(4):
            end.post_recv(wr_id=8192 * slot, sges=[end.sge(8192, 8192 * slot)])
        membership("ibv_attach_mcast", end.qp, mlid)
    peer.swap(first=ends[0].card(), second=ends[1].card(), mlid=mlid)
    peer.meet()
    boxes = [[text if len(text) < 99 else len(text) for text in inbox(end)] for end in ends]
    for end in ends:
        membership("ibv_detach_mcast", end.qp, mlid)
    tell(boxes=boxes, mlid=mlid)
    os.close(umad)


def sender():
    """Side 1."""
    peer = Peer(arguments())
    end = Endpoint(qp_type=e.IBV_QPT_UD, size=65536)
    own = Endpoint(qp_type=e.IBV_QPT_UD, size=65536, ctx=end.ctx, pd=end.pd)
    for one in (end, own):
        ready(one)
    own.post_recv(wr_id=8192, sges=[own.sge(8192, 8192)])
    umad, mlid = join(end.card()["gid"])
    other = peer.swap(x=0)
    there = AH(end.pd, attr=AHAttr(dlid=other["first"]["lid"], port_num=PORT))
    here = AH(end.pd, attr=AHAttr(dlid=end.card()["lid"], port_num=PORT))
    group = AH(
        end.pd,
        attr=AHAttr(dlid=mlid, port_num=PORT, is_global=1, gr=GlobalRoute(dgid=GID(GROUP), sgid_index=0, hop_limit=1)),
    )
    first, second = other["first"]["qpn"], other["second"]["qpn"]
    outcomes = [
        send(end, there, first, b"to first"),
        send(end, there, second, b"to second"),
        send(end, here, own.qp.qp_num, b"to own"),
        send(end, group, MULTICAST_QPN, b"to all"),
    ]
    mtu = 128 << end.ctx.query_port(PORT).active_mtu
    longest = send(end, there, first, b"x" * mtu)
    too_long = send(end, there, first, b"y" * (mtu + 1))
    state = end.state()
    refused = {}
    for name in ("IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_READ"):
        end.to_state("RESET")
        ready(end)
        wr = end.send_wr(getattr(e, name), sges=[end.sge(8)])
        wr.set_wr_ud(there, first, QKEY)
        at_post = error_of(end.qp.post_send, wr)
        refused[name] = {"post": at_post, "completion": None if at_post else end.outcome(timeout_s=3)}
    peer.meet()
    tell(outcomes=outcomes, own=inbox(own), mtu=mtu, longest=longest, too_long=too_long, state=state, refused=refused)
    os.close(umad)


if arguments().peer.startswith("0"):
    target()
else:
    sender()
