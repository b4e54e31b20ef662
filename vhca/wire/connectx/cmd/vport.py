"""Commands about ports: HCA and NIC virtual ports, their tables and counters."""

from vhca.layout import bits, sub
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.vport import HcaVportContext


class QueryVportStateIn(CmdIn, size=0x10):
    """QUERY_VPORT_STATE input."""

    other_vport: int = bits(0x008, 31)
    vport_number: int = bits(0x008, 15, 0)


class QueryVportStateOut(CmdOut, size=0x10):
    """QUERY_VPORT_STATE output."""

    admin_state: int = bits(0x00C, 7, 4)
    state: int = bits(0x00C, 3, 0)


class QueryHcaVportContextIn(CmdIn, size=0x10):
    """QUERY_HCA_VPORT_CONTEXT input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)


class QueryHcaVportContextOut(CmdOut, size=0x210):
    """QUERY_HCA_VPORT_CONTEXT output."""

    hca_vport_context: HcaVportContext = sub(0x010, HcaVportContext)


class QueryHcaVportGidIn(CmdIn, size=0x10):
    """QUERY_HCA_VPORT_GID input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)
    gid_index: int = bits(0x00C, 15, 0)


class QueryHcaVportGidOut(CmdOut, size=0x10):
    """QUERY_HCA_VPORT_GID output; a GID list follows."""

    gids_num: int = bits(0x00C, 31, 16)


class QueryHcaVportPkeyIn(CmdIn, size=0x10):
    """QUERY_HCA_VPORT_PKEY input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)
    pkey_index: int = bits(0x00C, 15, 0)


class QueryHcaVportPkeyOut(CmdOut, size=0x10):
    """QUERY_HCA_VPORT_PKEY output; P_Keys follow, 4 bytes each, the key in the low 16 bits."""
