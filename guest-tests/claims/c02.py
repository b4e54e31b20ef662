"""C02: keys and rights of a region. Side 0 has the regions, side 1 asks; each case has a connection of its own."""

from common import (
    ALL_ACCESS,
    Endpoint,
    Memory,
    Peer,
    arguments,
    async_event,
    e,
    fresh_connection,
    say,
    status_name,
    tell,
)

LOCAL = e.IBV_ACCESS_LOCAL_WRITE
#: case -> (opcode, region of side 0, change of the rkey, bytes beyond the region's end, wrong lkey)
CASES = {
    "write": (e.IBV_WR_RDMA_WRITE, "all", 0, 0, False),
    "read": (e.IBV_WR_RDMA_READ, "all", 0, 0, False),
    "write, wrong rkey": (e.IBV_WR_RDMA_WRITE, "all", 0x5500, 0, False),
    "read, wrong rkey": (e.IBV_WR_RDMA_READ, "all", 0x5500, 0, False),
    "write without the right": (e.IBV_WR_RDMA_WRITE, "readable", 0, 0, False),
    "read without the right": (e.IBV_WR_RDMA_READ, "writable", 0, 0, False),
    "write beyond the end": (e.IBV_WR_RDMA_WRITE, "all", 0, 1, False),
    "write, wrong lkey": (e.IBV_WR_RDMA_WRITE, "all", 0, 0, True),
    "read, wrong lkey": (e.IBV_WR_RDMA_READ, "all", 0, 0, True),
}
RIGHTS = {
    "all": ALL_ACCESS,
    "readable": LOCAL | e.IBV_ACCESS_REMOTE_READ,
    "writable": LOCAL | e.IBV_ACCESS_REMOTE_WRITE,
}
SIZE = 4096

peer = Peer(arguments())
end = Endpoint(size=SIZE)
regions = {}
if peer.side == 0:
    for name, rights in RIGHTS.items():
        memory = Memory(SIZE)
        regions[name] = (memory, memory.register(end.pd, rights))
    known = {name: (memory.address, region.rkey) for name, (memory, region) in regions.items()}
    peer.send(regions=known)
else:
    known = peer.receive()["regions"]

results = {}
for case, (opcode, name, change, beyond, wrong_lkey) in CASES.items():
    fresh_connection(end, peer)
    event = None
    if peer.side == 1:
        address, rkey = known[name]
        sge = end.sge(64, lkey=end.mr.lkey ^ 0x5500 if wrong_lkey else None)
        end.post_send(opcode, sges=[sge], remote=(address + (SIZE - 63 if beyond else 0), rkey ^ change))
        wcs = end.poll()
        outcome = status_name(wcs[0].status) if wcs else "nothing"
        other = peer.swap(outcome=outcome)
        results[case] = {"status": outcome, "requester": end.state(), "responder": other["state"]}
        say(case, results[case], "event at the responder:", other["event"])
    else:
        outcome = peer.receive()["outcome"]
        event = async_event(end.ctx, 1.0) if "ACCESS" in outcome or "INV" in outcome else None
        peer.send(state=end.state(), event=event)
        results[case] = {"event": event}
peer.meet()
first = regions["all"][1] if regions else end.mr
known = {"lkey": first.lkey, "rkey": first.rkey, "iova": known["all"][0], "length": SIZE}
first.close()
tell(results=results, region=known)
