"""What a doorbell costs, trapped or found in shared memory: without a driver, a queue or an engine.

A doorbell is a store of the guest's to a BAR. It reaches the device as a message that nobody waits for (posted), as one
that the processor waits for (synchronous: so are all of a device one page of which is mapped), or not at all, into a
page that is mapped, where the device has to look for it. The device answers in memory that it shares with the guest:
with that of the same one, or with that of another guest, which rings back. In between, guests spin, as programs do that
poll. So three want to run in the second case, each waiting for the others; see what your host makes of that.

Columns: time from the store to the answer, median and mean; what a store of a burst takes of the guest's time; what the
device's process takes of a processor.

    python -m tests.bench.bench_doorbells [--repeats 5]

Assumes what guests need (`vhca doctor`) and a C compiler that links statically.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from vhca.chip.live_fabric import LiveFabric
from vhca.chip.rack_config import CardConfig
from vhca.lab import GuestConfig, Lab, aligned
from vhca.lab.guest import Guest
from vhca.pci import Bar, ConfigSpace, PcieCapability, PciFunction, Type0Header
from vhca.pci.function import Region, ResetReason
from vhca.vfio_user import Server
from vhca.vfio_user.loop import SelectLoop

VENDOR_ID = 0x1234
POSTED_ID = 0xBE11
"""A device without mapped pages: writes are posted."""
MAPPED_ID = 0xBE12
"""A device with one mapped page: writes to its other pages wait for the reply."""
BAR_BYTES = 1 << 16
TRAPPED = 0x0000
PAGE = 0x1000
BELL = PAGE + 0x800
ANSWER = PAGE + 0xC00
SECONDS = 0.5
# Until the guest that rings back is there.
START_S = 0.3
BURST = 5000
PR_SET_TIMERSLACK = 29
# Looks between two looks at the sockets.
LOOKS = 100


@dataclass(frozen=True)
class Way:
    """How a doorbell travels; `period_us` between two looks, None where messages come."""

    name: str
    device_id: int
    offset: int
    period_us: int | None = None


WAYS = (
    Way("message, posted", POSTED_ID, TRAPPED),
    Way("message, synchronous", MAPPED_ID, TRAPPED),
    Way("mapped, looked at every 100 us", MAPPED_ID, BELL, 100),
    Way("mapped, looked at every 25 us", MAPPED_ID, BELL, 25),
    Way("mapped, looked at all the time", MAPPED_ID, BELL, 0),
)


class Slot:
    """One guest's answer page, and the two devices that answer in it."""

    def __init__(self, folder: Path, index: int) -> None:
        self._fd = os.memfd_create("doorbells")
        os.ftruncate(self._fd, BAR_BYTES)
        self.memory = mmap.mmap(self._fd, BAR_BYTES)
        self.answers_to = self
        self._seen = 0
        # Loads and stores of one word.
        self.words = memoryview(self.memory).cast("Q")
        self.cards = [
            Card(f"{kind}{index}", folder, device_id, self)
            for kind, device_id in (("posted", POSTED_ID), ("mapped", MAPPED_ID))
        ]
        self.cards[1].function.regions[0] = Region(BAR_BYTES, mmap_fd=self._fd, mmap_areas=((PAGE, mmap.PAGESIZE),))

    def look(self) -> None:
        """Answer a doorbell in the mapped page."""
        value = self.words[BELL >> 3]
        if value != self._seen:
            self._seen = value
            self.answers_to.words[ANSWER >> 3] = value

    def read(self, offset: int, count: int) -> bytes:
        """See :class:`vhca.pci.function.BarHandler`."""
        return bytes(count)

    def write(self, offset: int, data: bytes) -> None:
        """See :class:`vhca.pci.function.BarHandler`: the doorbell's trapped register."""
        if offset == TRAPPED and len(data) == 8:
            self.answers_to.words[ANSWER >> 3] = int.from_bytes(data, "little")


class Card:
    """One PCI function in its slot; see :class:`vhca.lab.devices.Hca`."""

    node_guid = 0

    def __init__(self, name: str, folder: Path, device_id: int, slot: Slot) -> None:
        self.name = name
        self.socket_path = folder / f"{name}.sock"
        header = Type0Header(VENDOR_ID, device_id, VENDOR_ID, 1, 0xFF0000, bars={0: Bar(BAR_BYTES)})
        self.function = PciFunction(ConfigSpace(header, [PcieCapability()]), {0: slot}, self._reset)
        self.server = Server(self.socket_path, self.function)

    def _reset(self, reason: ResetReason) -> None:
        """It has no state."""

    def counters(self) -> dict[str, int]:
        """It counts nothing."""
        return {}

    def objects(self) -> dict[str, int]:
        """It has none."""
        return {}

    def trace_tail(self, lines: int = 100) -> list[str]:
        """It tells nothing."""
        return []


class Rack:
    """The devices of all guests, served by one thread; see :class:`vhca.lab.devices.RackLike`.

    :ivar period_us: between two looks at the mapped pages; None: nobody looks.
    """

    fabric: LiveFabric | None = None

    def __init__(self, cards: Sequence[CardConfig], folder: Path) -> None:
        self.slots = [Slot(folder, index) for index in range(len(cards) // 2)]
        self.hcas = [card for slot in self.slots for card in slot.cards]
        self.period_us: int | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        """See :class:`vhca.lab.devices.RackLike`."""
        self._loop = SelectLoop()
        for card in self.hcas:
            card.server.start(self._loop)
        self._thread.start()

    def stop(self) -> None:
        """See :class:`vhca.lab.devices.RackLike`."""
        self._stopping = True
        self._thread.join()
        for card in self.hcas:
            card.server.close()
        self._loop.close()

    def wait_active(self, timeout_s: float) -> None:
        """They have no ports."""

    def _serve(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        while not self._stopping:
            if self.period_us is None:
                self._loop.run_once(0.01)
                continue
            pause_s = self.period_us / 1e6
            for _ in range(LOOKS):
                if pause_s:
                    time.sleep(pause_s)
                for slot in self.slots:
                    slot.look()
            self._loop.run_once(0)


def register(guest: Guest, device_id: int, offset: int) -> str:
    """The register's place in the guest's file system; memory space of its device is switched on."""
    script = (
        f"for d in /sys/bus/pci/devices/*; do read -r i < $d/device; [ $i = {device_id:#x} ] || continue;"
        " read -r e < $d/enable; [ $e = 1 ] || echo 1 > $d/enable; echo $d/resource0; done"
    )
    return f"{guest.run(['sh', '-c', script], timeout_s=30, check=True).stdout.strip()}:{offset:#x}"


def measure(rack: Rack, guests: Sequence[Guest], way: Way) -> list[float]:
    """Median and mean of the answers and time of one store, in us, and the device's share of a processor in percent."""
    commands = [
        ["/tmp/ring", register(guest, way.device_id, way.offset), register(guest, MAPPED_ID, ANSWER)]
        for guest in guests
    ]
    slots = rack.slots[: len(guests)]
    for slot, other in zip(slots, reversed(slots), strict=True):
        slot.answers_to = other
    rack.period_us = way.period_us
    try:
        back = guests[1].popen(commands[1]) if len(guests) > 1 else None
        time.sleep(START_S)
        begin, used = time.monotonic(), time.process_time()
        done = guests[0].run([*commands[0], str(SECONDS), str(BURST)], timeout_s=120, check=True)
        share = (time.process_time() - used) / (time.monotonic() - begin) * 100
        if back is not None:
            back.wait(10)
    finally:
        rack.period_us = None
    return [*map(float, done.stdout.split()), share]


def main() -> int:
    """Measure all ways in turn, as often as asked, and print medians."""
    parser = argparse.ArgumentParser(description="What a doorbell costs, trapped or mapped.")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; medians count (default: %(default)s)")
    arguments = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        print("there is no C compiler (cc) on this machine", file=sys.stderr)
        return 125
    racks: list[Rack] = []

    def build(cards: Sequence[CardConfig], folder: Path) -> Rack:
        racks.append(Rack(cards, folder))
        return racks[-1]

    source = Path(__file__).with_name("ring_doorbells.c")
    with (
        tempfile.TemporaryDirectory(prefix="vhca-doorbells-") as folder,
        Lab(guests=2, hcas_per_guest=2, guest=GuestConfig(autoload=False), rack_factory=build) as lab,
    ):
        program = Path(folder) / "ring"
        subprocess.run([compiler, "-O2", "-static", "-o", program, source], check=True)
        for guest in lab.guests:
            guest.copy_in(program, "/tmp/ring")
            guest.run(["chmod", "755", "/tmp/ring"], timeout_s=30, check=True)
        results: dict[tuple[int, Way], list[list[float]]] = {}
        for _ in range(arguments.repeats):
            for count in (1, 2):
                for way in WAYS:
                    results.setdefault((count, way), []).append(measure(racks[0], lab.guests[:count], way))
    header = ("doorbell", "guests", "answered", "mean", "one of a burst", "device's CPU")
    rows = []
    for (count, way), figures in results.items():
        answered, average, store, share = (median(column) for column in zip(*figures, strict=True))
        rows.append(
            (way.name, str(count), f"{answered:.1f} us", f"{average:.1f} us", f"{store:.3f} us", f"{share:.0f} %")
        )
    print(f"{os.cpu_count()} processors; medians of {arguments.repeats}")
    print("\n".join(aligned(header, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
