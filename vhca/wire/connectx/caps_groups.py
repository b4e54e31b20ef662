"""Capabilities, further groups: atomics, RoCE, paging, events and the second general group."""

from vhca.layout import Layout, bits, sub, u32, u64


class AtomicCaps(Layout, size=256):
    """Atomic operations (capability type 3)."""

    atomic_req_8B_endianness_mode: int = bits(0x008, 31, 30)
    supported_atomic_req_8B_endianness_mode_1: int = bits(0x008, 25)
    atomic_operations: int = bits(0x010, 15, 0)
    atomic_size_qp: int = bits(0x014, 15, 0)
    atomic_size_dc: int = bits(0x018, 15, 0)


class OdpPerTransportServiceCap(Layout, size=4):
    """What may fault on one transport (part of the paging capabilities)."""

    send: int = bits(0x000, 31)
    receive: int = bits(0x000, 30)
    write: int = bits(0x000, 29)
    read: int = bits(0x000, 28)
    atomic: int = bits(0x000, 27)
    srq_receive: int = bits(0x000, 26)


class OdpSchemeCap(Layout, size=64):
    """One page fault scheme (part of the paging capabilities)."""

    sig: int = bits(0x008, 31)
    page_prefetch: int = bits(0x008, 26)
    rc_odp_caps: OdpPerTransportServiceCap = sub(0x010, OdpPerTransportServiceCap)
    uc_odp_caps: OdpPerTransportServiceCap = sub(0x014, OdpPerTransportServiceCap)
    ud_odp_caps: OdpPerTransportServiceCap = sub(0x018, OdpPerTransportServiceCap)
    xrc_odp_caps: OdpPerTransportServiceCap = sub(0x01C, OdpPerTransportServiceCap)
    dc_odp_caps: OdpPerTransportServiceCap = sub(0x020, OdpPerTransportServiceCap)


class OdpCap(Layout, size=256):
    """On-demand paging (capability type 2)."""

    transport_page_fault_scheme_cap: OdpSchemeCap = sub(0x000, OdpSchemeCap)
    memory_page_fault_scheme_cap: OdpSchemeCap = sub(0x040, OdpSchemeCap)
    mem_page_fault: int = bits(0x0C0, 31)


class ProtocolOffloadCaps(Layout, size=256):
    """Stateless offloads for IP, of IPoIB (capability type 5); `max_lso_cap` is log2 of bytes."""

    csum_cap: int = bits(0x000, 31)
    max_lso_cap: int = bits(0x000, 20, 16)


class DeviceMemCap(Layout, size=256):
    """Device memory in the BAR (capability type 0xF); alignments and sizes count from 64 bytes and in bytes."""

    memic: int = bits(0x000, 31)
    memic_atomic_increment_sizes: int = bits(0x004, 31, 24)
    log_min_memic_alloc_size: int = bits(0x004, 20, 16)
    memic_atomic_test_and_set_sizes: int = bits(0x004, 15, 8)
    log_max_memic_addr_alignment: int = bits(0x004, 7, 0)
    memic_bar_start_addr: int = u64(0x008)
    memic_bar_size: int = u32(0x010)
    max_memic_size: int = u32(0x014)
    memic_operations: int = u32(0x040)


class CmdHcaCap2(Layout, size=256):
    """General device capabilities, second group (capability type 0x20)."""

    migratable: int = bits(0x010, 31)
    dp_ordering_force: int = bits(0x010, 23)
    log_max_num_reserved_qpn: int = bits(0x010, 20, 16)
    query_vuid: int = bits(0x010, 13)
    log_reserved_qpn_granularity: int = bits(0x010, 12, 8)
    umr_log_entity_size_5: int = bits(0x010, 7)
    log_reserved_qpn_max_alloc: int = bits(0x010, 4, 0)
    max_reformat_insert_size: int = bits(0x014, 31, 24)
    max_reformat_insert_offset: int = bits(0x014, 23, 16)
    max_reformat_remove_size: int = bits(0x014, 15, 8)
    max_reformat_remove_offset: int = bits(0x014, 7, 0)
    migration_multi_load: int = bits(0x018, 23)
    migration_tracking_state: int = bits(0x018, 22)
    multiplane_qp_ud: int = bits(0x018, 21)
    migration_in_chunks: int = bits(0x018, 15)
    sf_eq_usage: int = bits(0x018, 13)
    multiplane: int = bits(0x018, 7)
    cross_vhca_object_to_object_supported: int = u32(0x01C)
    allowed_object_for_other_vhca_access: int = u64(0x020)
    flow_table_type_2_type: int = bits(0x034, 31, 24)
    format_select_dw_8_6_ext: int = bits(0x034, 21)
    log_min_mkey_entity_size: int = bits(0x034, 20, 16)
    general_obj_types_127_64: int = u64(0x038)
    sw_vhca_id_valid: int = bits(0x044, 30)
    sw_vhca_id: int = bits(0x044, 29, 16)
    ts_cqe_metadata_size2wqe_counter: int = bits(0x048, 20, 16)
    format_select_dw_gtpu_dw_0: int = bits(0x050, 31, 24)
    format_select_dw_gtpu_dw_1: int = bits(0x050, 23, 16)
    format_select_dw_gtpu_dw_2: int = bits(0x050, 15, 8)
    format_select_dw_gtpu_first_ext_dw_0: int = bits(0x050, 7, 0)
    generate_wqe_type: int = u32(0x054)
    send_dbr_mode_no_dbr_int: int = bits(0x05C, 31)
    send_dbr_mode_no_dbr_ext: int = bits(0x05C, 30)
    log_max_send_dbr_less_qp_sq: int = bits(0x05C, 28, 24)
    min_mkey_log_entity_size_fixed_buffer: int = bits(0x070, 20, 16)
    ec_vf_vport_base: int = bits(0x070, 15, 0)
    max_mkey_log_entity_size_fixed_buffer: int = bits(0x074, 29, 24)
    max_mkey_log_entity_size_mtt: int = bits(0x074, 21, 16)
    max_rqt_vhca_id: int = bits(0x074, 15, 0)
    pcc_ifa2: int = bits(0x07C, 15)
    min_mkey_log_entity_size_fixed_buffer_valid: int = bits(0x080, 30)
    return_reg_id: int = bits(0x080, 15, 0)
    flow_table_hash_type: int = bits(0x084, 3, 0)
    max_num_eqs_24b: int = bits(0x088, 23, 0)
    load_balance_id: int = bits(0x0B4, 27, 24)
    query_adjacent_functions_id: int = bits(0x0B8, 31)
    ingress_egress_esw_vport_connect: int = bits(0x0B8, 30)
    function_id_type_vhca_id: int = bits(0x0B8, 29)
    lag_per_mp_group: int = bits(0x0B8, 27)
    delegate_vhca_management_profiles: int = bits(0x0B8, 15, 0)
    delegated_vhca_max: int = bits(0x0BC, 31, 16)
    delegate_vhca_max: int = bits(0x0BC, 15, 0)
