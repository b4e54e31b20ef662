"""Power-up: the entry point of the firmware image."""

from firmware.kernel import Kernel
from vhca.hw.hardware import Hardware


def power_up(hardware: Hardware) -> Kernel:
    """Boot this program on a board."""
    return Kernel(hardware)
