"""What the build of a kernel asks of the host: a compiler and make are the host's, the rest comes from packages.

Guarantees: nothing is installed; a program that the host has is the one that is used.
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

_PROGRAMS: Final = ("flex", "bison", "bc", "m4")
_LIBRARIES: Final = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
_RECIPE: Final = "1"  # part of the key: raise it when the code below makes something else of the packages
_SCRIPT: Final = """\
#!/bin/sh
here="${0%/*}/.."
export M4="$here/bin/m4" BISON_PKGDATADIR="$here/usr/share/bison"
export LD_LIBRARY_PATH="LIBRARIES${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/usr/bin/PROGRAM" "$@"
"""
_LIBELF: Final = "#include <gelf.h>\nint main(void) { return (int)elf_version(EV_CURRENT) - EV_CURRENT; }\n"


@dataclass(slots=True, frozen=True)
class BuildTools:
    """What to start `make` with: variables for its command line, and its environment; and who compiles."""

    compiler: str  # the first line of what it says of its version
    variables: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def find_build_tools(cache: Cache, progress: Progress) -> BuildTools:
    """The tools of a kernel's build, those that the host lacks fetched from packages.

    :raises LabError: the host has no compiler or no make.
    """
    if missing := [name for name in ("gcc", "make", "ld", "tar") if shutil.which(name) is None]:
        raise LabError(
            f"a kernel's build needs {', '.join(missing)}, which this host does not have",
            "apt install gcc make binutils tar (nothing else is needed: the rest is fetched into the cache)",
        )
    variables = ["CC=ccache gcc", "HOSTCC=ccache gcc"] if shutil.which("ccache") else []
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "KBUILD_BUILD_USER": "vhca", "KBUILD_BUILD_HOST": "vhca"}
    # The same tree gives the same kernel, and a compiler's cache finds what it has compiled before.
    environment["KBUILD_BUILD_TIMESTAMP"] = "1970-01-01"
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARCH", "CROSS_COMPILE", "KBUILD_OUTPUT"):
        environment.pop(name, None)  # of a make that runs us, or of somebody's other work
    lacks_libelf = not _has_libelf()
    if lacks_libelf or any(shutil.which(name) is None for name in _PROGRAMS):
        root = _packages(cache, progress)
        environment["PATH"] = f"{environment.get('PATH', os.defpath)}{os.pathsep}{root / 'bin'}"
        if lacks_libelf:
            places = [str(root / folder) for folder in _LIBRARIES]
            variables.append(f"HOSTCFLAGS=-I{root / 'usr/include'} -I{root / 'usr/include/x86_64-linux-gnu'}")
            variables.append(
                "HOSTLDFLAGS=" + " ".join([*(f"-L{place}" for place in places), f"-Wl,-rpath,{':'.join(places)}"])
            )
    return BuildTools(_version("gcc"), variables, environment)


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or not done.stdout:
        raise LabError(f"{compiler} cannot be run: {done.stderr.strip()}", "correct its installation")
    return done.stdout.splitlines()[0]


def _has_libelf() -> bool:
    """Can a program be linked with libelf here? objtool, a part of the kernel's build, is."""
    done = subprocess.run(
        ["gcc", "-x", "c", "-", "-lelf", "-o", os.devnull],
        input=_LIBELF,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode == 0


def _packages(cache: Cache, progress: Progress) -> Path:
    recipe = repr((_RECIPE, UNPACKED, pins.BUILD_PACKAGES, pins.BUILD_SUITE))

    def build(place: Path) -> None:
        store = PackageStore(cache, progress, "build-tools", (pins.BUILD_SUITE,), late=True)
        debs = store.fetch(store.plan_alone(pins.BUILD_PACKAGES), "tools of a kernel's build")
        unpack(debs, place, progress, "unpacking the build's tools")
        store.clear()
        make_scripts(place)

    return cache.obtain("build-tools", hashlib.sha256(recipe.encode()).hexdigest()[:16], build, progress)


def make_scripts(root: Path) -> None:
    """Make a script in `bin` for each program, which starts it with the libraries and data that it came with."""
    folder = root / "bin"
    if folder.is_symlink():  # of a merged /usr
        folder.unlink()
    folder.mkdir(exist_ok=True)
    libraries = ":".join(f"$here/{place}" for place in _LIBRARIES)
    for name in _PROGRAMS:
        script = folder / name
        script.write_text(_SCRIPT.replace("LIBRARIES", libraries).replace("PROGRAM", name))
        script.chmod(0o755)
