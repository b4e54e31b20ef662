"""Package sets: what takes several packages, or modules of the kernel beside them, under one name.

A name of a set may stand wherever that of a Debian package may. No package of the archive has such a name, but gdb and
trace-cmd, which are in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vhca.lab.errors import PackageError


@dataclass(slots=True, frozen=True)
class PackageSet:
    """What a set stands for.

    :ivar what: what it is for, for people.
    :ivar packages: of Debian.
    :ivar modules: of the kernel.
    :ivar brings: beginnings of the names of packages that guests go without else, and that these need.
    :ivar tool: is it a program of the trade, which `--tools` takes?
    """

    what: str
    packages: tuple[str, ...]
    modules: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    tool: bool = False


SETS: Final = {
    "ucx": PackageSet("UCX: ucx_info, ucx_perftest", ("ucx-utils",)),
    "libfabric": PackageSet("libfabric: fi_info, fi_pingpong and its other programs", ("libfabric-bin",)),
    "mpi": PackageSet("Open MPI over UCX and libfabric, and mpi4py", ("openmpi-bin", "python3-mpi4py")),
    "storage": PackageSet(
        "NFS over RDMA, NVMe over Fabrics, iSER and SRP: programs and modules of client and server",
        ("keyutils", "nfs-common", "nfs-kernel-server", "nvme-cli", "open-iscsi", "srptools"),
        ("rpcrdma", "nfsd", "nfsv4"),
    ),
    "gdb": PackageSet("the debugger, for programs", ("gdb",), tool=True),
    "perf": PackageSet("perf, of the suite's own kernel", ("linux-perf",), brings=("libperl",), tool=True),
    "trace-cmd": PackageSet("ftrace by commands", ("trace-cmd",), tool=True),
    "bpftrace": PackageSet("probes by one line of a script", ("bpftrace",), brings=("libz3-",), tool=True),
}
TOOLS: Final = tuple(name for name, one in SETS.items() if one.tool)


def packages_of(names: Iterable[str]) -> list[str]:
    """The Debian packages that these names of packages and sets mean."""
    return [package for name in names for package in (SETS[name].packages if name in SETS else (name,))]


def modules_of(names: Iterable[str]) -> list[str]:
    """The modules of the kernel that sets among these names bring."""
    return [module for name in names if name in SETS for module in SETS[name].modules]


def brought_by(names: Iterable[str]) -> tuple[str, ...]:
    """Beginnings of the names of packages that must come with these, whatever guests go without."""
    return tuple(beginning for name in names if name in SETS for beginning in SETS[name].brings)


def tools(text: str) -> list[str]:
    """Names of programs of the trade, joined by commas; `PackageError` if one is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TOOLS]:
        raise PackageError(f"there is no tool {', '.join(unknown)}", f"there are {', '.join(TOOLS)}; else: --package")
    return names


def rows() -> Sequence[tuple[str, str, str, str]]:
    """Name, packages, modules and purpose of each set, for a table."""
    return [(name, " ".join(one.packages), " ".join(one.modules) or "-", one.what) for name, one in SETS.items()]
