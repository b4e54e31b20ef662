"""An independent decoder for captures: finds tshark and reads fields of packets with it.

Prefers the host's tshark; else takes the one from the packages, run through its own loader, as QEMU is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import LabError
from vhca.lab.packages import UNPACKED, PackageStore, unpack

_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_TIMEOUT_S: Final = 300.0
# Payloads of tests are noise; a guess that they are RPC would call them malformed.
_OPTIONS: Final = ("-n", "--disable-protocol", "rpcordma")


@dataclass(slots=True, frozen=True)
class Tshark:
    """A tshark that can be started: `[*command, ...]` with `environment` added."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: str = "host"

    def fields(self, capture: Path, *names: str) -> list[dict[str, str]]:
        """The named fields of every frame of a capture, "" for those that it does not have; one run of tshark.

        :raises LabError: tshark could not read the file.
        """
        command = [*self.command, *_OPTIONS, "-r", str(capture), "-T", "fields"]
        command += [part for name in names for part in ("-e", name)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, **self.environment},
        )
        if done.returncode:
            raise LabError(f"tshark could not read {capture}: {done.stderr.strip()}")
        return [dict(zip(names, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]


def host_tshark() -> Tshark | None:
    """The host's own tshark, if it has one."""
    path = shutil.which("tshark")
    return Tshark((path,)) if path else None


def ready_tshark(cache: Cache) -> Tshark | None:
    """A tshark that is here already: the host's, or one in the cache."""
    root = cache.path("tshark", package_key())
    return host_tshark() or (_packaged(root) if root.is_dir() else None)


def package_key() -> str:
    """The cache key of the packaged tshark."""
    return hashlib.sha256(repr((UNPACKED, pins.TSHARK_PACKAGES, pins.GUEST_SUITE)).encode()).hexdigest()[:16]


def find_tshark(cache: Cache, progress: Progress) -> Tshark:
    """Return a tshark, from the host or from packages (fetched if need be)."""
    if found := host_tshark():
        return found

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "tshark")
        files = store.plan(pins.TSHARK_PACKAGES, pins.GUEST_SUITE)
        unpack(store.fetch(files, "tshark"), place, progress, "unpacking tshark")
        store.clear()

    return _packaged(cache.obtain("tshark", package_key(), build, progress))


def _packaged(root: Path) -> Tshark:
    libraries = root / _LIBRARIES
    command = (
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(root / "usr/bin/tshark"),
    )
    environment = {
        "WIRESHARK_DATA_DIR": str(root / "usr/share/wireshark"),
        "WIRESHARK_PLUGIN_DIR": str(root / "no-plugins"),
    }
    return Tshark(command, environment, "packages")


def frame_trouble(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """What is wrong with frames read with the field `_ws.malformed`: their numbers, counted from 1."""
    return [f"frame {number}" for number, row in enumerate(rows, 1) if row["_ws.malformed"]]
