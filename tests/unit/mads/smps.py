"""What a subnet manager sends, in one line."""

from vhca.hw.hardware import BoardInfo
from vhca.layout import Layout
from vhca.wire import mad as madwire
from vhca.wire.mad import Smp
from vhca.wire.smp import PortInfo

BOARD = BoardInfo(node_guid=0x1111, system_image_guid=0x2222, port_guids=(0xA1, 0xA2), node_description="card")


def smp(
    method: int, attr_id: int, modifier: int = 0, data: bytes | Layout = b"", *, mkey: int = 0, directed: bool = False
) -> bytes:
    """An SMP request; a directed one arrives over one hop."""
    return Smp(
        base_version=1,
        mgmt_class=madwire.CLASS_SUBN_DR if directed else madwire.CLASS_SUBN_LID,
        class_version=1,
        method=method,
        hop_pointer=1 if directed else 0,
        hop_count=1 if directed else 0,
        tid=0x77,
        attr_id=attr_id,
        attr_mod=modifier,
        mkey=mkey,
        dr_slid=0xFFFF if directed else 0,
        dr_dlid=0xFFFF if directed else 0,
        data=bytes(data).ljust(64, b"\0"),
    ).to_bytes()


def port_info(**fields: int) -> PortInfo:
    """A Set(PortInfo) that changes nothing but `fields`."""
    values: dict[str, int] = {"lid": 5, "sm_lid": 1, "gid_prefix": 0xFE80000000000000, "subnet_timeout": 18}
    return PortInfo(**(values | fields))
