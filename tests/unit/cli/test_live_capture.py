"""`vhca capture live`: what comes out is pcapng from the first byte to the last, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fabric.test_capture import blocks
from vhca.chip.rack import Rack
from vhca.chip.rack_config import RackConfig
from vhca.cli import capture_options, live_capture, status
from vhca.cli.main import main
from vhca.fabric import pcapng
from vhca.lab import Cache
from vhca.lab.tshark import frame_trouble, ready_tshark
from vhca.wire.packet import RC, SEND, Packet, Route

LIVE = [sys.executable, "-c", "import sys; from vhca.cli.main import main; sys.exit(main())", "capture", "live"]


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    (tmp_path / "rack").mkdir()
    with Rack(1, tmp_path / "rack", RackConfig(logs=False)) as rack:
        yield rack


def loop_packets(rack: Rack, count: int) -> None:
    port = rack._subnet.ports["h0"]
    for psn in range(count):
        packet = Packet(Route(1, 1), RC, SEND, 0x11, psn, bytes(64))
        rack.loop.call(lambda packet=packet: port.looped(packet))  # type: ignore[misc]


def until_running(rack: Rack) -> None:
    deadline = time.monotonic() + 20
    while not rack._subnet.captures.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def started(rack: Rack, *words: str, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*LIVE, "--rack", str(rack.directory), *words], stdout=output, stderr=subprocess.PIPE, bufsize=0
    )
    # Unbuffered: what is behind this line is for communicate().
    assert process.stderr is not None
    assert process.stderr.readline() == b"recording; Ctrl-C ends it\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_comes_at_once_and_a_signal_ends_it_well(rack: Rack, number: int) -> None:
    process = started(rack)
    until_running(rack)
    assert process.stdout is not None
    heard = b""
    loop_packets(rack, 1)
    while b"h0-loopback" not in heard or heard.count(b"\x06\x00\x00\x00") < 1:
        heard += os.read(process.stdout.fileno(), 1 << 16)
    process.send_signal(number)
    rest, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"1 packets\n")
    assert [kind for kind, _ in blocks(heard + rest)] == [0x0A0D0D0A, 1, 1, 6, 5, 5]
    assert not rack._subnet.captures.running


def test_a_number_of_packets_in_a_file(rack: Rack, tmp_path: Path) -> None:
    file = tmp_path / "a.pcapng"
    process = started(rack, "-c", "3", "-w", str(file), "--records")
    until_running(rack)
    loop_packets(rack, 5)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"3 packets\n")
    assert [kind for kind, _ in blocks(file.read_bytes())].count(6) == 3
    assert file.stat().st_mode & 0o777 == 0o600


def test_who_reads_has_seen_enough(rack: Rack) -> None:
    ours, theirs = os.pipe()
    process = started(rack, output=theirs)
    os.close(theirs)
    os.read(ours, 1)  # nothing comes behind that, and still he is missed
    os.close(ours)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


def test_a_full_disk_is_said(rack: Rack) -> None:
    process = started(rack, "-w", "/dev/full")
    _, said = process.communicate(timeout=30)
    assert process.returncode == status.FAILED
    assert said == b"vhca: /dev/full ended early: No space left on device\n"


def test_a_rack_that_dies_is_said(rack: Rack) -> None:
    process = started(rack)
    until_running(rack)
    for connection in list(rack._control._threads.values()):
        connection.shutdown(socket.SHUT_RDWR)
    _, said = process.communicate(timeout=30)
    assert process.returncode == status.FAILED
    assert said == b"vhca: the rack ended before the capture did\n"


def test_what_cannot_begin_is_said(
    rack: Rack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["capture", "live", "--rack", str(rack.directory), "-w", str(tmp_path / "a.pcapng")]
    assert main([*words, "--port", "h7"]) == status.TROUBLE
    assert 'there is no port "h7"' in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "none" / "a.pcapng")]) == status.TROUBLE
    assert "No such file" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words[:-2]) == status.TROUBLE
    assert "| wireshark -k -i -" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"", b"[]\n", b"hello\n", b"x" * 100_000])
def test_what_is_no_rack_is_said(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "rack.sock"))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((live_capture.Ended, ConnectionError)):
            live_capture.ask(tmp_path / "rack.sock", {})
        thread.join(20)


def test_the_statistics_at_the_end_are_summed() -> None:
    packet = pcapng.packet(0, 1, b"x", 1, pcapng.packet_options(1))
    one, two = pcapng.statistics(0, 1, 2, 10, 3), pcapng.statistics(1, 1, 2, 5, 0)
    assert live_capture.summary(packet + one + two) == (15, 3)
    assert live_capture.summary(one + packet + two) == (5, 0)
    assert live_capture.summary((packet + one + two)[30:]) == (15, 3)
    for nothing in (b"", packet, one[:-4], bytes(40), b"\xff" * 100):
        assert live_capture.summary(nothing) is None


@pytest.mark.parametrize(
    "words",
    [["--opcode", "FLY"], ["--lid", "65536"], ["--qpn", "x"], ["--service", "RD"], ["-c", "0"], ["--snap-length", "3"],
     ["--only-management", "--no-management"], ["--duration", "0"], ["--files", "2"], ["x"]],
)  # fmt: skip
def test_wrong_choices_are_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["capture", "live", *words])
    assert ended.value.code == status.USAGE


def test_all_choices_become_fields_that_a_rack_takes(rack: Rack) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    capture_options.add_what(parser)
    words = "--port h0 --both-ends --records --direction in --lid 1 --lid 0x2 --qpn 3 --opcode SEND --service UD"
    more = "--only-management --management-class 0x81 --no-acks --snap-length 64 -c 9 --duration 1m"
    options = parser.parse_args([*words.split(), *more.split()])
    with live_capture.ask(rack.directory / "rack.sock", capture_options.fields(options)):
        until_running(rack)
        ((_, choice),) = rack._subnet.captures.running.values()
        assert list(choice.ports or ()) == ["h0"]
        assert (choice.both_ends, choice.records) == (True, True)
        only, limits = choice.only, choice.limits
        assert (only.direction, only.lids, only.qpns) == ("in", frozenset((1, 2)), frozenset((3,)))
        assert (only.opcode, only.service, only.management) == ("SEND", "UD", True)
        assert (only.management_class, only.acknowledgements) == (0x81, False)
        assert (limits.snap_bytes, limits.packets, limits.seconds) == (64, 9, 60)


def test_dumpcap_which_wireshark_starts_takes_each_packet_as_it_comes(rack: Rack, tmp_path: Path) -> None:
    """`| wireshark -k -i -` is this, with a window."""
    tshark = ready_tshark(Cache())
    if tshark is None:
        pytest.skip("no tshark on the host or in the cache (vhca fetch), and so no dumpcap")
    *loader, program = tshark.command
    dumpcap = Path(program).with_name("dumpcap")
    if not dumpcap.exists():
        pytest.skip("this tshark came without dumpcap")
    taken = tmp_path / "taken.pcapng"
    live = started(rack, "--records")
    until_running(rack)
    with subprocess.Popen(
        [*loader, str(dumpcap), "-q", "-i", "-", "-w", str(taken)],
        stdin=live.stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **tshark.environment},
    ) as reader:
        assert live.stdout is not None
        live.stdout.close()
        for count in range(1, 4):
            loop_packets(rack, 1)
            rack.loop.call(lambda: rack.hcas[0].board.reset("for the test"))
            deadline = time.monotonic() + 20
            while not taken.exists() or whole_blocks(taken).count(6) < 2 * count:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        live.send_signal(signal.SIGINT)
        assert live.wait(20) == 0
        assert reader.wait(20) == 0
    rows = tshark.fields(taken, "_ws.malformed", "infiniband.bth.opcode", "json.member_with_value")
    assert frame_trouble(rows) == []
    assert [bool(row["json.member_with_value"]) for row in rows] == [False, True] * 3
    assert {row["infiniband.bth.opcode"] for row in rows[::2]} == {"4"}


def whole_blocks(path: Path) -> list[int]:
    """The kinds of the blocks that are there, as far as they are whole."""
    data, at, found = path.read_bytes(), 0, []
    while at + 12 <= len(data) and at + (size := int.from_bytes(data[at + 4 : at + 8], "little")) <= len(data):
        found.append(int.from_bytes(data[at : at + 4], "little"))
        at += size
    return found
