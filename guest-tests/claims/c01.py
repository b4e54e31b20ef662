"""C01: what registration does to pages. Side 0 has the memory, side 1 writes into it.

Side 0 leaves what it has in /tmp/c01.json while it is there, and goes on when /tmp/c01.go appears. Needs swap
space, for there must be somewhere that pages could go.
"""

import json
import os
import time

from common import Endpoint, Memory, Peer, arguments, e, page_of, say, status_name, tell, vm_kib

MADV_PAGEOUT = 21
SIZE = 1 << 20
PATTERN = b"written by the other card"


def pages(memory):
    return [page_of(memory.address + offset) for offset in range(0, SIZE, 4096)]


def press(memory):
    """Ask the kernel to page the memory out, until it does not change any more."""
    for _ in range(3):
        memory.advise(MADV_PAGEOUT)
        time.sleep(0.2)


peer = Peer(arguments())
end = Endpoint(size=4096)
if peer.side == 1:
    other = peer.receive()
    peer.send(**end.card())
    end.connect(other)
    peer.meet()
    end.memory.write(PATTERN)
    end.post_send(e.IBV_WR_RDMA_WRITE, sges=[end.sge(len(PATTERN))], remote=(other["target"], other["target_rkey"]))
    status = status_name(end.poll()[0].status)
    peer.meet()
    peer.meet()
    tell(write=status)
else:
    registered, plain = Memory(SIZE), Memory(SIZE)
    for memory in (registered, plain):
        memory.write(b"x" * SIZE)
    before = vm_kib("VmPin")
    region = registered.register(end.pd)
    pinned = vm_kib("VmPin")
    frames = pages(registered)
    press(registered)
    press(plain)
    registered.read(SIZE)  # a page that was only taken out of the map is back in its frame then
    after = pages(registered)
    stays = sum(old == new for old, new in zip(frames, after, strict=True))
    out = sum("frame" not in page for page in pages(plain))
    say("first page of the region:", frames[0], "under pressure:", after[0])
    say("first page of the plain memory under pressure:", page_of(plain.address))
    peer.send(**end.card(target=registered.address, target_rkey=region.rkey))
    end.connect(peer.receive())
    peer.meet()
    peer.meet()
    with open("/tmp/c01.tmp", "w") as file:
        json.dump({"page": page_of(registered.address)}, file)
    os.rename("/tmp/c01.tmp", "/tmp/c01.json")
    for _ in range(600):
        if os.path.exists("/tmp/c01.go"):
            break
        time.sleep(0.1)
    arrived = registered.read(len(PATTERN)).decode()
    region.close()
    released = vm_kib("VmPin")
    press(registered)
    peer.meet()
    tell(
        before=before,
        pinned=pinned,
        released=released,
        pages=len(frames),
        stays=stays,
        plain_out=out,
        out_afterwards=sum("frame" not in page for page in pages(registered)),
        arrived=arrived,
    )
