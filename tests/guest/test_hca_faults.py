"""A bad cable: what the transport repairs, and how it gives up, seen from two guests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.cards import Moved, moved
from vhca.fabric import Fault
from vhca.lab import Guest, Lab
from vhca.lab.perftest import perftest, run_exchange, wait_port_active
from vhca.wire.packet import RC

SCRIPTS = Path(__file__).resolve().parents[2] / "guest-tests"
LOSS = 0.05
_ports = iter(range(19500, 19999))


@pytest.fixture(autouse=True)
def _repaired(lab: Lab, guest_pair: tuple[Guest, Guest]) -> Iterator[None]:
    for guest in guest_pair:
        wait_port_active(guest)
    yield
    for name in ("h0", "h1"):
        lab.fabric.clear_faults(name)


def damage(lab: Lab, *faults: tuple[str, float]) -> None:
    """Put rules on both directions of both cables: (action, probability)."""
    for name in ("h0", "h1"):
        for action, probability in faults:
            fault = Fault(action, probability=probability, delay_ns=2_000_000)  # type: ignore[arg-type]
            lab.fabric.add_fault(name, fault)


def both(lab: Lab, script: str, *arguments: str) -> tuple[dict[str, object], dict[str, object], Moved]:
    """Run a script of guest-tests/ in both guests: what they told, and what the sender's card counted."""
    port = next(_ports)
    ends = []
    with moved(lab.hcas[1]) as card:
        for side, guest in enumerate(lab.guests[:2]):
            guest.run(["mkdir", "-p", "/tmp/scripts/claims"], check=True)
            guest.copy_in(SCRIPTS / script, f"/tmp/scripts/{script}")
            guest.copy_in(SCRIPTS / "claims" / "common.py", "/tmp/scripts/claims/common.py")
            ends.append(guest.popen(["python3", f"/tmp/scripts/{script}", *arguments, "--peer", f"{side}:{port}"]))
        told = []
        for end in ends:
            code = end.wait(120)
            printed = end.stdout.read_all().decode()
            assert code == 0, printed + end.stderr.read_all().decode()
            told.append(json.loads(printed.splitlines()[-1]))
    return told[0], told[1], card


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_read_bw"])
def test_bandwidth_at_five_percent_loss(lab: Lab, guest_pair: tuple[Guest, Guest], program: str) -> None:
    # every packet crosses two cables
    damage(lab, ("drop", LOSS / 2))
    exchange = perftest(program, 16384, 200)
    with moved(lab.hcas[1]) as client, moved(lab.hcas[0]) as server:
        for end in run_exchange(*guest_pair, exchange, next(_ports), 120):
            assert end.returncode == 0, end.stdout + end.stderr
    assert client["retransmits"] + server["retransmits"] + server["rx_out_of_sequence"] > 0
    assert client["send_errors"] == server["send_errors"] == 0


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((("drop", LOSS),), id="drop"),
        pytest.param((("duplicate", 0.2), ("drop", LOSS)), id="duplicate"),
        pytest.param((("reorder", 0.1), ("corrupt", 0.05)), id="reorder-corrupt"),
        pytest.param((("delay", 0.1),), id="delay"),
    ],
)
def test_an_atomic_counter_counts_each_request_once(lab: Lab, faults: tuple[tuple[str, float], ...]) -> None:
    damage(lab, *faults)
    holder, adder, _ = both(lab, "atomic_counter.py", "--rounds", "150")
    assert holder == {"counter": 150}
    assert adder == {"statuses": {"SUCCESS": 150}, "in_order": True}


def test_retry_exhaustion(lab: Lab) -> None:
    fault = Fault("drop", match=lambda packet: packet.service == RC)
    lab.fabric.add_fault("h1", fault, "from_card")
    _, sender, card = both(lab, "exhaustion.py")
    assert sender == {"status": "RETRY_EXC_ERR", "state": "ERR", "next": "WR_FLUSH_ERR"}
    # the first try and the two repeats that the sender asked for
    assert fault.hits == 3
    assert card["tx_packets"] >= 1


def test_rnr_exhaustion(lab: Lab) -> None:
    _, sender, _ = both(lab, "exhaustion.py", "--rnr")
    assert sender == {"status": "RNR_RETRY_EXC_ERR", "state": "ERR", "next": "WR_FLUSH_ERR"}
