"""What the guest tests ask of cards: counters as differences, an empty ledger, kernel logs without complaint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from vhca.lab import Guest, Hca, kernel_log_trouble
from vhca.lab.perftest import DEVICE, wait_port_active

PORT = f"/sys/class/infiniband/{DEVICE}/ports/1"


class Moved(dict[str, int]):
    """By how much each counter moved; 0 for one that did not."""

    def __missing__(self, key: str) -> int:
        return 0


@contextlib.contextmanager
def moved(hca: Hca) -> Iterator[Moved]:
    """The counters of a card that the body moves; filled in at its end."""
    before = hca.counters()
    result = Moved()
    yield result
    result.update({name: value - before.get(name, 0) for name, value in hca.counters().items()})


def sysfs(guest: Guest, name: str) -> int:
    """One of the port's counters as the guest's kernel shows it."""
    return int(guest.run(["cat", f"{PORT}/{name}"], check=True).stdout)


def live_objects(hca: Hca) -> dict[str, int]:
    """What the driver has made and not destroyed, by kind."""
    return {kind: count for kind, count in hca.objects().items() if count}


def settled_objects(hca: Hca) -> dict[str, int]:
    """:func:`live_objects` without memory keys, of which the driver makes a stock in its own time."""
    return {kind: count for kind, count in live_objects(hca).items() if kind != "mkey"}


def unload(guest: Guest) -> None:
    """Unload the driver of the card."""
    guest.run(["rmmod", "mlx5_ib", "mlx5_core"], timeout_s=120, check=True)


def load(guest: Guest) -> None:
    """Load the driver of the card and wait for the port."""
    guest.run(["modprobe", "mlx5_ib"], timeout_s=120, check=True)
    wait_port_active(guest)


def assert_no_complaint(*guests: Guest) -> None:
    """The kernels have nothing to complain of."""
    for guest in guests:
        assert kernel_log_trouble(guest.run(["dmesg"], check=True).stdout) == [], guest.name


def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
    """Wait until `condition()` is true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true in time"
        time.sleep(0.05)
