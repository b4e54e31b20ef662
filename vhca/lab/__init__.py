"""The bench: packages, kernels, guest image, QEMU, agent, and the lab that joins them.  See :class:`Lab`."""

from vhca.lab.agent_process import Process
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import CommandFailed, CommandTimeout, Completed, GuestError, KernelPanic, LabError
from vhca.lab.kernel_log import Report
from vhca.lab.lab import Guest, Lab
from vhca.lab.prepare import Prepared, prepare

__all__ = [
    "Cache",
    "CommandFailed",
    "CommandTimeout",
    "Completed",
    "Guest",
    "GuestError",
    "KernelPanic",
    "Lab",
    "LabError",
    "Prepared",
    "Process",
    "Progress",
    "Report",
    "prepare",
]
