"""C04: registers and deregisters regions of several sizes, so that the host can watch the kernel do it."""

import os

from common import PD, Memory, open_device, tell

ctx = open_device()
pd = PD(ctx)
sizes = [4096, 1 << 20, 16 << 20]
for size in sizes:
    memory = Memory(size)
    region = memory.register(pd)
    region.close()
tell(pid=os.getpid(), sizes=sizes)
