"""RDMA READs whose data the card writes into the completion: is what arrives what was there?"""

import os

# Completions of 128 bytes have room for 64 bytes of data.
os.environ["MLX5_CQE_SIZE"] = "128"

import pyverbs.enums as e
from pair import Memory, Pair

pair = Pair()
there, here = Memory(), Memory()
there.write(bytes(range(1, 129)))
regions = pair.register(here), pair.register(there)
wrong = 0
for count in (8, 32, 48, 64, 65, 128):
    here.write(bytes(128))
    status = pair.transfer(e.IBV_WR_RDMA_READ, here, regions[0], there, regions[1], count)
    got = here.read(count)
    right = got == there.read(count)
    wrong += not right
    print(f"READ of {count} bytes: {status}, {'right' if right else 'WRONG: it begins with ' + got[:8].hex(' ')}")
print(f"{wrong} of 6 wrong")
