"""Orders to running guests, given as a user gives them: by the `vhca` command, from another process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.guest.cards import PORT, moved
from vhca.cli.running import example
from vhca.lab import Guest, Lab
from vhca.lab.perftest import perftest, run_exchange, wait_port_active

VHCA = (sys.executable, "-m", "vhca.cli.main")
_ports = iter(range(22500, 22999))


def vhca(*words: str) -> str:
    done = subprocess.run([*VHCA, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def of(lab: Lab) -> tuple[str, str]:
    """The words that name a lab's rack, among those of other tests."""
    return "--rack", str(lab.hcas[0].socket_path.parent)


@pytest.fixture
def _repaired(lab: Lab, guest_pair: tuple[Guest, Guest]) -> Iterator[None]:
    for guest in guest_pair:
        wait_port_active(guest)
    yield
    lab.fabric.clear_faults("h1")
    lab.fabric.link_up("h1")


def wait_for_state(guest: Guest, state: str) -> None:
    deadline = time.monotonic() + 30
    while (seen := guest.run(["cat", f"{PORT}/state"], check=True).stdout.strip()) != state:
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


@pytest.mark.usefixtures("_repaired")
def test_a_cable_is_pulled_and_plugged_under_a_guest(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    other, guest = guest_pair
    vhca("fabric", "link", "down", "h1", *of(lab))
    wait_for_state(guest, "1: DOWN")
    wait_for_state(other, "4: ACTIVE")
    (here, there) = json.loads(vhca("fabric", "show", "--json", *of(lab)))["ports"][:2]
    assert (here["state"], there["state"], there["plugged"]) == ("Active", "Down", False)
    vhca("fabric", "link", "up", "h1", *of(lab))
    wait_for_state(guest, "4: ACTIVE")


@pytest.mark.usefixtures("_repaired")
def test_the_third_write_is_dropped_counted_and_sent_again(lab: Lab, guest_pair: tuple[Guest, Guest]) -> None:
    def dropped() -> int:
        counters: dict[str, int] = json.loads(vhca("fabric", "counters", "h1", "--json", *of(lab)))
        return counters.get("h1.dropped.cable_fault", 0)

    before = dropped()
    vhca("fault", "h1", "drop", "--opcode", "RDMA_WRITE", "--nth", "3", *of(lab))
    exchange = perftest("ib_write_bw", 10000, 20)
    with moved(lab.hcas[1]) as card:
        ends = run_exchange(*guest_pair, exchange, next(_ports))
    assert [end.returncode for end in ends] == [0, 0], ends
    rules: list[dict[str, Any]] = json.loads(vhca("fault", "list", "h1", "--json", *of(lab)))
    assert [(rule["seen"], rule["hits"]) for rule in rules] == [(3, 1)]
    assert dropped() == before + 1
    assert card["retransmits"] > 0
    assert vhca("fault", "clear", *of(lab)) == "1 rule cleared\n"


class Terminal:
    """A program in a terminal of its own: what is typed, and what was shown."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self.shown = ""

    def type(self, line: str) -> None:
        os.write(self._descriptor, line.encode() + b"\n")

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        deadline = time.monotonic() + timeout_s
        while not (match := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._descriptor], [], [], 1.0)[0]:
                with contextlib.suppress(OSError):  # the program has gone, its terminal with it
                    self.shown += os.read(self._descriptor, 65536).decode(errors="replace")
        return match


@contextlib.contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    try:
        yield Terminal(pid, descriptor)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(descriptor)


def test_a_shell_says_how_to_give_it_orders_and_takes_them() -> None:
    with terminal(*VHCA, "shell", "--guests", "1") as shell:
        said = shell.wait_for(r"orders from another terminal: .*--rack (\d+) if several racks are running\)")
        assert int(said[1]) == shell.pid
        assert example(said[1]) in said[0].replace("\r", "").replace("\n", "")
        shell.wait_for("root@g0")
        shell.type(f"until grep ACTIVE {PORT}/state; do sleep 1; done; echo it is $((40 + 2))")
        shell.wait_for("4: ACTIVE\r\nit is 42")
        vhca("fabric", "link", "down", "h0", "--rack", said[1])
        shell.type(f"until grep DOWN {PORT}/state; do sleep 1; done; echo it is $((40 + 3))")
        shell.wait_for("1: DOWN\r\nit is 43")
        assert shell.shown.count("orders from another terminal") == 1
        shell.type("exit")
        shell.wait_for("exit", 60)
