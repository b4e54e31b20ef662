"""The recorder of consoles: bounded, private, and nothing that a machine prints stops or floods its host."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from vhca.lab import console
from vhca.lab.console import Recorder, tail
from vhca.lab.errors import CommandFailed, Completed, last_lines, printable


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_REST_S", 0)


def record(path: Path, data: bytes, max_bytes: int = console.FILE_BYTES) -> Recorder:
    """What a machine that says this and ends leaves."""
    ours, theirs = socket.socketpair()
    recorder = Recorder(ours.detach(), path, max_bytes)
    theirs.sendall(data)
    theirs.close()
    recorder.join(20)
    return recorder


def test_all_is_there_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "g0-console.log"
    victim = tmp_path / "victim"
    path.symlink_to(victim)
    before = len(os.listdir("/proc/self/fd"))
    record(path, b"one\r\ntwo\xff\n")
    assert path.read_bytes() == b"one\r\ntwo\xff\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not victim.exists()
    assert tail(path, 1000) == "one\ntwo\ufffd\n"
    assert tail(path, 5) == "two\ufffd\n"
    assert tail(tmp_path / "none", 5) == ""
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_machine_that_prints_without_end_takes_two_files_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "console"
    lines = b"".join(b"line %06d\n" % number for number in range(30_000))
    record(path, lines, 50_000)
    sizes = [path.stat().st_size, (tmp_path / "console.1").stat().st_size]
    assert all(size <= 100_000 for size in sizes)  # a piece is not cut
    assert sorted(p.name for p in tmp_path.iterdir()) == ["console", "console.1"]
    assert tail(path, 1 << 20).endswith("line 029998\nline 029999\n")
    assert len(tail(path, 1 << 20)) >= 50_000
    assert len(tail(path, 70_000)) == 70_000
    assert lines.decode().endswith(tail(path, 70_000))


def test_an_older_run_leaves_nothing_in_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "console"
    record(path, bytes(200_000), 50_000)
    assert (tmp_path / "console.1").stat().st_size
    record(path, b"again\n")
    assert tail(path, 10_000) == "again\n"


def test_a_full_disk_does_not_stop_the_machine(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    recorder = Recorder(ours.detach(), tmp_path / "console")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._file)
    os.close(full)
    theirs.settimeout(20)
    theirs.sendall(bytes(1 << 20))
    theirs.close()
    recorder.join(20)
    assert recorder.lost_bytes == 1 << 20


def test_a_flood_costs_few_wake_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_REST_S", 0.02)
    reads = 0
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    ours, theirs = socket.socketpair()
    recorder = Recorder(ours.detach(), tmp_path / "console")
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            theirs.send(b"x")

    thread = threading.Thread(target=flood)
    thread.start()
    ended.wait(0.3)
    ended.set()
    thread.join()
    during = reads
    theirs.close()
    recorder.join(20)
    assert during <= 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext, gr\u00fc\u00dfe", "plain\n\ttext, gr\u00fc\u00dfe"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("line\r\nover\rwritten\x08", "line\nover\\rwritten\\x08"),
        ("\x9b5n \x7f \x00", "\\x9b5n \\x7f \\x00"),
        ("\u202eright to left\u2066", "\\u202eright to left\\u2066"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_a_terminal_may_show(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_quotations_are_short_whatever_was_said() -> None:
    assert last_lines("one\ntwo\nthree\n\n", 2, "  ") == "  two\n  three"
    assert last_lines("", 2, "  ") == ""
    endless = last_lines("x" * 10_000_000, 15)
    assert len(endless) < 600
    many = last_lines("\x00\n" * 5_000_000 + "end\n", 15)
    assert many.endswith("end")
    error = CommandFailed("g0", Completed(["x"], 1, "\x1b" * 5_000_000, "y" * 5_000_000 + "\nlast words\n"))
    assert len(str(error)) < 10_000
    assert str(error).endswith("last words")


def test_a_listener_hears_what_is_recorded(tmp_path: Path) -> None:
    heard: list[bytes] = []
    ours, theirs = socket.socketpair()
    recorder = Recorder(ours.detach(), tmp_path / "console", listener=heard.append)
    theirs.sendall(b"one\ntwo\n")
    theirs.close()
    recorder.join(20)
    assert b"".join(heard) == b"one\ntwo\n"
    assert recorder.recorded_bytes == 8
