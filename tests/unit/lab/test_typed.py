"""Who uses the lab from a strictly typed project needs no Any: not one expression of such a program has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """\
from pathlib import Path

from vhca.fabric import Fault
from vhca.lab import CaptureConfig, CardConfig, Completed, Guest, GuestConfig, Hca, Lab, RackConfig
from vhca.lab.perftest import perftest, run_exchange, wait_port_active


def sent(card: Hca) -> int:
    return card.counters()["tx_bytes"]


def lossy(server: Guest, client: Guest, lab: Lab) -> list[Completed]:
    rule = lab.fabric.add_fault("h1", Fault("drop", opcode="RDMA_WRITE", nth=3), "from_card")
    wait_port_active(client)
    ends = run_exchange(server, client, perftest("ib_write_bw", 65536, 100))
    lab.fabric.clear_faults("h1")
    print(rule.hits, lab.fabric.lid("h0"), lab.fabric.counters()["h1.xmit_pkts"], lab.fabric.active("h0", "h1"))
    return [end for end in ends if end.returncode]


each = GuestConfig(memory_mib=512, kernel_arguments="loglevel=7", share=Path("/srv/work"))
rack = RackConfig(mkey=0, capture=CaptureConfig(Path("run.pcapng"), ports=["h1"]))
cards = [[CardConfig()], [CardConfig(mtu=2048, capabilities={"log_max_qp": 8})]]
with Lab(guests=2, kernel="6.19", guest=each, guest_cards=cards, card=CardConfig(memory=1 << 28), rack=rack) as lab:
    print(lossy(lab.guests[0], lab.guests[1], lab), sent(lab.guests[1].hcas[0]))
    with lab.fabric.capture("more.pcapng") as capture:
        print(lab.hcas[0].objects(), lab.hcas[0].trace_tail(3), capture.packets, capture.trouble)
    for line in lab.guests[0].popen(["dmesg", "-w"]).stdout:
        print(line, lab.guests[0].kernel_reports()[0].headline)
"""


def check(program: str, folder: Path) -> str:
    """What mypy says of a program."""
    path = folder / "program.py"
    path.write_text(program)
    strict = ["--strict", "--disallow-any-expr", "--disallow-any-unimported", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *strict, "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'user'}"]
    done = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_a_program_with_a_lab_needs_no_any(tmp_path: Path) -> None:
    assert check(PROGRAM, tmp_path).startswith("Success")


@pytest.mark.parametrize("mistake", ["lab.hcas[0].no_such_thing()", 'lab.fabric.lid("h0") + "1"'])
def test_its_mistakes_are_found(mistake: str, tmp_path: Path) -> None:
    said = check(f"{PROGRAM}    print({mistake})\n", tmp_path)
    assert f"program.py:{PROGRAM.count(chr(10)) + 1}: error:" in said
