"""The subnet management agent of a node: attributes as rows, each with how it is read and how it is written.

Cards and switches build theirs on it. What is here is the same for both: versions, methods, what an unknown attribute
gets, the form of answers, and what a port takes from a Set(PortInfo) (14.2.5.6 of volume 1).
"""

from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

from vhca.management.refusal import response_method
from vhca.management.subnet import apply_link_settings, link_settings_valid, may_move
from vhca.wire import mad as madwire
from vhca.wire import smp as smpwire
from vhca.wire.mad import Smp
from vhca.wire.packet import MULTICAST_LID_FIRST, PERMISSIVE_LID
from vhca.wire.smp import PortInfo

P = TypeVar("P")

Reader = Callable[[P, int, int], bytes | None]
"""Port of arrival, modifier and the asker's M_Key; gives 64 bytes, None if the modifier names nothing."""
Writer = Callable[[P, int, bytes], int]
"""Port of arrival, modifier and data; gives a MAD status."""
Done = tuple[int, bytes]
"""Status, without the direction bit, and data of an answer."""

ZEROS: Final = bytes(64)
_OK: Final = madwire.STATUS_OK


class SubnetAgent(Generic[P]):
    """Agent of one node, whose ports are of type `P`.

    :ivar readers: by attribute. :ivar writers: by attribute; each checks everything before it changes anything.
    """

    def __init__(self) -> None:
        self.readers: dict[int, Reader[P]] = {}
        self.writers: dict[int, Writer[P]] = {}

    def unknown(self, attribute: int) -> None:
        """A request asked for an attribute that the node does not have."""

    def respond(self, port: P, request: Smp) -> int:
        """Carry out a request, and make it its own response; gives the status without the direction bit."""
        method = request.method
        if request.base_version != madwire.BASE_VERSION or request.class_version != 1:
            status = madwire.STATUS_BAD_VERSION
        elif method not in (madwire.METHOD_GET, madwire.METHOD_SET):
            status = madwire.STATUS_UNSUPPORTED_METHOD
        else:
            status, request.data = self.execute(
                port, method, request.attr_id, request.attr_mod, request.mkey, request.data
            )
        directed = request.mgmt_class == madwire.CLASS_SUBN_DR
        request.method = response_method(method)
        request.status = status | (madwire.STATUS_DIRECTION if directed else 0)
        return status

    def execute(self, port: P, method: int, attribute: int, modifier: int, mkey: int, data: bytes) -> Done:
        """Carry out a Get or a Set of 64 bytes of data, by an asker with this M_Key."""
        reader = self.readers.get(attribute)
        if reader is None:
            self.unknown(attribute)
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE, data
        if method == madwire.METHOD_GET:
            found = reader(port, modifier, mkey)
            return (madwire.STATUS_INVALID_FIELD, ZEROS) if found is None else (_OK, found)
        writer = self.writers.get(attribute)
        if writer is None:
            # Both are known, but not together (13.4.7).
            return madwire.STATUS_UNSUPPORTED_ATTRIBUTE, data
        status = writer(port, modifier, data)
        if status:
            return status, data
        found = self.shown(port, attribute, modifier, mkey, data)
        return (madwire.STATUS_INVALID_FIELD, data) if found is None else (_OK, found)

    def shown(self, port: P, attribute: int, modifier: int, mkey: int, data: bytes) -> bytes | None:
        """What the answer to a Set that was carried out has: what a Get has now."""
        return self.readers[attribute](port, modifier, mkey)


def settings_valid(info: PortInfo, wanted: PortInfo, attr_mod: int) -> bool:
    """Tell whether what a Set(PortInfo) wants of link and states is legal now, for a port with a link."""
    return (
        link_settings_valid(info, wanted, attr_mod)
        and wanted.neighbor_mtu <= info.mtu_cap
        and wanted.operational_vls <= info.vl_cap
        and wanted.port_state <= smpwire.PORT_ACTIVE
        and may_move(info.port_state, wanted.port_state)
        and wanted.port_physical_state <= smpwire.PHYS_DISABLED
        and (not wanted.port_physical_state or wanted.port_state in (smpwire.PORT_NOP, smpwire.PORT_DOWN))
    )


def _unicast(lid: int) -> bool:
    return 0 < lid < MULTICAST_LID_FIRST


def end_port_settings_valid(info: PortInfo, wanted: PortInfo, attr_mod: int) -> bool:
    """Tell whether all fields of a Set(PortInfo) of an end port are legal now; one that is not refuses the whole."""
    return (
        _unicast(wanted.lid)
        and (_unicast(wanted.sm_lid) or wanted.sm_lid == PERMISSIVE_LID)
        and settings_valid(info, wanted, attr_mod)
        and wanted.link_down_default_state <= smpwire.PHYS_POLLING
    )


def apply_end_port(info: PortInfo, wanted: PortInfo, attr_mod: int) -> None:
    """Copy the fields of an end port that a manager may write; zero means "no change" where the book says so."""
    for name in (
        "mkey",
        "gid_prefix",
        "lid",
        "sm_lid",
        "mkey_lease_period",
        "mkey_protect_bits",
        "lmc",
        "sm_sl",
        "vl_high_limit",
        "subnet_timeout",
        "local_phy_errors",
        "overrun_errors",
    ):
        setattr(info, name, getattr(wanted, name))
    for name in ("link_down_default_state", "neighbor_mtu", "operational_vls"):
        if getattr(wanted, name):
            setattr(info, name, getattr(wanted, name))
    apply_link_settings(info, wanted, attr_mod)
    for name in ("mkey_violations", "pkey_violations", "qkey_violations"):
        # Writing 0 resets a counter, other values are ignored.
        if not getattr(wanted, name):
            setattr(info, name, 0)


LinkOrder = Literal["disable", "poll", "down", "move", "nothing"]


def link_order(now: int, wanted: PortInfo) -> LinkOrder:
    """What a legal Set(PortInfo) orders of a link whose PortState is `now`."""
    if wanted.port_physical_state in (smpwire.PHYS_SLEEP, smpwire.PHYS_DISABLED):
        return "disable"
    if wanted.port_physical_state == smpwire.PHYS_POLLING:
        return "poll"
    if wanted.port_state == smpwire.PORT_DOWN:
        return "down"
    if wanted.port_state >= smpwire.PORT_ARMED and wanted.port_state != now:
        return "move"
    return "nothing"


def pack_sl_to_vl(table: bytes | list[int]) -> bytes:
    """SLtoVLMappingTable: the lanes of 16 service levels, as attribute data."""
    return bytes(table[sl] << 4 | table[sl + 1] for sl in range(0, 16, 2)).ljust(64, b"\0")


def unpack_sl_to_vl(data: bytes) -> list[int]:
    """The lanes of 16 service levels from attribute data."""
    return [nibble for byte in data[:8] for nibble in (byte >> 4, byte & 15)]
