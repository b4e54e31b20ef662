"""The tools of infiniband-diags, OpenSM and ibsim for the host, from packages: run through their own loader, like QEMU.

Each program gets a script in the folder `bin`, which starts it with the libraries it came with and with libumad2sim
preloaded, and only it: the host's own programs, such as the shell of a script, are left alone. Scripts of the packages
are copied there, to find each other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from vhca.lab import pins
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import LabError
from vhca.lab.packages import UNPACKED, PackageStore, unpack
from vhca.native.build import NativeError, library

log = logging.getLogger(__name__)

LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_PRELOAD: Final = Path(__file__).parents[1] / "ibsim" / "preload"
_FOLDERS: Final = ("usr/bin", "usr/sbin")
# The other programs there are those of what the tools need.
_NAMES: Final = ("check_lft", "dump_", "ib", "opensm", "osm", "perfquery", "saquery", "sminfo", "smp", "vendstat")
_NOT: Final = ("ibdiag", "ibis", "ibnlparse", "ibsim-run")  # need more than they come with
# What is run without the library: the simulator itself, and what only reads files.
_ALONE: Final = frozenset(["ibsim", "ibdmchk", "ibdmsh", "ibdmtr", "ibtopodiff"])
_PERL: Final = ("share/perl5", "share/perl/5.40", "lib/x86_64-linux-gnu/perl-base", "lib/x86_64-linux-gnu/perl/5.40")
_SERVERS: Final = {"ibping": 0x32, "ibsysstat": 0x33}
"""Programs that answer others of their kind, and their management classes."""
_MADE: Final = "3"
"""How the scripts are made; part of the key of the cache."""

_PROGRAM: Final = """\
#!/bin/sh
root="${0%/*}/.."
libraries="$root/LIBRARIES"
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" PRELOAD --argv0 "$0" "$root/PROGRAM" "$@"
"""
_PERL_PROGRAM: Final = """\
#!/bin/sh
root="${0%/*}/.."
libraries="$root/LIBRARIES"
export PERL5LIB="PATHS"
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$root/usr/bin/perl" "$root/PROGRAM" "$@"
"""
# ibstatus reads /sys with the shell, which the library does not stand between: some other program attaches, and its
# files are read while it is there.
_STATUS: Final = """\
#!/bin/sh
here="${0%/*}"
"$here/ibping" -S > /dev/null 2>&1 &
attached=$!
sys="$PWD/sys-$attached/sys/class/infiniband"
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -e "$sys/ibsim0/ports/1/pkeys/31" ] && break
  sleep 0.1
done
VHCA_SYSFS="$sys" sh "$here/../ibstatus.sh" "$@"
status=$?
kill "$attached"
rm -rf "$PWD/sys-$attached"
exit $status
"""


@dataclass(slots=True, frozen=True)
class HostTools:
    """Programs below `root`, to be run by their scripts."""

    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the scripts, for `PATH`."""
        return self.root / "bin"

    def names(self) -> list[str]:
        """What there is."""
        return sorted(path.name for path in self.folder.iterdir())

    def program(self, name: str) -> Path:
        """The script of a program.

        :raises LabError: there is none of this name.
        """
        path = self.folder / name
        if "/" in name or not path.is_file():
            raise LabError(f"the packages have no {name}", f"there are {', '.join(self.names())}")
        return path

    @staticmethod
    def attachment(guid: int, name: str, arguments: Sequence[str]) -> str:
        """What `SIM_HOST` says for a program: where it attaches, and what it serves if it is started as a server."""
        words = [f"{guid:#018x}"]
        serves = _SERVERS.get(name)
        if serves is not None and any(re.fullmatch(r"--Server|-[a-zA-Z]*S", argument) for argument in arguments):
            words.append(f"s{serves:02x}")
        if whole_datagrams() is not None:
            words.append("w")
        return ";".join(words)

    def environment(self, socket_name: str, node: str, scratch: Path) -> dict[str, str]:
        """What a program needs of its environment; `node` as :mod:`vhca.ibsim.session` takes it.

        `scratch` is a folder for what OpenSM and the scripts keep.
        """
        return {
            "PATH": f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "IBSIM_SOCKNAME": socket_name,
            "SIM_HOST": node,
            "OSM_CACHE_DIR": str(scratch),
            "OSM_TMP_DIR": str(scratch),
            "VHCA_SCRATCH": str(scratch),
            "VHCA_PRELOAD": str(whole_datagrams() or ""),
        }


@cache
def whole_datagrams() -> Path | None:
    """A library that gives programs what libumad2sim does not pass on, if there is a compiler; see its source."""
    try:
        return library("whole_datagrams", _PRELOAD, {})
    except NativeError as error:
        log.warning("tools see the beginning of long answers only: %s", error)
        return None


def find_host_tools(cache: Cache, progress: Progress) -> HostTools:
    """The host's tools, fetched if they are not in the cache. Raises PackageError."""
    recipe = repr((UNPACKED, _MADE, pins.HOST_TOOL_PACKAGES, pins.GUEST_SUITE))

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "host-tools")
        files = store.plan(pins.HOST_TOOL_PACKAGES, pins.GUEST_SUITE, pins.HOST_TOOLS_WITHOUT)
        unpack(store.fetch(files, "tools for the host"), place, progress, "unpacking tools for the host")
        store.clear()
        make_scripts(place)

    return HostTools(cache.obtain("host-tools", hashlib.sha256(recipe.encode()).hexdigest()[:16], build, progress))


def make_scripts(root: Path) -> None:
    """Make a script for each program of the tools' packages, unpacked below `root`."""
    bin_folder = root / "bin"
    bin_folder.mkdir()
    word = f'--preload "$root/{LIBRARIES}/umad2sim/libumad2sim.so${{VHCA_PRELOAD:+:$VHCA_PRELOAD}}"'
    for folder in _FOLDERS:
        for path in sorted((root / folder).iterdir()):
            if not path.is_file() or not path.name.startswith(_NAMES) or path.name.startswith(_NOT):
                continue
            head = path.read_bytes()[:64]
            target = bin_folder / path.name
            name = str(path.relative_to(root))
            if head.startswith(b"\x7fELF"):
                text = _PROGRAM.replace("PRELOAD ", "" if path.name in _ALONE else f"{word} ").replace("PROGRAM", name)
            elif b"perl" in head.partition(b"\n")[0]:
                paths = ":".join(f"$root/usr/{folder}" for folder in _PERL)
                text = _PERL_PROGRAM.replace("PROGRAM", name).replace("PATHS", paths)
            elif path.name == "ibstatus":
                (root / "ibstatus.sh").write_text(
                    path.read_text().replace('="/sys/class/infiniband"', '="$VHCA_SYSFS"')
                )
                text = _STATUS
            elif b"/sh" in head.partition(b"\n")[0]:
                text = path.read_text().replace("/usr/sbin", "${0%/*}")
            else:
                continue
            target.write_text(text.replace("LIBRARIES", LIBRARIES))
            target.chmod(0o755)
    limits = root / "usr/share/perl5/IBswcountlimits.pm"
    limits.write_text(limits.read_text().replace('"/var/cache/infiniband-diags"', "$ENV{VHCA_SCRATCH}"))


def remove_left_sysfs(folder: Path) -> None:
    """Remove the trees that the library made below `folder` for processes that are gone without clearing them away."""
    for path in folder.glob("sys-*"):
        number = path.name.removeprefix("sys-")
        inside = [entry.name for entry in path.iterdir()] if path.is_dir() and not path.is_symlink() else []
        if number.isdecimal() and inside == ["sys"] and not Path("/proc", number).exists():
            shutil.rmtree(path, ignore_errors=True)
