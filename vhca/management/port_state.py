"""What any port remembers for its manager: PortInfo, and the tables beside it.

Of a card, a switch or a simulated host. Tables are values that are replaced as a whole, so that ports that nobody wrote
share them.
"""

from typing import Final

from vhca.management.link_speed import LinkSpeed
from vhca.management.mkey import MKeyGuard
from vhca.management.notices import Notices
from vhca.wire import smp
from vhca.wire.smp import PortInfo

DATA_VLS: Final = 4
VL_ARBITRATION_ENTRIES: Final = 2 * DATA_VLS
"""Of each of the two tables, low and high priority."""

LANES: Final = bytes(sl % DATA_VLS for sl in range(16))
"""SL to VL, until a manager writes it."""
EVEN: Final = b"".join(bytes((vl, 64)) for vl in range(DATA_VLS)) + bytes(2 * DATA_VLS)
"""(VL, weight) of an arbitration table in which every data VL gets the same share."""

END_PORT_CAPABILITIES: Final = (
    smp.CAP_NOTICE
    | smp.CAP_TRAP
    | smp.CAP_SL_MAPPING
    | smp.CAP_SYSTEM_IMAGE_GUID
    | smp.CAP_EXTENDED_SPEEDS
    | smp.CAP_MASK2
    | smp.CAP_CLIENT_REREGISTRATION
)
"""What the ports of all end nodes can do."""

_OPERATIONAL: Final = (0, 1, 2, 4, 8, 15)


def data_lanes(code: int) -> int:
    """How many data VLs the code of PortInfo:OperationalVLs stands for."""
    return _OPERATIONAL[code] if code < len(_OPERATIONAL) else 0


class PortState:
    """Port `number` of a node.

    :ivar info: its PortInfo, as a Get shows it but for the M_Key and the port of arrival.
    :ivar guard: checks M_Keys. :ivar notices: what it has to tell its manager.
    :ivar pkeys: its P_Key table. :ivar guids: entry 0 is the port GUID; those behind the end are 0.
    :ivar weights: VLArbitration, low and high priority. :ivar lanes: SL to VL of what the node itself sends here.
    :ivar ext_speed_enabled: MlnxExtPortInfo.LinkSpeedEnabled. :ivar ext_speed_active: its LinkSpeedActive.
    :ivar disabled: a manager took the link down for good.
    """

    __slots__ = (
        "_errors",
        "_good_seen",
        "disabled",
        "ext_speed_active",
        "ext_speed_enabled",
        "guard",
        "guids",
        "info",
        "lanes",
        "notices",
        "number",
        "pkeys",
        "telling_ns",
        "weights",
    )

    def __init__(
        self,
        number: int,
        info: PortInfo,
        pkeys: tuple[int, ...],
        guids: tuple[int, ...],
        guard: MKeyGuard | None = None,
    ) -> None:
        self.number = number
        self.info = info
        self.guard = guard if guard is not None else MKeyGuard(info)
        self.notices = Notices()
        self.pkeys = pkeys
        self.guids = guids
        self.lanes = LANES
        self.weights = (EVEN, EVEN)
        self.ext_speed_enabled = smp.SPEED_FDR10
        self.ext_speed_active = 0
        self.disabled = False
        # When its owner looks at the notices again, None if there is no need.
        self.telling_ns: int | None = None
        self._errors = self._good_seen = 0

    def damaged(self, count: int, good: int) -> bool:
        """So many packets came damaged, after `good` undamaged ones since power-on; True if the link lacks integrity.

        That is, if damaged packets are more than LocalPhyErrors, of which each good packet takes one away (7.12.2).
        """
        self._errors = max(0, self._errors - (good - self._good_seen)) + count
        self._good_seen = good
        if self._errors <= self.info.local_phy_errors:
            return False
        self._errors = 0
        return True

    def set_speed(self, speed: LinkSpeed) -> None:
        """What the link at this port runs at, once it is up."""
        speed.train(self.info)
        self.ext_speed_active = speed.vendors_code

    @property
    def data_lanes(self) -> int:
        """How many data VLs are operational."""
        return data_lanes(self.info.operational_vls)


def first_port_info(number: int, *, mtu_code: int = smp.MTU_4096, **fields: int) -> PortInfo:
    """PortInfo of port `number` at power-on, with what is of its own."""
    values = {
        "local_port_num": number,
        "port_state": smp.PORT_DOWN,
        "port_physical_state": smp.PHYS_POLLING,
        "link_down_default_state": smp.PHYS_POLLING,
        "neighbor_mtu": mtu_code,
        "mtu_cap": mtu_code,
        "vl_cap": smp.VL_CAP_4,
        "operational_vls": smp.VL_CAP_4,
        "vl_arbitration_high_cap": VL_ARBITRATION_ENTRIES,
        "vl_arbitration_low_cap": VL_ARBITRATION_ENTRIES,
        "subnet_timeout": 18,
        "resp_time_value": 16,
        "local_phy_errors": 15,
        "overrun_errors": 15,
    }
    return PortInfo(**{**values, **fields})
