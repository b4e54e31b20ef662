"""A vfio-user server: the slot that a virtual PCI card is plugged into, out of the virtual machine's process.

Usable alone: the package knows nothing of the card. :class:`Server` listens on a unix socket for one
client at a time (QEMU's `vfio-user-pci` device, for example) and drives any object that has the
shape of :class:`Device`. docs/vfio-user.md shows how to write one.
"""

from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.device import Device, RegionInfo, ResetReason
from vhca.vfio_user.dma import DmaTable
from vhca.vfio_user.irqs import IrqTable
from vhca.vfio_user.loop import Loop
from vhca.vfio_user.server import Server, VfioUserError

__all__ = [
    "Device",
    "DmaTable",
    "IrqTable",
    "Loop",
    "RegionInfo",
    "ResetReason",
    "Server",
    "ServerCount",
    "VfioUserError",
]
