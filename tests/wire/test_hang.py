"""A device loop that hangs or ends: the process says so, and can be ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.remote import MEMORY_AND_MASTER, PCI_COMMAND
from tests.wire.client import Client
from vhca.pci.function import CONFIG_REGION
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

# `vhca serve` whose cards do what no card should when their scratch register is read.
SERVE = """
import sys, time
from vhca.chip.bar0 import Bar0
from vhca.cli.main import main
from vhca.sim import watchdog
watchdog.HANG_S = 0.3
def read(self, offset, count):
    {action}
Bar0.read = read
sys.exit(main(["serve", "--hcas", "2", "--dir", sys.argv[1], "--quiet"]))
"""


class Serving:
    """The process, its sockets and what it says."""

    def __init__(self, folder: Path, action: str) -> None:
        self.sockets = folder / "rack"
        self.words = folder / "stderr"
        script = folder / "serve.py"
        script.write_text(SERVE.format(action=action))
        with self.words.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(self.sockets)],
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def wait_for(self, words: str) -> str:
        """All that was said, once these words are in it."""
        deadline = time.monotonic() + 60
        while words not in (text := self.words.read_text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.02)
        return text


@contextlib.contextmanager
def serving(folder: Path, action: str) -> Iterator[Serving]:
    serving = Serving(folder, action)
    try:
        yield serving
    finally:
        serving.process.kill()
        serving.process.wait()


def read_register(path: Path) -> Client:
    """Connect to a card and read a register of it, without waiting for the answer."""
    deadline = time.monotonic() + 30
    sock = socket.socket(socket.AF_UNIX)
    while True:
        try:
            sock.connect(str(path))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    client = Client(sock, lambda: None)
    client.negotiate()
    client.region_write(CONFIG_REGION, PCI_COMMAND, MEMORY_AND_MASTER)
    client.post_raw(proto.request(9, Command.REGION_READ, proto.REGION_ACCESS.pack(0, 0, 4)))
    return client


@pytest.mark.parametrize("action", ["time.sleep(100)", "while True: pass"])
def test_a_hanging_loop_is_reported_and_can_be_ended(tmp_path: Path, action: str) -> None:
    with serving(tmp_path, action) as rack:
        client = read_register(rack.sockets / "h1.sock")
        text = rack.wait_for(action)
        assert "the device loop has not turned" in text
        assert "in a step of h1:" in text
        begin = time.monotonic()
        rack.process.send_signal(signal.SIGTERM)
        assert rack.process.wait(30) == 0
        assert time.monotonic() - begin < 10
        client.close()
    assert list(rack.sockets.glob("*.sock")) == []


def test_a_loop_that_ends_takes_the_process_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, "raise SystemExit") as rack:
        client = read_register(rack.sockets / "h0.sock")
        assert rack.process.wait(60) == 125
        assert "the device loop has ended, and with it every card" in rack.words.read_text()
        client.close()
    assert list(rack.sockets.glob("*.sock")) == []
