"""UCX's own performance test between two guests: its defaults and each transport, by polling and asleep.

`VHCA_UCX=all` runs all operations in all sizes (`make ucx`); without it there is one run of a kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.guest.cards import assert_no_complaint, moved
from vhca.lab import Guest, Lab
from vhca.lab.agent_process import Process
from vhca.lab.perftest import wait_port_active

pytestmark = pytest.mark.vhca(guests=2, extra_packages=("ucx",))

# What UCX_TLS is set to; the first row are UCX's defaults.
TRANSPORTS = ("", "rc_x", "dc_x", "ud_x", "rc_v", "ud_v")
DATAGRAM = ("ud_x", "ud_v")
EVERYTHING = os.environ.get("VHCA_UCX") == "all"
TIMEOUT_S = 600.0 if EVERYTHING else 90.0
SIZES = (8, 256, 4 << 10, 64 << 10, 1 << 20)
BATCH = "/tmp/ucx-batch"
# Counters of a card that must not move.
TROUBLE = ("sq_doorbell_unknown", "cq_doorbell_unknown", "eq_overrun", "cq_errors")


@dataclass(frozen=True)
class Row:
    """One run: UCX's name of the operation, bytes of a message, how many."""

    operation: str
    size: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.operation.removeprefix('ucp_')}-{self.size}"

    @property
    def one_sided(self) -> bool:
        """Does the card change the target's memory without a sign to the target's program?"""
        return self.operation.startswith(("ucp_put", "ucp_get"))


SHORT = (
    Row("tag_lat", 8, 50),
    Row("tag_bw", 1 << 20, 10),
    Row("ucp_am_lat", 8, 50),
    Row("ucp_am_bw", 64 << 10, 20),
    Row("ucp_fadd", 8, 30),
    Row("ucp_cswap", 8, 30),
    Row("ucp_put_lat", 8, 50),
    Row("ucp_put_bw", 1 << 20, 10),
    Row("ucp_get", 64 << 10, 20),
)
OPERATIONS = (
    "tag_lat",
    "tag_bw",
    "ucp_am_lat",
    "ucp_am_bw",
    "stream_lat",
    "stream_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
)
ATOMICS = ("ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap")
ALL = (
    *(Row(operation, size, 20 if size >= 64 << 10 else 50) for operation in OPERATIONS for size in SIZES),
    *(Row(operation, 8, 50) for operation in ATOMICS),
)


@pytest.fixture
def ends(guest_pair: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    for guest in guest_pair:
        wait_port_active(guest)
    yield guest_pair
    assert_no_complaint(*guest_pair)


def programs_objects(hca: Any) -> dict[str, int]:
    """Of what programs alone make, what there is."""
    return {kind: count for kind, count in hca.objects().items() if kind in ("dct", "uctx", "umem")}


def start(guest: Guest, settings: dict[str, str], *arguments: str) -> Process:
    # Without a terminal, Debian's waits for two processes of MPI.
    return guest.popen(["ucx_perftest", *arguments], env=settings, tty=(50, 200))


def perftest(server: Guest, client: Guest, transport: str, rows: tuple[Row, ...], asleep: bool) -> dict[str, list[str]]:
    """Play `rows` in one process of each side; the figures of each row by its name."""
    batch = "".join(f"{row.name} -t {row.operation} -s {row.size} -n {row.count} -w 2\n" for row in rows)
    for guest in (server, client):
        guest.run(["tee", BATCH], stdin=batch, check=True)
    settings = {"UCX_TLS": transport} if transport else {}
    options = ("-b", BATCH, "-f", "-v", "-E", "sleep" if asleep else "poll")
    listening = start(server, settings, *options)
    heard = b""
    while b"Waiting for connection" not in heard:
        heard += listening.stdout.read(30) or pytest.fail(f"the server ended: {heard!r}")
    asking = start(client, settings, server.name, *options)
    status = asking.wait(TIMEOUT_S)
    printed = asking.stdout.read_all().decode()
    assert status == 0, printed
    assert listening.wait(30) == 0
    table = [line.split(",") for line in printed.splitlines()]
    return {fields[0]: fields[1:] for fields in table if len(fields) == 9 and fields[1].strip().isdigit()}


@pytest.mark.parametrize("asleep", [False, True], ids=["polling", "asleep"])
@pytest.mark.parametrize("transport", TRANSPORTS, ids=[name or "default" for name in TRANSPORTS])
def test_ucx(
    lab: Lab, ends: tuple[Guest, Guest], transport: str, asleep: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ALL if EVERYTHING else SHORT
    if asleep and transport not in DATAGRAM:
        # The target's side of these runs sleeps until its memory has changed, of which a connection gives no sign:
        # nothing would ever wake it.
        rows = tuple(row for row in rows if not row.one_sided)
    before = [programs_objects(card) for card in lab.hcas]
    with moved(lab.hcas[0]) as first, moved(lab.hcas[1]) as second:
        figures = perftest(*ends, transport, rows, asleep)
    assert [programs_objects(card) for card in lab.hcas] == before
    assert list(figures) == [row.name for row in rows]
    for row in rows:
        assert int(figures[row.name][0]) == row.count
    for card in (first, second):
        assert not [name for name in card if card[name] and (name in TROUBLE or "_errors_" in name)]
        assert card["sq_doorbells"] > 0
    with capsys.disabled():
        print(f"\nUCX {transport or 'default':8} {'asleep' if asleep else 'polling':8}", end="")
        for row in rows:
            median_us, mb_per_s = float(figures[row.name][1]), float(figures[row.name][5])
            print(
                f" {row.name} {f'{mb_per_s:.0f} MB/s' if row.operation.endswith('bw') else f'{median_us:.0f} us'}",
                end="",
            )
