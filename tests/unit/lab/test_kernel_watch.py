"""What a guest's kernel said, asked of a guest that answers, has forgotten its first lines, or is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vhca.lab import Completed, Guest, GuestError
from vhca.lab.kernel_watch import KernelWatch

WARNING = "WARNING: CPU: 0 PID: 7 at drivers/{}.c:1 f+0x1/0x2 [m]"


def _at(time_s: float, words: str) -> str:
    return f"<4>[{time_s:12.6f}] {words}\n"


class _Guest:
    """A guest whose kernel's log is `log`; None: it does not answer."""

    name = "g0"

    def __init__(self, folder: Path) -> None:
        self.console_path = folder / "g0-console.log"
        self.console_path.write_text("")
        self.agent = self
        self.alive = True
        self.boots = 1
        self.log: str | None = _at(0.5, "Linux version 6.19")
        self.recorded_bytes = 0

    def run(self, argv: list[str], **_: Any) -> Completed:
        if self.log is None:
            raise GuestError("g0 does not answer")
        return Completed(argv, 0, self.log, "")

    def prints(self, text: str) -> None:
        with self.console_path.open("a") as stream:
            stream.write(text)
        self.recorded_bytes += len(text)


@pytest.fixture
def guest(tmp_path: Path) -> _Guest:
    return _Guest(tmp_path)


def _headlines(watch: KernelWatch) -> list[str]:
    return [report.headline for report in watch.take()]


def test_a_report_is_told_once(guest: _Guest) -> None:
    watch = KernelWatch(guest)  # type: ignore[arg-type]
    assert guest.log is not None
    guest.log += _at(2.0, WARNING.format("a"))
    assert _headlines(watch) == [WARNING.format("a")]
    assert _headlines(watch) == []
    guest.log += _at(3.0, WARNING.format("b"))
    assert _headlines(watch) == [WARNING.format("b")]


def test_what_the_kernel_keeps_no_more_is_read_from_the_console(guest: _Guest) -> None:
    watch = KernelWatch(guest)  # type: ignore[arg-type]
    assert _headlines(watch) == []
    guest.prints(f"[    2.000000] {WARNING.format('early')}\n")
    guest.log = _at(9.0, "a flood") + _at(9.5, WARNING.format("late"))  # 2.0 .. 9.0 are overwritten
    assert _headlines(watch) == [WARNING.format("early"), WARNING.format("late")]
    assert _headlines(watch) == []


@pytest.mark.parametrize("alive", [False, True])
def test_a_guest_that_does_not_answer_has_its_console_read(guest: _Guest, alive: bool) -> None:
    watch = KernelWatch(guest)  # type: ignore[arg-type]
    assert _headlines(watch) == []
    guest.prints(f"[    2.000000] {WARNING.format('last')}\n")
    guest.alive, guest.log = alive, None
    assert _headlines(watch) == [WARNING.format("last")]
    assert _headlines(watch) == []


def test_a_boot_that_takes_too_long_names_what_the_kernel_said_first(tmp_path: Path) -> None:
    """The headline is long gone from the console's last lines."""
    guest = object.__new__(Guest)
    guest.name = "g0"
    guest.console_path, guest.qemu_log_path = tmp_path / "console", tmp_path / "qemu"
    guest._process, guest._recorders = None, []
    trace = "".join(f"[    3.0{n:05d}]  function_{n}+0x1/0x2\n" for n in range(40))
    guest.console_path.write_text(f"[    3.000000] {WARNING.format('boot')}\n{trace}")
    text = str(guest._explained(GuestError("the guest's agent did not start within 20 s")))
    assert text.startswith("the guest's agent did not start within 20 s\n")
    assert f"the kernel reported:\n  {WARNING.format('boot')}\n" in text
    assert "function_39" in text
    assert "function_2+" not in text
