"""Pages of a guest's memory that the host cannot provide: errors for that guest, in a process that lives on.

In a process of its own each: what goes wrong here would end it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from firmware.native.library import loaded

pytestmark = pytest.mark.skipif(not loaded().there, reason=f"nothing in C: {loaded().reason}")

BEGIN = """
import logging, os, threading
from vhca.hw.memory import DmaError
from vhca.vfio_user import files
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.proto import DmaFlags

# What the log says is not looked at.
logging.disable()
# As if it could not shrink: what a host without memory does to a file that cannot.
files._sealed = lambda fd: True
SIZE = 1 << 20

def shared(table, address):
    fd = os.memfd_create("guest", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    assert table.map(address, SIZE, 0, DmaFlags.READ | DmaFlags.WRITE, fd) == "mapped"
    return fd

def refused(access, *arguments):
    try:
        access(*arguments)
    except DmaError:
        return True
    return False
"""


def play(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_a_load_and_a_store_are_errors() -> None:
    done = play("""
table, other = DmaTable(), DmaTable()
fd, intact = shared(table, 0), shared(table, SIZE)
shared(other, 0)
table.write(0, b"first")
before = table.generation
os.ftruncate(fd, 4096)
assert refused(table.read, 8192, 16)
assert refused(table.read, 0, 5), "what was lost stays lost"
assert refused(table.write, 0, b"x")
assert table.generation != before and len(table.spans()) == 1
table.write(SIZE, b"intact")
assert table.read(SIZE, 6) == b"intact"
other.write(8192, b"other")
assert other.read(8192, 5) == b"other"
table.unmap(0, SIZE)
assert refused(table.read, 0, 5)
fd = shared(table, 0)
table.write(8192, b"anew")
assert table.read(8192, 4) == b"anew"
assert refused(table.write, SIZE - 3, b"across") is False
os.ftruncate(intact, 0)
assert refused(table.write, SIZE - 3, b"across")
table.unmap_all()
other.unmap_all()
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_store_at_once_live_on() -> None:
    done = play("""
tables = [DmaTable() for _ in range(4)]
fds = [shared(table, 0) for table in tables]
results = []

def work(table):
    results.append([refused(table.write, page << 12, b"x" * 4096) for page in range(256)])

threads = [threading.Thread(target=work, args=(table,)) for table in tables]
for fd in fds:
    os.ftruncate(fd, 0)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [[True] * 256] * 4, results
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bus_error_elsewhere_still_ends_the_process() -> None:
    done = play("""
import ctypes, mmap
table = DmaTable()
shared(table, 0)
fd = os.memfd_create("mine")
os.ftruncate(fd, 4096)
mine = mmap.mmap(fd, 4096)
os.ftruncate(fd, 0)
mine[0]
""")
    assert done.returncode == -7


def test_what_is_stored_into_a_hole_is_seen_by_nobody_else() -> None:
    done = play("""
tables = [DmaTable() for _ in range(2)]
fds = [shared(table, 0) for table in tables]
held = [table.view(0, SIZE, writable=True) for table in tables]
for fd in fds:
    os.ftruncate(fd, 0)
held[0][100:106] = b"secret"
assert bytes(held[1][100:106]) == bytes(6)
held[0].release()
tables[0].unmap_all()
fd = shared(tables[0], 0)
view = tables[0].view(0, SIZE)
os.ftruncate(fd, 0)
assert bytes(view[100:106]) == bytes(6)
""")
    assert (done.returncode, done.stderr) == (0, "")


TRAINS = """
import tests.scenario.card as stage
from firmware.model.counters import Count
from tests.scenario.world import pair
from vhca.hw.memory import FlatMemory

class Guest(FlatMemory):
    faults_at = 0

    def __init__(self, size, base):
        self.base, self.size = base, size
        self.table = DmaTable()
        self.fd = os.memfd_create("guest", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.table.map(base, size, 0, DmaFlags.READ | DmaFlags.WRITE, self.fd)
        self.data = bytearray(0)
        self.read, self.spans = self.table.read, self.table.spans
        self.faults_at = self.table.faults_at
        self.refused = 0

    def write(self, addr, data):
        # As the board, which counts what an effect could not do.
        self.refused += refused(self.table.write, addr, data)

    @property
    def generation(self):
        return self.table.generation

stage.LazyMemory = Guest
stage.Card.alloc = lambda self, size, align=4096: alloc(self, size, align)

def alloc(card, size, align):
    card._free = -(-card._free // align) * align + size
    return card._free - size

world, a, b = pair()
world.lay_rails()

def trains():
    return a.card.hca.count[Count.TRAIN_MESSAGES]
"""


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_train_into_a_hole_ends_in_an_error_of_the_connection(side: str, kind: str) -> None:
    done = play(
        TRAINS
        + f"""
mine, theirs = a.buffer(1 << 20), b.buffer(1 << 20)
a.{kind}(mine, 64, theirs, b.card.key)
world.settle()
assert trains() == 1 and [c.good for c in a.send_cq.poll()] == [True]
hole = {side}
os.ftruncate(hole.card.memory.fd, (mine if hole is a else theirs) - 0x100000)
a.{kind}(mine, 1 << 20, theirs, b.card.key)
world.settle()
world.pass_time(3_000_000_000)
assert trains() == 1
# A peer's WRITE that the host refuses is nothing that the peer learns.
assert hole.card.memory.refused if hole is b and "{kind}" == "write" else 6 in (a.qp.state, b.qp.state)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
