"""The thread that writes captures: it takes everything, or says how much it did not; nothing else waits for it."""

import logging
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from tests.unit.fabric.test_capture import blocks
from vhca.fabric import pcapng
from vhca.fabric.capture import OUTBOUND, Capture
from vhca.fabric.capture_writer import File, Ring, Stream, Writer, for_its_owner
from vhca.wire.packet import RC, SEND, Packet, Route

DECLARED = pcapng.interface(pcapng.LINKTYPE_ERF, 0, "h0")


def a_block(number: int = 0, size: int = 100) -> bytes:
    return pcapng.packet(0, number, bytes(size), size, pcapng.packet_options(OUTBOUND))


class Gate:
    """A disk that takes nothing until it is opened."""

    name = "gate"

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.blocks: list[bytes] = []
        self.abandoned = False

    def write(self, blocks: list[bytes]) -> None:
        self.reached.set()
        if not self.opened.wait(20):
            raise OSError(5, "nobody opened the gate")
        self.blocks += blocks

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        self.abandoned = True


def test_a_slow_disk_costs_packets_and_they_are_counted(tmp_path: Path) -> None:
    gate = Gate()
    capture = Capture(Writer(gate, most_bytes=2000).start(), lambda: 7)
    interface = capture.interface("h0")
    assert gate.reached.wait(20)
    packet = Packet(Route(2, 1), RC, SEND, 0x11, 1, bytes(400))
    began = time.monotonic()
    for _ in range(100):
        capture.record(interface, packet, OUTBOUND)
    assert time.monotonic() < began + 10
    kept = capture.packets
    assert 1 <= kept < 10
    assert capture.dropped == 100 - kept
    gate.opened.set()
    assert capture.flush()
    capture.record(interface, packet, OUTBOUND)
    capture.close()
    assert capture.wait()
    found = blocks(b"".join(gate.blocks))
    frames = [body for kind, body in found if kind == 6]
    assert len(frames) == kept + 1
    # The next packet says how many are missing in front of it, and the end says how many in all.
    assert struct.pack("<HHQ", 4, 8, 100 - kept) in frames[-1]
    kind, statistics = found[-1]
    assert kind == 5
    assert struct.pack("<HHQ", 4, 8, 101) + struct.pack("<HHQ", 5, 8, 100 - kept) in statistics


def test_a_disk_that_never_answers_is_left_alone() -> None:
    gate = Gate()
    writer = Writer(gate).start()
    assert gate.reached.wait(20)
    writer.put(a_block())
    assert not writer.flush(0.05)
    writer.end()
    assert not writer.put(a_block())
    assert not writer.wait(0.05)
    assert gate.abandoned
    gate.opened.set()
    assert writer.wait_ended(20)


def test_a_file_that_cannot_grow_ends_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(File(Path("/dev/full"))).start()
    assert writer.wait_ended(20)
    assert not writer.put(a_block())
    writer.end(a_block())
    assert writer.wait(0)
    assert writer.trouble == "No space left on device"
    assert [record.message for record in caplog.records] == ["the capture /dev/full ends here: No space left on device"]


def test_a_ring_keeps_the_last_files_and_each_can_be_read(tmp_path: Path) -> None:
    file = File(tmp_path / "run.pcapng", Ring(4096, 3), now=lambda: 1_800_000_000.0)
    writer = Writer(file).start()
    writer.declare(DECLARED)
    for number in range(200):
        assert writer.put(a_block(number))
        if number == 100:
            writer.declare(pcapng.interface(pcapng.LINKTYPE_ERF, 0, "h1"))
    writer.end()
    assert writer.wait(20)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(1_800_000_000))
    numbers = []
    for path in files:
        assert path.stat().st_size <= 4096
        assert path.stat().st_mode & 0o777 == 0o600
        found = blocks(path.read_bytes())
        assert [kind for kind, _ in found[:4]] == [0x0A0D0D0A, 1, 1, 6]
        numbers += [struct.unpack_from("<II", body, 4)[1] for kind, body in found if kind == 6]
    first = int(files[0].name.split("_")[1])
    assert [path.name for path in files] == [f"run_{first + index:05}_{stamp}.pcapng" for index in range(3)]
    assert numbers == list(range(numbers[0], 200))


@pytest.mark.parametrize("ring", [(1000, 2), (4096, -1), (4096, 100_001)])
def test_rings_that_cannot_be(ring: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"file_bytes|files"):
        Ring(*ring)


def test_a_pipe_without_a_reader_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pcapng")
    with pytest.raises(OSError, match="No such device"):
        for_its_owner(tmp_path / "pipe.pcapng")


def test_a_reader_gets_packets_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(20)
        writer = Writer(Stream(ours, "reader")).start()
        assert theirs.recv(4096) == pcapng.section()
        writer.declare(DECLARED)
        writer.put(a_block())
        heard = b""
        while len(heard) < len(DECLARED + a_block()):
            heard += theirs.recv(4096)
        assert heard == DECLARED + a_block()
        writer.end(a_block(1))
        assert theirs.recv(4096) == a_block(1)
        assert theirs.recv(4096) == b""
        assert writer.wait(20)


def test_a_reader_who_has_gone_ends_the_capture(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        writer = Writer(Stream(ours, "reader")).start()
        theirs.recv(4096)
        theirs.close()
        while writer.put(a_block()):
            time.sleep(0.001)
        assert writer.wait_ended(20)
    assert writer.trouble == "its reader has gone"
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_reader_who_reads_nothing_costs_packets_only() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = Writer(Stream(ours, "reader"), most_bytes=10_000).start()
        deadline = time.monotonic() + 20
        while True:
            while writer.put(a_block(0, 1000)):
                pass
            if not writer.flush(0.2):
                break  # the socket is full
            assert time.monotonic() < deadline
        while writer.put(a_block(0, 1000)):
            pass
        began = time.monotonic()
        for number in range(10_000):
            assert not writer.put(a_block(number, 1000))
        assert time.monotonic() < began + 10
        writer.end()
        assert not writer.wait(0.1)  # and lets it go
        assert writer.wait_ended(20)
