"""C03: memory that is not registered, and keys of regions that are no more. Side 0 has the memory, side 1 asks."""

from common import Endpoint, Memory, Peer, arguments, e, error_of, fresh_connection, say, status_name, tell

SIZE = 4096
CASES = ("registered", "never registered", "deregistered")

peer = Peer(arguments())
end = Endpoint(size=SIZE)
memory, never = Memory(SIZE), Memory(SIZE)
region = memory.register(end.pd)
lkey, rkey, spare = region.lkey, region.rkey, end.mr.rkey
local, remote = {}, {}


def attempt(sge, target):
    """One WRITE on a fresh connection: its status."""
    end.post_send(e.IBV_WR_RDMA_WRITE, sges=[sge], remote=target)
    wcs = end.poll()
    return status_name(wcs[0].status) if wcs else "nothing"


for case in CASES:
    if case == "deregistered":
        region.close()
    # the memory's key, if it ever had one; else a valid key of other memory: there is no other to try
    there = {
        "registered": (memory.address, rkey),
        "never registered": (never.address, spare),
        "deregistered": (memory.address, rkey),
    }[case]
    for kind, results in (("local", local), ("remote", remote)):
        other = fresh_connection(end, peer)
        target = peer.swap(there=there)["there"]
        if peer.side == 1:
            key = end.mr.lkey if case == "never registered" else lkey
            if kind == "local":
                sge = end.sge(64, lkey=key, address=there[0])
                results[case] = attempt(sge, (other["addr"], other["rkey"]))
            else:
                results[case] = attempt(end.sge(64), target)
            say(kind, case, results[case])
        peer.meet()
zero = Memory(SIZE)
fails = error_of(zero.register, end.pd, e.IBV_ACCESS_REMOTE_WRITE)
tell(local=local, remote=remote, remote_write_alone=fails)
