"""Access registers: configuration and counters of the card reached with the ACCESS_REG command.

`register_data` of the command has the layout given here; `RegisterId` names them all, whether or not this
module has a layout for them.
"""

from enum import IntEnum
from typing import Final

from vhca.layout import Layout, bits, raw, u8, u32


class RegisterId(IntEnum):
    """Values of `AccessRegisterIn.register_id`."""

    QPTS = 0x4002
    QETCR = 0x4005
    QTCT = 0x400A
    QPDPM = 0x4013
    QCAM = 0x4019
    DCBX_PARAM = 0x4020
    DCBX_APP = 0x4021
    FPGA_CAP = 0x4022
    FPGA_CTRL = 0x4023
    FPGA_ACCESS_REG = 0x4024
    CORE_DUMP = 0x402E
    PCAP = 0x5001
    PMLP = 0x5002
    PMTU = 0x5003
    PTYS = 0x5004
    PAOS = 0x5006
    PFCC = 0x5007
    PPCNT = 0x5008
    PUDE = 0x5009
    PPTB = 0x500B
    PBMC = 0x500C
    PELC = 0x500E
    PVLC = 0x500F
    PMPE = 0x5010
    PMAOS = 0x5012
    PPLM = 0x5023
    PDDR = 0x5031
    PPHCR = 0x503E
    PCMR = 0x5041
    PCAM = 0x507F
    NODE_DESC = 0x6001
    HOST_ENDIANNESS = 0x7004
    MTCAP = 0x9009
    MTMP = 0x900A
    MCIA = 0x9014
    MNVDA = 0x9024
    MFRL = 0x9028
    MLCR = 0x902B
    MRTC = 0x902D
    MTRC_CAP = 0x9040
    MTRC_CONF = 0x9041
    MTRC_STDB = 0x9042
    MTRC_CTRL = 0x9043
    MPEIN = 0x9050
    MPCNT = 0x9051
    MTPPS = 0x9053
    MTPPSE = 0x9054
    MTUTC = 0x9055
    MPEGC = 0x9056
    MPIR = 0x9059
    MCQS = 0x9060
    MCQI = 0x9061
    MCC = 0x9062
    MCDA = 0x9063
    MCAM = 0x907F
    MSECQ = 0x9155
    MSEES = 0x9156
    MIRC = 0x9162
    MTPTM = 0x9180
    MTCTR = 0x9181
    MRTCQ = 0x9182
    SBPR = 0xB001
    SBCM = 0xB002
    SBCAM = 0xB01F
    RESOURCE_DUMP = 0xC000
    NIC_CAP = 0xC00D
    DTOR = 0xC00E
    VHCA_ICM_CTRL = 0xC010


class AccessRegisterMethod(IntEnum):
    """Values of `op_mod` of ACCESS_REG."""

    WRITE = 0
    READ = 1


class PtysReg(Layout, size=64):
    """PTYS: port type, speed and link width."""

    an_disable_admin: int = bits(0x000, 30)
    an_disable_cap: int = bits(0x000, 29)
    local_port: int = bits(0x000, 23, 16)
    plane_ind: int = bits(0x000, 7, 4)
    proto_mask: int = bits(0x000, 2, 0)
    an_status: int = bits(0x004, 31, 28)
    data_rate_oper: int = bits(0x004, 15, 0)
    ext_eth_proto_capability: int = u32(0x008)
    eth_proto_capability: int = u32(0x00C)
    ib_link_width_capability: int = bits(0x010, 31, 16)
    ib_proto_capability: int = bits(0x010, 15, 0)
    ext_eth_proto_admin: int = u32(0x014)
    eth_proto_admin: int = u32(0x018)
    ib_link_width_admin: int = bits(0x01C, 31, 16)
    ib_proto_admin: int = bits(0x01C, 15, 0)
    ext_eth_proto_oper: int = u32(0x020)
    eth_proto_oper: int = u32(0x024)
    ib_link_width_oper: int = bits(0x028, 31, 16)
    ib_proto_oper: int = bits(0x028, 15, 0)
    lane_rate_oper: int = bits(0x02C, 23, 4)
    connector_type: int = bits(0x02C, 3, 0)
    eth_proto_lp_advertise: int = u32(0x030)


class PmtuReg(Layout, size=16):
    """PMTU: port MTU, in bytes."""

    local_port: int = bits(0x000, 23, 16)
    max_mtu: int = bits(0x004, 31, 16)
    admin_mtu: int = bits(0x008, 31, 16)
    oper_mtu: int = bits(0x00C, 31, 16)


class PvlcReg(Layout, size=16):
    """PVLC: virtual lanes of the port."""

    local_port: int = bits(0x000, 23, 16)
    vl_hw_cap: int = bits(0x004, 3, 0)
    vl_admin: int = bits(0x008, 3, 0)
    vl_operational: int = bits(0x00C, 3, 0)


class PcapReg(Layout, size=20):
    """PCAP: port capability mask."""

    local_port: int = bits(0x000, 23, 16)
    port_capability_mask: bytes = raw(0x004, 16)


class PaosReg(Layout, size=16):
    """PAOS: administrative and operational state of the port."""

    swid: int = bits(0x000, 31, 24)
    local_port: int = bits(0x000, 23, 16)
    admin_status: int = bits(0x000, 11, 8)
    oper_status: int = bits(0x000, 3, 0)
    ase: int = bits(0x004, 31)
    ee: int = bits(0x004, 30)
    e: int = bits(0x004, 1, 0)


class HostEndianness(Layout, size=16):
    """HOST_ENDIANNESS: byte order of the host's doorbells; 0 is little-endian, 0x80 big-endian."""

    he: int = u8(0x000)


class NodeDescReg(Layout, size=64):
    """NODE_DESC: the NodeDescription attribute, UTF-8, padded with zeros."""

    node_description: bytes = raw(0x000, 64)


PPCNT_GROUP_IB_PORT: Final = 0x20
"""`PpcntReg.grp` of the InfiniBand port counters."""

PTYS_PROTO_IB: Final = 0x1
PTYS_PROTO_ETH: Final = 0x4
"""Bits of `PtysReg.proto_mask`."""
