"""Builds a module of somebody's own against a kernel of which the build folder is there.

That is a kernel that was built here (:mod:`vhca.lab.kernel_build`), a build tree, or an installed kernel whose headers
are where its `build` link leads. Assumes a compiler and make; runs the Makefiles of the kernel and of the module.
"""

from __future__ import annotations

import os
from pathlib import Path

from vhca.lab.build_tools import find_build_tools
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import LabError
from vhca.lab.kernel_build import run_make
from vhca.lab.kernels import Kernel

_HEADERS = Path("/usr/src")
"""Where Debian installs headers."""


def build_folder(kernel: Kernel) -> Path:
    """What a module of this kernel is built against; `LabError` if it is not there."""
    places = [_HEADERS / f"linux-headers-{kernel.release}"]
    if kernel.order is not None:
        places = [kernel.order.parent, kernel.order.parent / "build", *places]
    for place in places:
        if (place / "Makefile").exists() and (place / "include/config/kernel.release").exists():
            return place.resolve()
    raise LabError(
        f"nothing is here to build a module for {kernel.release} against ({kernel.origin})",
        f"build the kernel here (vhca build --source TREE; again, if its folder was cleared away), or install"
        f" linux-headers-{kernel.release}",
    )


def build_module(folder: str | Path, kernel: Kernel, cache: Cache, progress: Progress) -> list[Path]:
    """Build the modules of a folder with a Kbuild file or Makefile, in that folder; the .ko files.

    :raises LabError: something is missing, or the build failed; with the compiler's words.
    """
    place = Path(folder).expanduser().resolve()
    if not any((place / name).exists() for name in ("Kbuild", "Makefile")):
        raise LabError(f"{place} has no Kbuild and no Makefile", "write one: echo 'obj-m := NAME.o' > Kbuild")
    against = build_folder(kernel)
    tools = find_build_tools(cache, progress)
    progress.step(f"building the modules of {place} for {kernel.release}")
    command = ["make", "-C", str(against), f"M={place}", f"-j{os.cpu_count() or 1}"]
    # what made an installed kernel may not be here; its headers say so, and take another one
    command += [*([] if any(v.startswith("CC=") for v in tools.variables) else ["CC=gcc"]), *tools.variables, "modules"]
    run_make(command, tools.environment, place / "build.log")
    # older kernels list the modules themselves, newer ones their objects
    found = [place / Path(line).with_suffix(".ko") for line in (place / "modules.order").read_text().split()]
    if missing := [path for path in found if not path.exists()]:
        raise LabError(f"make left no {missing[0]}", f"see {place / 'build.log'}")
    return found
