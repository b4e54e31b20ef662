"""IP addresses of both guests on their cards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from acceptance.claims.bench import Bench

ADDRESSES: Final = ("10.9.0.1", "10.9.0.2")
"""Of g0 and g1."""


def bring_up(bench: Bench) -> None:
    """Give both guests their address; they reach each other."""
    for guest, address in enumerate(ADDRESSES):
        bench.run(
            f"modprobe ib_ipoib && ip link set ib0 up && ip addr replace {address}/24 dev ib0", guest=guest, quiet=True
        )
        bench.wait_for("ip link show ib0 | grep -q LOWER_UP", guest=guest)
    bench.wait_for(f"ping -c 1 -W 1 {ADDRESSES[0]} >/dev/null", guest=1)


@contextlib.contextmanager
def ip_over_ib(bench: Bench) -> Iterator[tuple[str, str]]:
    """The addresses of g0 and g1, which they have while the body runs."""
    bring_up(bench)
    try:
        yield ADDRESSES
    finally:
        for guest in range(len(ADDRESSES)):
            bench.run("rmmod ib_ipoib", guest=guest, check=False, quiet=True)
