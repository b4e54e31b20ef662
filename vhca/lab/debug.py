"""Debugging a guest: a live console, a debugger's socket, and a look at how many processors the kernel took.

Assumes nothing of the guest. A debugger that is attached stops the guest's time, not the host's: time-outs go on.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from vhca.lab.errors import Completed, GuestError, printable
from vhca.lab.kernels import Kernel

_LINE_MAX: Final = 4096  # bytes of a line without end
_CPUS: Final = "/sys/devices/system/cpu"


class LiveConsole:
    """Passes on what a guest prints on its console, whole lines, printable, each with `prefix` before it.

    Called in the recorder's thread; a reader that has gone away does not stop the recorder.
    """

    def __init__(self, target: Callable[[bytes], None], prefix: str = "", end: str = "\n") -> None:
        self._target = target
        self._prefix = prefix
        self._end = end
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """Take some output."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_MAX:
            whole, self._rest = [*whole, self._rest], b""
        text = "".join(
            f"{self._prefix}{printable(line.rstrip(bytes([13])).decode('utf-8', 'replace'))}{self._end}"
            for line in whole
        )
        if text:
            with contextlib.suppress(OSError, ValueError):
                self._target(text.encode("utf-8", "replace"))


def gdb_address(port: int, index: int, folder: Path | None) -> str:
    """Where guest `index` waits for gdb: `HOST:PORT` on the loopback, or with `port` 0 a socket in `folder`."""
    return f"127.0.0.1:{port + index}" if port or folder is None else str(folder / f"g{index}-gdb.sock")


def gdb_arguments(address: str) -> list[str]:
    """QEMU's arguments for a debugger's socket at that address."""
    if address.startswith("/"):
        where = f"path={address.replace(',', ',,')}"
    else:
        host, _, port = address.rpartition(":")
        where = f"host={host},port={port}"
    return ["-chardev", f"socket,id=gdb,{where},server=on,wait=off", "-gdb", "chardev:gdb"]


def gdb_advice(name: str, address: str, kernel: Kernel) -> str:
    """How to attach gdb to a guest, with the symbols of its kernel if there are any."""
    tree = kernel.image.parents[3] if kernel.image.parts[-4:-1] == ("arch", "x86", "boot") else None
    attach = ["-ex", f"target remote {address}"]
    if tree is None or not (tree / "vmlinux").is_file():
        missing = "no vmlinux is beside this kernel; a build tree (--kernel TREE) has one"
        return f"{name} waits for gdb: {shlex.join(['gdb', *attach])} ({missing})"
    words = ["gdb", "-iex", f"add-auto-load-safe-path {tree}", str(tree / "vmlinux"), *attach]
    if (tree / "vmlinux-gdb.py").exists():
        modules = f"lx-symbols {tree} loads those of modules, once they are there"
    else:
        modules = "for those of modules (lx-symbols) build with CONFIG_GDB_SCRIPTS=y"
    return f"{name} waits for gdb: {shlex.join(words)} ({modules})"


class Runs(Protocol):
    """What is asked of a guest here."""

    name: str

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command to its end."""


def processors_missing(guest: Runs, wanted: int) -> str:
    """Why a guest has fewer processors than it was given, as a sentence; empty if it has all."""
    try:
        done = guest.run(["cat", f"{_CPUS}/online", f"{_CPUS}/kernel_max"], timeout_s=10.0)
        online, highest = done.stdout.split()
        have = _count(online)
        built_for = int(highest) + 1
    except (GuestError, OSError, ValueError):
        return ""  # a guest without sysfs, or one that does not answer: others say so
    if have >= wanted:
        return ""
    why = f"this kernel is built for {built_for} (NR_CPUS)" if built_for < wanted else "its console tells why"
    return f"{guest.name} has {have} processor{'' if have == 1 else 's'}, not {wanted}: {why}"


def _count(ranges: str) -> int:
    """How many numbers a list such as `0-3,5` names."""
    ends = [part.split("-") for part in ranges.split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
