"""The HCA's virtual port: identity and state of one port of the card as commands report it."""

from vhca.layout import Layout, bits, u32, u64


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
