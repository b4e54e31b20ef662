"""C07: memory windows of type 1 and type 2. Side 0 has region and window, side 1 writes through the window."""

from common import (
    Endpoint,
    Memory,
    Peer,
    SendWR,
    arguments,
    describe,
    e,
    error_of,
    fresh_connection,
    say,
    status_name,
    tell,
)
from pyverbs.mr import MW, MWBind, MWBindInfo

SIZE = 4096
HALF = SIZE // 2
TYPES = {"1": e.IBV_MW_TYPE_1, "2": e.IBV_MW_TYPE_2}

peer = Peer(arguments())
end = Endpoint(size=SIZE)
#: The region gives no remote right by itself: what comes in comes through the window.
memory = Memory(SIZE)
region = memory.register(end.pd, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)


def bind(window, kind, length):
    """Bind (length 0: unbind) by a work request; returns its completion and the window's rkey after it."""
    info = MWBindInfo(region, memory.address, length, e.IBV_ACCESS_REMOTE_WRITE)
    if kind == "1":
        end.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED))
        return describe(end.poll()[0]), window.rkey
    wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_bind_wr(window, info)
    end.qp.post_send(wr)
    return describe(end.poll()[0]), wr.rkey


def unbind(window, kind, rkey):
    """Type 1 is unbound by binding it to nothing, type 2 by invalidating its key."""
    if kind == "1":
        return bind(window, kind, 0)[0]
    wr = SendWR(opcode=e.IBV_WR_LOCAL_INV, send_flags=e.IBV_SEND_SIGNALED)
    wr.imm_data = rkey
    end.qp.post_send(wr)
    return describe(end.poll()[0])


def write(offset, rkey, address):
    """A WRITE of 64 bytes by side 1: its status."""
    end.memory.write(b"W" * 64)
    end.post_send(e.IBV_WR_RDMA_WRITE, remote=(address + offset, rkey))
    wcs = end.poll()
    return status_name(wcs[0].status) if wcs else "nothing"


def owner(kind):
    """Side 0: bind, let the peer write, unbind, let it write again."""
    fresh_connection(end, peer)
    window = MW(end.pd, TYPES[kind])
    first = window.rkey
    bound, rkey = bind(window, kind, HALF)
    seen = {"rkey before": first, "rkey": rkey, "region's rkey": region.rkey, "bind": bound}
    peer.swap(rkey=rkey, address=memory.address)  # 1: inside the window
    peer.meet()
    seen["arrived"] = memory.read(64) == b"W" * 64
    peer.meet()  # 2: beyond the window
    fresh_connection(end, peer)
    if kind == "2":  # of one connection: a window of type 2 cannot outlive it
        window.close()
        window = MW(end.pd, TYPES[kind])
    again, rkey = bind(window, kind, HALF)
    seen["second bind"], seen["second rkey"] = again, rkey
    peer.swap(rkey=rkey, address=memory.address)
    peer.meet()  # 3: inside, by the new key
    seen["unbind"] = unbind(window, kind, rkey)
    peer.meet()
    peer.meet()  # 4: inside, by the key that is no more
    fresh_connection(end, peer)
    end.post_send(sges=[end.sge(64, lkey=region.lkey, address=memory.address)])
    seen["region afterwards"] = status_name(end.poll()[0].status)
    peer.meet()
    seen["close"] = error_of(window.close)
    return seen


def writer():
    """Side 1."""
    fresh_connection(end, peer)
    other = peer.swap()
    seen = {"inside": write(0, other["rkey"], other["address"])}
    peer.meet()
    seen["beyond"] = write(HALF - 32, other["rkey"], other["address"])
    peer.meet()
    fresh_connection(end, peer)
    other = peer.swap()
    seen["inside again"] = write(0, other["rkey"], other["address"])
    peer.meet()
    peer.meet()
    seen["after unbind"] = write(0, other["rkey"], other["address"])
    peer.meet()
    fresh_connection(end, peer)
    end.post_recv()
    end.poll()
    peer.meet()
    return seen


results = {}
for name in TYPES:
    results[name] = owner(name) if peer.side == 0 else writer()
    say("type", name, results[name])
tell(results=results)
