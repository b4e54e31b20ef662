"""C08: regions of another protection domain. Side 0 answers, side 1 asks."""

from common import PD, Endpoint, Memory, Peer, arguments, e, fresh_connection, say, status_name, tell

SIZE = 4096

peer = Peer(arguments())
end = Endpoint(size=SIZE)
foreign = PD(end.ctx)
memory = Memory(SIZE)
same, other_pd = memory.register(end.pd), memory.register(foreign)
results = {}
#: what is tried -> (region of side 1 for its SGE, region of side 0 that is asked for, opcode)
CASES = {
    "write, all in one PD": (same, "same", e.IBV_WR_RDMA_WRITE),
    "write from a region of another PD": (other_pd, "same", e.IBV_WR_RDMA_WRITE),
    "write to a region of another PD": (same, "other", e.IBV_WR_RDMA_WRITE),
    "read from a region of another PD": (same, "other", e.IBV_WR_RDMA_READ),
    "send into a receive of another PD": (same, "receive", e.IBV_WR_SEND),
}
for case, (region, asked, opcode) in CASES.items():
    fresh_connection(end, peer)
    if asked == "receive" and peer.side == 0:
        end.post_recv(sges=[end.sge(64, lkey=other_pd.lkey, address=memory.address)])
    keys = peer.swap(same=same.rkey, other=other_pd.rkey, address=memory.address)
    if peer.side == 1:
        remote = None if asked == "receive" else (keys["address"], keys[asked])
        end.post_send(opcode, sges=[end.sge(64, lkey=region.lkey, address=memory.address)], remote=remote)
        wcs = end.poll()
        results[case] = status_name(wcs[0].status) if wcs else "nothing"
        say(case, results[case])
    elif asked == "receive":
        wcs = end.poll()
        results[case] = status_name(wcs[0].status) if wcs else "nothing"
    peer.meet()
tell(results=results, state=end.state())
