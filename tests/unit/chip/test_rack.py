"""A rack on its host: what it makes in its folder, what it leaves there, and how many cards it takes."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from vhca.chip.rack import MAX_CARDS, MAX_DESCRIPTORS, Rack, RackError
from vhca.chip.rack_config import CaptureConfig, CardConfig, RackConfig
from vhca.fabric import Fault
from vhca.hw.effects import Loopback
from vhca.vfio_user.server import VfioUserError
from vhca.wire.packet import RC, SEND, Packet, Route


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_rack_in_a_folder_takes_nothing_from_the_first(tmp_path: Path) -> None:
    with Rack(2, tmp_path) as first:
        first.hcas[0].board.log.info("the first rack's words")
        identity = (tmp_path / "h0.log").stat().st_ino
        second = Rack(3, tmp_path)
        with pytest.raises(VfioUserError, match="another server listens"):
            second.start()
        second.stop()
        assert (tmp_path / "h0.log").stat().st_ino == identity
        first.hcas[0].board.log.info("and more")
        lines = (tmp_path / "h0.log").read_text().splitlines()
        assert {"the first rack's words", "and more"} <= set(lines)
        assert names(tmp_path) == ["h0.log", "h0.sock", "h1.log", "h1.sock", "rack.sock"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "h1.sock"))
    assert names(tmp_path) == ["h0.log", "h1.log"]


def test_a_rack_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "h1.sock").write_text("no socket")
    before = len(os.listdir("/proc/self/fd"))
    rack = Rack(3, tmp_path)
    with pytest.raises(VfioUserError, match=r"h1\.sock"):
        rack.start()
    assert names(tmp_path) == ["h1.sock"]
    del rack
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_log_that_cannot_be_made_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "h1.log").mkdir()
    with pytest.raises(OSError, match=r"h1\.log"):
        Rack(2, tmp_path).start()
    assert names(tmp_path) == ["h0.log", "h1.log"]


def test_logs_and_sockets_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Rack(1, tmp_path):
            for name in ("h0.log", "h0.sock", "rack.sock"):
                assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    finally:
        os.umask(before)


def test_a_socket_that_took_our_place_stays(tmp_path: Path) -> None:
    with Rack(1, tmp_path):
        for name in ("h0.sock", "rack.sock"):
            (tmp_path / name).unlink()  # somebody tidied up
        other = Rack(1, tmp_path)
        other.start()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "h0.sock"))
        assert (tmp_path / "rack.sock").exists()
    finally:
        other.stop()
    assert names(tmp_path) == ["h0.log"]


def test_the_switch_has_a_port_for_every_card(tmp_path: Path) -> None:
    rack = Rack(MAX_CARDS, tmp_path)
    assert len({port.switch_port.number for port in rack._subnet.ports.values()}) == MAX_CARDS
    rack.loop.close()
    with pytest.raises(RackError, match=f"{MAX_CARDS} ports"):
        Rack(MAX_CARDS + 1, tmp_path)


def test_a_rack_may_open_as_many_files_as_it_is_allowed(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with Rack(1, tmp_path):
            wanted = MAX_DESCRIPTORS if before[1] == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, before[1])
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_capture_begins_when_it_is_asked_for(tmp_path: Path) -> None:
    with Rack(1, tmp_path, RackConfig(logs=False)) as rack:
        capture = rack.fabric.capture(tmp_path / "bare.pcapng")
        assert capture.path.stat().st_mode & 0o777 == 0o600
        capture.flush()
        assert capture.path.stat().st_size > 0
        with rack.fabric.capture(tmp_path / "block.pcapng") as other:
            assert other.packets >= 0
        assert len(rack._subnet.captures.running) == 1
        capture.stop()
        capture.stop()
        assert not rack._subnet.captures.running
        rule = rack.fabric.add_fault("h0", Fault("drop"))
        assert (rule.hits, rack.fabric.faults("h0"), rack.fabric.names()) == (0, [("both", rule)], ["h0"])


def test_loopback_of_a_card_reaches_the_capture(tmp_path: Path) -> None:
    with Rack(1, tmp_path, RackConfig(logs=False)) as rack:
        board = rack.hcas[0].board
        packet = Packet(Route(1, 1), RC, SEND, 0x11, 1, b"to myself")
        with rack.fabric.capture(tmp_path / "self.pcapng") as capture:
            rack.loop.call(lambda: board.execute([Loopback(1, packet)]))
            assert capture.packets == 1
    assert b"h0-loopback" in (tmp_path / "self.pcapng").read_bytes()


_SMALL_FILES: Final = """
import logging, resource, sys
from pathlib import Path
from vhca.chip.rack import Rack
from vhca.wire.packet import RC, SEND, Packet, Route

logging.basicConfig(level=logging.WARNING, format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (32768, 32768))
with Rack(1, Path(sys.argv[1])) as rack:
    rack.fabric.capture(Path(sys.argv[1]) / "c.pcapng")
    port = rack._subnet.ports["h0"]
    for psn in range(200):
        rack.loop.call(lambda: port.looped(Packet(Route(1, 1), RC, SEND, 0x11, psn, bytes(1024), mtu=1024)))
        rack.loop.call(lambda: rack.hcas[0].board.log.info("%s", "x" * 1024))
    assert rack.loop.errors == 0
"""


def test_files_that_cannot_grow_cost_one_line_each(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_FILES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    capture, log = f"the capture {tmp_path / 'c.pcapng'} ends here", f"{tmp_path / 'h0.log'} loses lines"
    words = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert sorted(words) == sorted([capture, log])
    assert (tmp_path / "c.pcapng").stat().st_size <= 32768


def test_a_rack_is_recorded_from_its_first_packet_until_it_stops(tmp_path: Path) -> None:
    config = RackConfig(logs=False, capture=CaptureConfig(tmp_path / "run.pcapng", ports=["h1"], both_ends=True))
    with Rack(2, tmp_path, config) as rack, pytest.raises(OSError, match="another capture writes to this file"):
        rack.fabric.capture(tmp_path / "run.pcapng")
    recorded = (tmp_path / "run.pcapng").read_bytes()
    assert b"h1" in recorded
    assert b"h0" not in recorded


def test_a_recording_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    rack = Rack(1, tmp_path, RackConfig(capture=CaptureConfig(tmp_path / "absent" / "run.pcapng")))
    with pytest.raises(OSError, match="absent"):
        rack.start()
    assert names(tmp_path) == ["h0.log"]


def test_cards_have_faults_from_the_beginning(tmp_path: Path) -> None:
    with pytest.raises(RackError, match="h1: no command is called 'CREATE_MKY'"):
        Rack([CardConfig(), CardConfig(faults=["command CREATE_MKY lost"])], tmp_path)
    rack = Rack([CardConfig(), CardConfig(faults=["link untrained", "card removed", "dma nth=1000 fail"])], tmp_path)
    with rack:
        other, card = rack.hcas
        rack.loop.call(lambda: card._set_power(True))
        rack.loop.call(lambda: other._set_power(True))
        deadline = time.monotonic() + 10
        while not rack.fabric.status()[0].up or not all(rule.hits for rule in card.faults.rules()[:2]):
            assert time.monotonic() < deadline
        assert not rack.fabric.status()[1].up
        assert rack.loop.call(lambda: card.function.region_read(7, 0, 4)) == b"\xff" * 4
        assert rack.loop.call(card._gate.spans) == []
        assert card._gate._tamper is not None
        card.faults.clear()
        assert card._gate._tamper is None
        # nobody is in the slot's machine, who would give it power
        assert not rack.fabric.status()[1].up
        rack.loop.call(lambda: card._set_power(True))
        while not rack.fabric.status()[1].up:
            assert time.monotonic() < deadline
        assert rack.loop.call(lambda: card.function.region_read(7, 0, 2)) == b"\xb3\x15"
