"""The PCI function of a card: configuration space, capabilities, BARs.

:class:`PciFunction` joins them and has the shape of a device that a vfio-user server can drive; neither
package imports the other.
"""

from vhca.pci.capabilities import MsixCapability, PcieCapability, PowerManagementCapability
from vhca.pci.config import Bar, ConfigSpace, PciConfigError, Type0Header
from vhca.pci.function import BarHandler, PciFunction, Region, ResetReason
from vhca.pci.registers import Register, RegisterSpace

__all__ = [
    "Bar",
    "BarHandler",
    "ConfigSpace",
    "MsixCapability",
    "PciConfigError",
    "PciFunction",
    "PcieCapability",
    "PowerManagementCapability",
    "Region",
    "Register",
    "RegisterSpace",
    "ResetReason",
    "Type0Header",
]
