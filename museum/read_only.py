"""A user without rights registers a file that it may only read, asks for more rights, and lets the card write to it."""

import os
import time

import pyverbs.enums as e
from pair import Memory, Pair
from pyverbs.pyverbs_error import PyverbsRDMAError

FILE = "/tmp/rules"
NOBODY = 65534

with open(FILE, "wb") as stream:
    stream.write(b"only root writes this".ljust(4096, b"\n"))
os.chmod(FILE, 0o644)
# As distributions have it.
os.chmod("/dev/infiniband/uverbs0", 0o666)
os.setgid(NOBODY)
os.setuid(NOBODY)
try:
    open(FILE, "r+b").close()
except PermissionError as error:
    print(f"user {os.getuid()} opens {FILE} for writing: {error.strerror}")

pair = Pair()
with open(FILE, "rb") as stream:
    rules, mine = Memory(file=stream), Memory()
mine.write(b"anybody writes this!".ljust(128))
try:
    pair.register(rules).close()
    print("registering it for writing: done")
except PyverbsRDMAError as error:
    print(f"registering it for writing: {os.strerror(abs(error.error_code))}")
region = pair.register(rules, e.IBV_ACCESS_REMOTE_READ)
try:
    region.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, access=e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_LOCAL_WRITE)
    print("registering it for reading, and then for writing: done")
    # More than fits into a completion, from where the library would copy it.
    print("reading into it:", pair.transfer(e.IBV_WR_RDMA_READ, rules, region, mine, pair.register(mine), 128))
except PyverbsRDMAError as error:
    print(f"registering it for reading, and then for writing: {os.strerror(abs(error.error_code))}")
time.sleep(0.2)
with open(FILE, "rb") as stream:
    print("the file says:", stream.read(20).decode())
