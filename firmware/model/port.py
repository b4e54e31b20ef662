"""What engines and commands see of a port: addresses, tables and whether it is active.

They only read it, at each use, because a subnet manager may change it at any time.
"""

from collections.abc import Sequence
from typing import Protocol

from vhca.management.performance import PortCounters
from vhca.wire.packet import Packet


class Port(Protocol):
    """Addresses and state of one port; `gids` are 16 bytes each, `mtu` is in bytes."""

    @property
    def number(self) -> int:
        """From 1 on."""
        ...

    @property
    def version(self) -> int:
        """Another number whenever LIDs, P_Keys, GIDs, MTU or state may have changed."""
        ...

    @property
    def guid(self) -> int:
        """Port GUID."""
        ...

    @property
    def lid(self) -> int:
        """Base LID, 0 while unassigned."""
        ...

    @property
    def lmc(self) -> int:
        """LID mask control: the port answers to 2**lmc LIDs from `lid` on."""
        ...

    @property
    def sm_lid(self) -> int:
        """LID of the master subnet manager."""
        ...

    @property
    def pkeys(self) -> Sequence[int]:
        """P_Key table; 0 marks an empty entry."""
        ...

    @property
    def lanes(self) -> Sequence[int]:
        """The VL by which data of each service level leaves; more than 15 where it may not."""
        ...

    @property
    def gids(self) -> Sequence[bytes]:
        """GID table."""
        ...

    @property
    def active(self) -> bool:
        """True in PortState Active: only then packets other than SMPs pass."""
        ...

    @property
    def mtu(self) -> int:
        """Neighbour MTU in bytes."""
        ...

    @property
    def counters(self) -> PortCounters:
        """What monitors read of the port; the transport adds what it drops."""
        ...

    def pkey_violation(self, packet: Packet) -> None:
        """A packet with a P_Key that it must not have arrived (10.9.4): counted, and told to the manager."""
        ...

    def qkey_violation(self, packet: Packet) -> None:
        """A packet with a Q_Key that it must not have arrived (10.2.5): counted, and told to the manager."""
        ...

    @property
    def admin_up(self) -> bool:
        """Whether the host wants the link (PAOS)."""
        ...

    @property
    def sm_sl(self) -> int:
        """Service level towards the subnet manager."""
        ...

    @property
    def subnet_timeout(self) -> int:
        """Exponent of the subnet's time constant, 4.096 us * 2**n."""
        ...

    @property
    def capability_mask(self) -> int:
        """PortInfo.CapabilityMask."""
        ...

    @property
    def logical_state(self) -> int:
        """PortState: 1 down, 2 initialize, 3 armed, 4 active."""
        ...

    @property
    def physical_state(self) -> int:
        """PortPhysicalState: 5 is LinkUp."""
        ...
