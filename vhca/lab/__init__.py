"""The bench: packages, kernels, guest image, QEMU, agent, and the lab that joins them.  See :class:`Lab`."""

from vhca.lab.agent_process import Process
from vhca.lab.cache import Cache, Progress
from vhca.lab.errors import CommandFailed, CommandTimeout, Completed, GuestError, LabError
from vhca.lab.lab import Guest, Lab
from vhca.lab.prepare import Prepared, prepare

__all__ = [
    "Cache",
    "CommandFailed",
    "CommandTimeout",
    "Completed",
    "Guest",
    "GuestError",
    "Lab",
    "LabError",
    "Prepared",
    "Process",
    "Progress",
    "prepare",
]
