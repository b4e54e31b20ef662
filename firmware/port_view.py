"""A port as the rest of the firmware sees it: the management agent's state, in the words of transport and commands.

The subnet management agent owns the port. What every packet needs is kept here as plain attributes, a copy that
:meth:`PortView.refresh` renews after everything that may change the port.
"""

from collections.abc import Callable, Sequence
from typing import Final

from firmware.mads.port import ManagedPort
from vhca.management.performance import PortCounters
from vhca.wire.mad import TRAP_BAD_PKEY, TRAP_BAD_QKEY
from vhca.wire.packet import Packet
from vhca.wire.smp import PORT_ACTIVE

VIOLATIONS_MAX: Final = 0xFFFF
NO_LANE: Final = 0xFF


class PortView:
    """View of one port; see :class:`firmware.model.port.Port`.

    :ivar lid: base LID, 0 while unassigned. :ivar lmc: LID mask control. :ivar sm_lid: LID of the subnet manager.
    :ivar active: True in PortState Active. :ivar mtu: neighbour MTU in bytes. :ivar pkeys: P_Key table, 0 marks an
    empty entry. :ivar gids: GID table, 16 bytes per entry. :ivar lanes: VL by service level, NO_LANE where there
    is none. :ivar counters: what performance management shows.
    :ivar violated: hears of each packet with a wrong key: port, trap, key, packet.
    """

    __slots__ = (
        "active",
        "admin_up",
        "counters",
        "gids",
        "lanes",
        "lid",
        "lmc",
        "managed",
        "mtu",
        "number",
        "pkeys",
        "sm_lid",
        "version",
        "violated",
    )

    def __init__(
        self,
        managed: ManagedPort,
        counters: PortCounters,
        violated: Callable[[int, int, int, Packet], None] | None = None,
    ) -> None:
        self.managed = managed
        self.counters = counters
        self.violated = violated
        self.number = managed.number
        # Whether the host wants the link (PAOS).
        self.admin_up = True
        self.version = 0
        self.refresh()

    def refresh(self) -> None:
        """Copy the agent's state."""
        self.version += 1
        managed = self.managed
        info = managed.info
        self.lid: int = info.lid
        self.lmc: int = info.lmc
        self.sm_lid: int = info.sm_lid
        self.active: bool = info.port_state == PORT_ACTIVE
        self.mtu: int = managed.mtu_bytes
        self.pkeys: Sequence[int] = managed.pkeys
        operational = managed.data_lanes
        self.lanes: bytes = bytes(lane if lane < operational else NO_LANE for lane in managed.lanes)
        self.gids: Sequence[bytes] = [managed.gid(index) for index in range(len(managed.guids))]

    def pkey_violation(self, packet: Packet) -> None:
        """See :class:`firmware.model.port.Port`: PortInfo.P_KeyViolations, which stays at its largest value."""
        info = self.managed.info
        info.pkey_violations = min(info.pkey_violations + 1, VIOLATIONS_MAX)
        if self.violated is not None:
            self.violated(self.number, TRAP_BAD_PKEY, packet.pkey, packet)

    def qkey_violation(self, packet: Packet) -> None:
        """See :class:`firmware.model.port.Port`: PortInfo.Q_KeyViolations, which stays at its largest value."""
        info = self.managed.info
        info.qkey_violations = min(info.qkey_violations + 1, VIOLATIONS_MAX)
        if self.violated is not None:
            self.violated(self.number, TRAP_BAD_QKEY, packet.qkey, packet)

    @property
    def guid(self) -> int:
        """Port GUID."""
        return self.managed.guid

    @property
    def sm_sl(self) -> int:
        """Service level towards the subnet manager."""
        return self.managed.info.sm_sl

    @property
    def subnet_timeout(self) -> int:
        """Exponent of the subnet's time constant, 4.096 us * 2**n."""
        return self.managed.info.subnet_timeout

    @property
    def capability_mask(self) -> int:
        """PortInfo.CapabilityMask."""
        return self.managed.info.capability_mask

    @property
    def logical_state(self) -> int:
        """PortState: 1 down, 2 initialize, 3 armed, 4 active."""
        return self.managed.info.port_state

    @property
    def physical_state(self) -> int:
        """PortPhysicalState: 5 is LinkUp."""
        return self.managed.info.port_physical_state
