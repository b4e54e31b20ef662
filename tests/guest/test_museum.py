"""The museum: the exhibits that are shown quickly here, all of them by `make museum`.

Each boots guests of its own, a kernel that has the fault first.
"""

from __future__ import annotations

import os

import pytest

from acceptance.museum.exhibits import Exhibit, whole
from acceptance.museum.show import show
from vhca.lab import Guest

EVERYTHING = os.environ.get("VHCA_MUSEUM") == "all"
NOT_HERE = pytest.mark.skipif(not EVERYTHING, reason="boots two kernels for itself; `make museum` runs it")


@pytest.mark.timeout(400)
@pytest.mark.guest
@pytest.mark.parametrize(
    "exhibit",
    [pytest.param(each, id=f"{each.id}-{each.name}", marks=() if each.quick else NOT_HERE) for each in whole()[0]],
)
def test_an_exhibit_is_seen_as_described(exhibit: Exhibit, guest: Guest) -> None:
    """`guest` decides whether guests can run at all; the exhibit has its own."""
    told: list[str] = []
    well = show(exhibit, told.append)
    print("\n".join(told))
    assert well, "\n".join(told)


@pytest.mark.vhca(guests=1)
def test_counters_are_read_unharmed_as_long_as_none_was_refused(guest: Guest) -> None:
    done = guest.run(["sh", "-c", "cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/*"], timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert "Oops" not in guest.run(["dmesg"], check=True).stdout
