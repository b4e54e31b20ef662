"""Commands about ports: HCA and NIC virtual ports, their tables and counters."""

from vhca.layout import bits, sub
from vhca.wire.connectx.cmd.common import CmdIn, CmdOut
from vhca.wire.connectx.vport import HcaVportContext, NicVportContext, RoceAddrLayout, TrafficCounter


class QueryVportStateIn(CmdIn, size=0x10):
    """QUERY_VPORT_STATE input."""

    other_vport: int = bits(0x008, 31)
    vport_number: int = bits(0x008, 15, 0)


class QueryVportStateOut(CmdOut, size=0x10):
    """QUERY_VPORT_STATE output."""

    admin_state: int = bits(0x00C, 7, 4)
    state: int = bits(0x00C, 3, 0)


class ModifyVportStateIn(CmdIn, size=0x10):
    """MODIFY_VPORT_STATE input."""

    other_vport: int = bits(0x008, 31)
    vport_number: int = bits(0x008, 15, 0)
    ingress_connect: int = bits(0x00C, 15)
    egress_connect: int = bits(0x00C, 14)
    ingress_connect_valid: int = bits(0x00C, 13)
    egress_connect_valid: int = bits(0x00C, 12)
    admin_state: int = bits(0x00C, 7, 4)


class QueryHcaVportContextIn(CmdIn, size=0x10):
    """QUERY_HCA_VPORT_CONTEXT input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)


class QueryHcaVportContextOut(CmdOut, size=0x210):
    """QUERY_HCA_VPORT_CONTEXT output."""

    hca_vport_context: HcaVportContext = sub(0x010, HcaVportContext)


class ModifyHcaVportContextIn(CmdIn, size=0x210):
    """MODIFY_HCA_VPORT_CONTEXT input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)
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


class QueryVportCounterIn(CmdIn, size=0x20):
    """QUERY_VPORT_COUNTER input."""

    other_vport: int = bits(0x008, 31)
    port_num: int = bits(0x008, 19, 16)
    vport_number: int = bits(0x008, 15, 0)
    clear: int = bits(0x018, 31)


class QueryVportCounterOut(CmdOut, size=0x210):
    """QUERY_VPORT_COUNTER output."""

    received_errors: TrafficCounter = sub(0x010, TrafficCounter)
    transmit_errors: TrafficCounter = sub(0x020, TrafficCounter)
    received_ib_unicast: TrafficCounter = sub(0x030, TrafficCounter)
    transmitted_ib_unicast: TrafficCounter = sub(0x040, TrafficCounter)
    received_ib_multicast: TrafficCounter = sub(0x050, TrafficCounter)
    transmitted_ib_multicast: TrafficCounter = sub(0x060, TrafficCounter)
    received_eth_broadcast: TrafficCounter = sub(0x070, TrafficCounter)
    transmitted_eth_broadcast: TrafficCounter = sub(0x080, TrafficCounter)
    received_eth_unicast: TrafficCounter = sub(0x090, TrafficCounter)
    transmitted_eth_unicast: TrafficCounter = sub(0x0A0, TrafficCounter)
    received_eth_multicast: TrafficCounter = sub(0x0B0, TrafficCounter)
    transmitted_eth_multicast: TrafficCounter = sub(0x0C0, TrafficCounter)
    local_loopback: TrafficCounter = sub(0x0D0, TrafficCounter)


class QueryNicVportContextIn(CmdIn, size=0x10):
    """QUERY_NIC_VPORT_CONTEXT input."""

    other_vport: int = bits(0x008, 31)
    vport_number: int = bits(0x008, 15, 0)
    allowed_list_type: int = bits(0x00C, 26, 24)


class QueryNicVportContextOut(CmdOut, size=0x110):
    """QUERY_NIC_VPORT_CONTEXT output."""

    nic_vport_context: NicVportContext = sub(0x010, NicVportContext)


class SetRoceAddressIn(CmdIn, size=0x30):
    """SET_ROCE_ADDRESS input."""

    roce_address_index: int = bits(0x008, 31, 16)
    vhca_port_num: int = bits(0x008, 3, 0)
    roce_address: RoceAddrLayout = sub(0x010, RoceAddrLayout)
