"""The HCA's virtual port: identity and state of one port of the card as commands report it."""

from enum import IntEnum

from vhca.layout import Layout, bits, raw, u32, u64


class HcaVportContext(Layout, size=512):
    """Virtual port of an InfiniBand HCA (manual: hca_vport_context)."""

    field_select: int = u32(0x000)
    sm_virt_aware: int = bits(0x020, 31)
    has_smi: int = bits(0x020, 30)
    has_raw: int = bits(0x020, 29)
    grh_required: int = bits(0x020, 28)
    num_port_plane: int = bits(0x020, 23, 16)
    port_physical_state: int = bits(0x020, 15, 12)
    vport_state_policy: int = bits(0x020, 11, 8)
    port_state: int = bits(0x020, 7, 4)
    vport_state: int = bits(0x020, 3, 0)
    system_image_guid: int = u64(0x028)
    port_guid: int = u64(0x030)
    node_guid: int = u64(0x038)
    cap_mask1: int = u32(0x040)
    cap_mask1_field_select: int = u32(0x044)
    cap_mask2: int = u32(0x048)
    cap_mask2_field_select: int = u32(0x04C)
    lid: int = bits(0x060, 31, 16)
    init_type_reply: int = bits(0x060, 11, 8)
    lmc: int = bits(0x060, 7, 5)
    subnet_timeout: int = bits(0x060, 4, 0)
    sm_lid: int = bits(0x064, 31, 16)
    sm_sl: int = bits(0x064, 15, 12)
    qkey_violation_counter: int = bits(0x068, 31, 16)
    pkey_violation_counter: int = bits(0x068, 15, 0)


class NicVportContext(Layout, size=256):
    """Virtual port of an Ethernet card (manual: nic_vport_context); the MAC list follows."""

    min_wqe_inline_mode: int = bits(0x000, 26, 24)
    disable_mc_local_lb: int = bits(0x000, 2)
    disable_uc_local_lb: int = bits(0x000, 1)
    roce_en: int = bits(0x000, 0)
    arm_change_event: int = bits(0x004, 31)
    event_on_mtu: int = bits(0x004, 4)
    event_on_promisc_change: int = bits(0x004, 3)
    event_on_vlan_change: int = bits(0x004, 2)
    event_on_mc_address_change: int = bits(0x004, 1)
    event_on_uc_address_change: int = bits(0x004, 0)
    vhca_id_type: int = bits(0x008, 31)
    affiliation_criteria: int = bits(0x008, 19, 16)
    affiliated_vhca_id: int = bits(0x008, 15, 0)
    sd_group: int = bits(0x020, 30, 28)
    mtu: int = bits(0x024, 15, 0)
    system_image_guid: int = u64(0x028)
    port_guid: int = u64(0x030)
    node_guid: int = u64(0x038)
    qkey_violation_counter: int = bits(0x068, 31, 16)
    promisc_uc: int = bits(0x0F0, 31)
    promisc_mc: int = bits(0x0F0, 30)
    promisc_all: int = bits(0x0F0, 29)
    allowed_list_type: int = bits(0x0F0, 26, 24)
    allowed_list_size: int = bits(0x0F0, 11, 0)
    permanent_address: int = u64(0x0F4)


class RoceAddrLayout(Layout, size=32):
    """One entry of the RoCE address table (manual: roce_addr_layout)."""

    source_l3_address: bytes = raw(0x000, 16)
    vlan_valid: int = bits(0x010, 28)
    vlan_id: int = bits(0x010, 27, 16)
    source_mac_47_32: int = bits(0x010, 15, 0)
    source_mac_31_0: int = u32(0x014)
    roce_l3_type: int = bits(0x018, 11, 8)
    roce_version: int = bits(0x018, 7, 0)


class TrafficCounter(Layout, size=16):
    """Packets and bytes of one kind of traffic (manual: traffic_counter)."""

    packets: int = u64(0x000)
    octets: int = u64(0x008)


class HcaVportField(IntEnum):
    """Bit numbers of ``HcaVportContext.field_select``: what MODIFY_HCA_VPORT_CONTEXT changes."""

    PORT_GUID = 0
    NODE_GUID = 1
    VPORT_STATE_POLICY = 2
