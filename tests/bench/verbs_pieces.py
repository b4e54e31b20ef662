"""Builds `verbs_pieces.c` for guests with the host's compiler and runs it between two of them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vhca.lab import Cache, Guest, LabError, Progress, guest_root
from vhca.lab.packages import PackageStore, unpack
from vhca.lab.perftest import DEVICE

SOURCE: Final = Path(__file__).with_name("verbs_pieces.c")
HEADERS: Final = "libibverbs-dev"
LIBRARIES: Final = ("libibverbs.so.1", "libmlx5.so.1")
PLACE: Final = "/tmp/verbs_pieces"


def build(cache: Cache, progress: Progress, source: Path = SOURCE) -> Path:
    """The program, or another one for verbs, in the cache; the headers that it needs are fetched. Raises LabError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise LabError("there is no C compiler (cc) on this machine", "install gcc or clang")
    root = guest_root(cache, progress)
    key = hashlib.sha256(source.read_bytes() + root.name.encode()).hexdigest()[:16]

    def make(place: Path) -> None:
        store = PackageStore(cache, progress, "verbs-headers")
        with tempfile.TemporaryDirectory(dir=cache.folder("tmp")) as folder:
            headers = Path(folder)
            unpack(store.fetch(store.plan_alone([HEADERS]), "headers of verbs"), headers, progress, "unpacking headers")
            store.clear()
            libraries = [next(root.glob(f"usr/lib/*/{name}")) for name in LIBRARIES]
            # What these libraries need themselves is in the guest.
            command = [compiler, "-O2", "-I", str(headers / "usr/include"), "-o", str(place), str(source)]
            done = subprocess.run(
                [*command, *map(str, libraries), "-Wl,--allow-shlib-undefined"],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise LabError(f"{source.name} cannot be compiled:\n{done.stderr}")

    return cache.obtain("bench", f"{source.stem}-{key}", make, progress)


def install(guests: Sequence[Guest], program: Path) -> None:
    """Put it into the guests."""
    for guest in guests:
        guest.copy_in(program, PLACE)
        guest.run(["chmod", "755", PLACE], timeout_s=30, check=True)


def measure(guests: Sequence[Guest], size: int, rounds: int) -> dict[str, float]:
    """Its pieces by name, in us: what the program in the first of two guests printed."""
    ends = [
        guest.popen([PLACE, role, DEVICE, str(size), str(rounds)])
        for guest, role in zip(guests, ("first", "second"), strict=True)
    ]
    try:
        lines = [next(iter(end.stdout)) for end in ends]
        for end, line in zip(ends, reversed(lines), strict=True):
            end.write(line.encode())
        printed = {}
        for line in ends[0].stdout:
            name, _, value = line.partition(" ")
            if value:
                printed[name] = float(value)
            else:
                ends[1].write(b"go\n")
        for end in ends:
            if end.wait(20):
                raise LabError(f"{' '.join(end.args)}: {end.stderr.read_all().decode()}")
    finally:
        for end in ends:
            end.kill()
    return printed
