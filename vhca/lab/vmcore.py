"""A dump of the memory of a guest whose kernel died, as an ELF core for crash and other readers.

Assumes a machine that is stopped. Guarantees: a dump that has its name is whole; it takes no more room than the guest's
memory and 1 MiB, and is not begun where there is less; nobody but the owner of the logs can read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Protocol

from vhca.lab.cache import free_bytes
from vhca.lab.errors import LabError
from vhca.private_files import create_private

KERNEL_ARGUMENTS: Final = " oops=panic"
QEMU_ARGUMENTS: Final = ("-device", "vmcoreinfo")
"""By it the kernel says where it is, and how it is built, which becomes a note of the dump."""
PREPARE: Final = ("modprobe", "-q", "qemu_fw_cfg")
_DUMP_S: Final = 600.0
_LEFT_BYTES: Final = 256 << 20


class Machine(Protocol):
    """What is asked of a guest here."""

    name: str

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command on the machine."""


def place_of(console: Path, name: str) -> Path:
    """Where the dump of a guest goes: beside its console's log."""
    return console.with_name(f"{name}.vmcore")


def dump(machine: Machine, place: Path) -> Path:
    """Write the memory to `place`; an older dump there is replaced.

    :raises LabError: there is too little room, or QEMU cannot.
    """
    size = int(machine.qmp("query-memory-size-summary")["base-memory"])
    free = free_bytes(place.parent)
    if free < size + _LEFT_BYTES:
        raise LabError(f"it has {size >> 20} MiB, and {free >> 20} MiB are free", "give --log-dir on another disk")
    partial = place.with_name(f".{place.name}-partial")
    os.close(create_private(partial))
    try:
        machine.qmp("dump-guest-memory", timeout_s=_DUMP_S, paging=False, protocol=f"file:{partial}")
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
    return place
