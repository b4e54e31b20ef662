"""`vhca trace live`: events of a rack that is running, as they come, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.hw.events import CommandPosted
from vhca.wire.connectx import cmd
from vhca.wire.connectx.cmd import Op
from vhca.wire.packet import RC, SEND, Packet, Route

LIVE = [sys.executable, "-c", "import sys; from vhca.cli.main import main; sys.exit(main())", "trace", "live"]


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    (tmp_path / "rack").mkdir()
    with Rack(2, tmp_path / "rack", RackConfig(logs=False)) as rack:
        yield rack


def happen(rack: Rack) -> None:
    """A command that is refused, and a packet that a card sends to itself."""
    posted = CommandPosted(0, cmd.DestroyQpIn(opcode=Op.DESTROY_QP, qpn=0x1234).to_bytes(), 16)
    rack.loop.call(lambda: rack.hcas[0].board.event(posted))
    packet = Packet(Route(1, 1), RC, SEND, 0x11, 7, bytes(64))
    rack.loop.call(lambda: rack._subnet.ports["h0"].looped(packet))


def started(rack: Rack, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*LIVE, "--rack", str(rack.directory), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    deadline = time.monotonic() + 30
    while not rack._subnet.captures.running:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def test_lines_come_at_once_and_ctrl_c_ends_it_well(rack: Rack) -> None:
    process = started(rack)
    happen(rack)
    assert process.stdout is not None
    heard = b""
    while b"RC_SEND_ONLY" not in heard:
        heard += os.read(process.stdout.fileno(), 1 << 16)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")
    lines = (heard + rest).decode().splitlines()
    assert lines[0].split() == ["us", "h0", "wire", "h1"]
    assert "DESTROY_QP: BAD_RES, syndrome 0x" in lines[2]
    assert "= qp: no such object; refused by firmware/commands/resources.py:" in lines[3]
    assert "h0-loopback -> RC_SEND_ONLY QP 0x11 psn 7 64 B" in lines[4]


def test_a_page_of_what_was_there_until_ctrl_c(rack: Rack, tmp_path: Path) -> None:
    page = tmp_path / "live.html"
    process = started(rack, "--kind", "command", "--html", str(page))
    happen(rack)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, f"{page}: 1 events\n".encode())
    assert said == b"vhca: 1 events of the capture are not of those that were asked for\n"
    assert "DESTROY_QP: BAD_RES" in page.read_text()


def test_a_rack_that_ends_is_no_damage(rack: Rack) -> None:
    process = started(rack)
    happen(rack)
    rack.stop()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")
