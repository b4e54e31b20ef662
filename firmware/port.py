"""A port as the rest of the firmware sees it: the management agent's state, in the words of transport and commands.

The subnet management agent owns the port; everything here is read from it at each use, because a subnet manager may
change it at any time.
"""

from collections.abc import Sequence

from firmware.mads.port import Port as ManagedPort
from vhca.wire.smp import PORT_ACTIVE


class Port:
    """View of one port; see :class:`firmware.transport.port.Port`."""

    __slots__ = ("_gid_source", "_gids", "managed", "number")

    def __init__(self, managed: ManagedPort) -> None:
        self.managed = managed
        self.number = managed.number
        self._gids: list[bytes] = []
        self._gid_source: tuple[int, tuple[int, ...]] | None = None

    @property
    def guid(self) -> int:
        """Port GUID."""
        return self.managed.guid

    @property
    def lid(self) -> int:
        """Base LID, 0 while unassigned."""
        return self.managed.info.lid

    @property
    def lmc(self) -> int:
        """LID mask control."""
        return self.managed.info.lmc

    @property
    def sm_lid(self) -> int:
        """LID of the master subnet manager."""
        return self.managed.info.sm_lid

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

    @property
    def active(self) -> bool:
        """True in PortState Active."""
        return self.managed.info.port_state == PORT_ACTIVE

    @property
    def pkeys(self) -> Sequence[int]:
        """P_Key table; 0 marks an empty entry."""
        return self.managed.pkeys

    @property
    def gids(self) -> Sequence[bytes]:
        """GID table, 16 bytes per entry."""
        managed = self.managed
        source = (managed.gid_prefix, tuple(managed.guids))
        if source != self._gid_source:
            self._gid_source = source
            self._gids = [managed.gid(index) for index in range(len(managed.guids))]
        return self._gids

    @property
    def mtu(self) -> int:
        """Neighbour MTU in bytes."""
        return self.managed.mtu_bytes
