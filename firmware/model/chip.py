"""What one chip has, however many PCI functions it shows: its identity, memory and ports, and what runs at them.

Nothing here is touched by the reset of a function; what a function has is in :mod:`firmware.model.hca`.
"""

from firmware.model.management import Management, NoManagement
from firmware.model.port import Port
from firmware.model.timers import TimerHeap
from vhca.hw.hardware import BoardInfo, Hardware
from vhca.hw.memory import Memory


class Chip:
    """The chip of one card.

    :ivar ports: by number; one mapping for the chip's life, which its owner changes in place.
    :ivar timers: of the ports; they outlive a reset of any function.
    :ivar management: the agents behind QP0 and QP1 of the ports.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.info: BoardInfo = hardware.info
        self.memory: Memory = hardware.device_memory
        self.ports: dict[int, Port] = {}
        self.timers = TimerHeap()
        self.management: Management = NoManagement()
