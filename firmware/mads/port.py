"""What a port remembers for its manager: addresses, keys, tables and the link state machine.

Assumes that :mod:`firmware.mads.sma` has checked what a manager wants to set. Guarantees that the state only moves
along the edges of the link state machine (7.2 of volume 1): Down, Initialize, Armed, Active.
"""

from dataclasses import dataclass
from typing import Final

from vhca.hw.identity import MTU_BYTES
from vhca.management.link_speed import USUAL, LinkSpeed
from vhca.management.partitions import default_table
from vhca.management.port_state import END_PORT_CAPABILITIES, PortState, first_port_info
from vhca.wire import smp
from vhca.wire.connectx.eqe import PortChangeSubtype

# What the driver finds in the capability pkey_table_size, too: 128 << 0.
PARTITION_CAP: Final = 128
GUID_CAP: Final = 8
FIRST_PKEYS: Final = default_table(PARTITION_CAP)

# Sub types of the port change event as the driver gets them.
EVENT_DOWN: Final = int(PortChangeSubtype.DOWN)
EVENT_ACTIVE: Final = int(PortChangeSubtype.ACTIVE)
EVENT_INITIALIZED: Final = int(PortChangeSubtype.INITIALIZED)
EVENT_LID: Final = int(PortChangeSubtype.LID)
EVENT_PKEY: Final = int(PortChangeSubtype.PKEY)
EVENT_GUID: Final = int(PortChangeSubtype.GUID)
EVENT_CLIENT_REREGISTER: Final = int(PortChangeSubtype.CLIENT_REREG)

DEFAULT_CAPABILITY_MASK: Final = (
    END_PORT_CAPABILITIES | smp.CAP_CAPABILITY_MASK_NOTICE | smp.CAP_OTHER_LOCAL_CHANGES_NOTICE
)


@dataclass(frozen=True, slots=True)
class PortEvent:
    """The driver must hear about `port`: a port change event of sub type `subtype` (EVENT_*)."""

    port: int
    subtype: int


class ManagedPort(PortState):
    """One port of the card as management sees it; `info` is its PortInfo, `guids[0]` its port GUID.

    `mtu`: the largest that it can have, in bytes; `link`: what it trains at.
    """

    def __init__(self, number: int, guid: int, mtu: int = MTU_BYTES, link: LinkSpeed = USUAL) -> None:
        self._mtu_cap = smp.mtu_code(mtu)
        # Plain values: what the board gave is shared with nobody.
        self._width, self._speed = link.width, link.speed
        self.number = number
        self.cable_up = False
        self.forget(guid)

    def forget(self, guid: int) -> None:
        """Be as at power-on, but for the cable."""
        info = first_port_info(
            self.number,
            mtu_code=self._mtu_cap,
            gid_prefix=smp.DEFAULT_GID_PREFIX,
            capability_mask=DEFAULT_CAPABILITY_MASK,
            guid_cap=GUID_CAP,
        )
        super().__init__(self.number, info, FIRST_PKEYS, (guid, *[0] * (GUID_CAP - 1)))
        self.set_speed(LinkSpeed(self._width, self._speed))
        # Whether the host wrote here what is a manager's to write (MAD_IFC).
        self.host_wrote = False
        # An order to the owner: take the link down, and let it train again unless the port is disabled.
        self.retrain = False

    @property
    def guid(self) -> int:
        """Port GUID, EUI-64."""
        return self.guids[0]

    @property
    def lid(self) -> int:
        """Base LID, 0 before a manager assigned one."""
        return self.info.lid

    @property
    def lmc(self) -> int:
        """Number of low LID bits that this port ignores."""
        return self.info.lmc

    @property
    def sm_lid(self) -> int:
        """LID of the master subnet manager, 0 if none has been here."""
        return self.info.sm_lid

    @property
    def state(self) -> int:
        """PORT_DOWN, PORT_INIT, PORT_ARMED or PORT_ACTIVE."""
        return self.info.port_state

    @property
    def gid_prefix(self) -> int:
        """Subnet prefix."""
        return self.info.gid_prefix

    @property
    def mtu_bytes(self) -> int:
        """Active MTU in bytes."""
        return smp.mtu_bytes(self.info.neighbor_mtu)

    def gid(self, index: int) -> bytes:
        """GID `index` (0..GUID_CAP-1), 16 bytes."""
        return self.info.gid_prefix.to_bytes(8, "big") + self.guids[index].to_bytes(8, "big")

    def set_cable(self, up: bool) -> list[PortEvent]:
        """The cable was plugged or pulled; training ends at once."""
        if up == self.cable_up:
            return []
        self.cable_up = up
        return self._train() if up else self._fall()

    def poll(self) -> list[PortEvent]:
        """Look for a partner, after :meth:`disable` or anew: the link goes down and trains again."""
        self.disabled = False
        return self.bounce()

    def disable(self) -> list[PortEvent]:
        """Take the link down until :meth:`poll` or :meth:`power_cycled`."""
        self.disabled = True
        return self.bounce()

    def bounce(self) -> list[PortEvent]:
        """Take the link down; it trains again if it may and there is a partner."""
        self.retrain = True
        return self._fall()

    def power_cycled(self) -> None:
        """The card or its machine was reset: nothing is left of what a manager had disabled."""
        if self.disabled:
            self.disabled = False
            self._fall()

    def move(self, state: int) -> list[PortEvent]:
        """Armed or Active, where the state machine allows it; the caller has checked that."""
        self.info.port_state = state
        return [PortEvent(self.number, EVENT_ACTIVE)] if state == smp.PORT_ACTIVE else []

    def _fall(self) -> list[PortEvent]:
        info = self.info
        info.port_physical_state = smp.PHYS_DISABLED if self.disabled else smp.PHYS_POLLING
        if info.port_state == smp.PORT_DOWN:
            return []
        info.port_state = smp.PORT_DOWN
        return [PortEvent(self.number, EVENT_DOWN)]

    def _train(self) -> list[PortEvent]:
        if not self.cable_up or self.disabled:
            self.info.port_physical_state = smp.PHYS_DISABLED if self.disabled else smp.PHYS_POLLING
            return []
        self.info.port_physical_state = smp.PHYS_LINK_UP
        self.info.port_state = smp.PORT_INIT
        return [PortEvent(self.number, EVENT_INITIALIZED)]
