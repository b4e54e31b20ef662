"""Guests with cards: packages, kernels, guest image, QEMU, agent, and the lab that joins them. See :class:`Lab`.

This is the library's door: what is named here is for everybody. Beside it are :mod:`vhca.lab.perftest` (programs
between two guests), :mod:`vhca.lab.packages` (Debian packages for a guest) and :mod:`vhca.lab.kernels` (what a name of
a kernel stands for); all other modules are the library's own.
"""

from vhca.chip.rack_config import CaptureConfig, CardConfig, RackConfig
from vhca.lab.agent_process import Process
from vhca.lab.cache import Cache, Progress
from vhca.lab.card_kinds import card_profile
from vhca.lab.devices import Hca, RackFactory, RackLike
from vhca.lab.errors import (
    CommandFailed,
    CommandTimeout,
    Completed,
    GuestError,
    KernelPanic,
    LabError,
    PackageError,
    last_lines,
    printable,
)
from vhca.lab.guest import Guest, GuestConfig
from vhca.lab.guest_system import guest_root
from vhca.lab.kernel_build import build_kernel
from vhca.lab.kernel_log import Report, kernel_log_trouble
from vhca.lab.lab import Lab
from vhca.lab.module_build import build_module
from vhca.lab.own_modules import OwnModule, own_module
from vhca.lab.pins import GUEST_SUITE
from vhca.lab.prepare import Prepared, prepare
from vhca.lab.table import aligned

__all__ = [
    "GUEST_SUITE",
    "Cache",
    "CaptureConfig",
    "CardConfig",
    "CommandFailed",
    "CommandTimeout",
    "Completed",
    "Guest",
    "GuestConfig",
    "GuestError",
    "Hca",
    "KernelPanic",
    "Lab",
    "LabError",
    "OwnModule",
    "PackageError",
    "Prepared",
    "Process",
    "Progress",
    "RackConfig",
    "RackFactory",
    "RackLike",
    "Report",
    "aligned",
    "build_kernel",
    "build_module",
    "card_profile",
    "guest_root",
    "kernel_log_trouble",
    "last_lines",
    "own_module",
    "prepare",
    "printable",
]
