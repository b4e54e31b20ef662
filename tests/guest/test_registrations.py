"""Memory that a process unmaps and maps anew while it is registered: what its key shows, on a card and on Soft-RoCE."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.cards import assert_no_complaint
from vhca.lab import Guest
from vhca.lab.perftest import wait_port_active

PROGRAM = Path(__file__).with_name("old_pages.py")
KEPT = "written 2; mapped again, set to 3: the key shows 2; 4 written: the process sees 3\n"
FOLLOWED = "written 2; mapped again, set to 3: the key shows 3; 4 written: the process sees 4\n"


@pytest.fixture
def prepared(guest: Guest) -> Iterator[Guest]:
    wait_port_active(guest)
    guest.copy_in(PROGRAM, "/tmp/old_pages.py")
    guest.run(["sh", "-ec", "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"], check=True)
    yield guest
    guest.run(["rdma", "link", "delete", "rxe0"], check=True)
    assert_no_complaint(guest)


@pytest.mark.parametrize(
    ("words", "said"), [("mlx5_0", KEPT), ("rxe0", KEPT), ("mlx5_0 odp", FOLLOWED)], ids=["card", "Soft-RoCE", "paging"]
)
def test_a_key_shows_the_pages_that_it_was_made_of(prepared: Guest, words: str, said: str) -> None:
    done = prepared.run(["python3", "/tmp/old_pages.py", *words.split()], timeout_s=60)
    assert (done.stdout, done.returncode) == (said, 0), done.stderr
