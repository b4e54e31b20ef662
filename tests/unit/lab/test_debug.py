"""Live consoles, gdb's address, and the processors that a kernel does not take."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vhca.lab import debug
from vhca.lab.console import Recorder
from vhca.lab.errors import Completed, GuestError
from vhca.lab.kernels import Kernel


def test_a_live_console_has_whole_printable_lines_with_names() -> None:
    got: list[bytes] = []
    live = debug.LiveConsole(got.append, "g1: ")
    for part in (b"[ 0.1] one\r", b"\ntw", b"o\x1b[2J\n", b"rest"):
        live(part)
    assert got == [b"g1: [ 0.1] one\n", b"g1: two\\x1b[2J\n"]
    live(b"x" * 100_000)
    assert len(got) == 3
    live = debug.LiveConsole(got.append, end="\r\n")
    live(b"in a raw terminal\n")
    assert got[3] == b"in a raw terminal\r\n"


def test_a_reader_that_has_gone_does_not_stop_the_recorder(tmp_path: Path) -> None:
    def gone(_: bytes) -> None:
        raise BrokenPipeError

    ours, theirs = socket.socketpair()
    recorder = Recorder(ours.detach(), tmp_path / "console", listener=debug.LiveConsole(gone))
    theirs.sendall(b"one\n" * 50_000)
    theirs.close()
    recorder.join(20)
    assert (tmp_path / "console").stat().st_size == 200_000


def _kernel(image: Path) -> Kernel:
    return Kernel("6.19", image, {}, frozenset(), None, "id", "test")


def test_gdb_is_told_where_and_with_which_symbols(tmp_path: Path) -> None:
    assert debug.gdb_address(0, 1, tmp_path) == f"{tmp_path}/g1-gdb.sock"
    assert debug.gdb_address(1234, 1, tmp_path) == "127.0.0.1:1235"
    tcp, unix = debug.gdb_arguments("127.0.0.1:1235"), debug.gdb_arguments("/a,b/s")
    assert "host=127.0.0.1,port=1235,server=on,wait=off" in tcp[1]
    assert "path=/a,,b/s,server=on,wait=off" in unix[1]
    image = tmp_path / "arch/x86/boot/bzImage"
    said = debug.gdb_advice("g0", "127.0.0.1:1", _kernel(image))
    assert "gdb -ex 'target remote 127.0.0.1:1'" in said
    assert "no vmlinux" in said
    assert "no vmlinux" in debug.gdb_advice("g0", "x", _kernel(Path("/boot/vmlinuz-6.19")))
    (tmp_path / "vmlinux").touch()
    said = debug.gdb_advice("g0", "127.0.0.1:1", _kernel(image))
    assert f"{tmp_path}/vmlinux -ex 'target remote 127.0.0.1:1'" in said
    assert "CONFIG_GDB_SCRIPTS" in said
    (tmp_path / "vmlinux-gdb.py").touch()
    assert f"lx-symbols {tmp_path}" in debug.gdb_advice("g0", "127.0.0.1:1", _kernel(image))


@pytest.mark.parametrize(
    ("online", "highest", "wanted", "words"),
    [
        ("0-3", "511", 4, ""),
        ("0-1", "1", 4, "g0 has 2 processors, not 4: this kernel is built for 2 (NR_CPUS)"),
        ("0", "0", 2, "g0 has 1 processor, not 2: this kernel is built for 1 (NR_CPUS)"),
        ("0,2-3", "511", 4, "g0 has 3 processors, not 4: its console tells why"),
        ("", "", 4, ""),
    ],
)
def test_processors_that_a_kernel_does_not_take(online: str, highest: str, wanted: int, words: str) -> None:
    def run(argv: list[str], **_: Any) -> Completed:
        return Completed(argv, 0, f"{online}\n{highest}\n", "")

    assert debug.processors_missing(SimpleNamespace(name="g0", run=run), wanted) == words


def test_a_guest_that_does_not_answer_says_nothing_of_processors() -> None:
    def run(argv: list[str], **_: Any) -> Completed:
        raise GuestError("gone")

    assert debug.processors_missing(SimpleNamespace(name="g0", run=run), 2) == ""


def test_consoles_on_standard_error_have_names_if_there_are_several(capfd: pytest.CaptureFixture[str]) -> None:
    from vhca.cli.main import parser
    from vhca.cli.options import live_console

    assert live_console(parser().parse_args(["run"])) is None
    for guests in ("1", "2"):
        console = live_console(parser().parse_args(["run", "--console", "--guests", guests]))
        assert console is not None
        console("g0")(b"hello\n")
    assert capfd.readouterr().err == "hello\ng0: hello\n"
