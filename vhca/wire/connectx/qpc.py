"""Queue pair context: what the card keeps about one QP, and the address vectors inside it.

Software writes it with CREATE_QP and the transition commands, and reads it back with QUERY_QP. Field numbers
are codes unless a name says `log_` (base-2 logarithm); sizes behind `log_page_size` are in units of 4 KiB.
"""

from enum import IntEnum

from vhca.layout import Layout, bits, raw, sub, u32, u64


class Ads(Layout, size=44):
    """Address vector of a connected QP's path: where its packets go (manual: ads)."""

    fl: int = bits(0x000, 31)
    free_ar: int = bits(0x000, 30)
    pkey_index: int = bits(0x000, 15, 0)
    plane_index: int = bits(0x004, 31, 24)
    grh: int = bits(0x004, 23)
    mlid: int = bits(0x004, 22, 16)
    rlid: int = bits(0x004, 15, 0)
    ack_timeout: int = bits(0x008, 31, 27)
    src_addr_index: int = bits(0x008, 23, 16)
    stat_rate: int = bits(0x008, 11, 8)
    hop_limit: int = bits(0x008, 7, 0)
    tclass: int = bits(0x00C, 27, 20)
    flow_label: int = bits(0x00C, 19, 0)
    rgid_rip: bytes = raw(0x010, 16)
    f_dscp: int = bits(0x020, 27)
    f_ecn: int = bits(0x020, 26)
    f_eth_prio: int = bits(0x020, 24)
    ecn: int = bits(0x020, 23, 22)
    dscp: int = bits(0x020, 21, 16)
    udp_sport: int = bits(0x020, 15, 0)
    dei_cfi: int = bits(0x024, 31)
    eth_prio: int = bits(0x024, 30, 28)
    sl: int = bits(0x024, 27, 24)
    vhca_port_num: int = bits(0x024, 23, 16)
    rmac_47_32: int = bits(0x024, 15, 0)
    rmac_31_0: int = u32(0x028)


class Qpc(Layout, size=232):
    """Queue pair context (manual: qpc)."""

    state: int = bits(0x000, 31, 28)
    lag_tx_port_affinity: int = bits(0x000, 27, 24)
    st: int = bits(0x000, 23, 16)
    isolate_vl_tc: int = bits(0x000, 13)
    pm_state: int = bits(0x000, 12, 11)
    req_e2e_credit_mode: int = bits(0x000, 9, 8)
    offload_type: int = bits(0x000, 7, 4)
    end_padding_mode: int = bits(0x000, 3, 2)
    wq_signature: int = bits(0x004, 31)
    block_lb_mc: int = bits(0x004, 30)
    atomic_like_write_en: int = bits(0x004, 29)
    latency_sensitive: int = bits(0x004, 28)
    drain_sigerr: int = bits(0x004, 26)
    dp_ordering_force: int = bits(0x004, 24)
    pd: int = bits(0x004, 23, 0)
    mtu: int = bits(0x008, 31, 29)
    log_msg_max: int = bits(0x008, 28, 24)
    log_rq_size: int = bits(0x008, 22, 19)
    log_rq_stride: int = bits(0x008, 18, 16)
    no_sq: int = bits(0x008, 15)
    log_sq_size: int = bits(0x008, 14, 11)
    retry_mode: int = bits(0x008, 9, 8)
    ts_format: int = bits(0x008, 7, 6)
    rlky: int = bits(0x008, 4)
    ulp_stateless_offload_mode: int = bits(0x008, 3, 0)
    counter_set_id: int = bits(0x00C, 31, 24)
    uar_page: int = bits(0x00C, 23, 0)
    send_dbr_mode: int = bits(0x010, 31, 30)
    user_index: int = bits(0x010, 23, 0)
    log_page_size: int = bits(0x014, 28, 24)
    remote_qpn: int = bits(0x014, 23, 0)
    primary_address_path: Ads = sub(0x018, Ads)
    secondary_address_path: Ads = sub(0x044, Ads)
    log_ack_req_freq: int = bits(0x070, 31, 28)
    log_sra_max: int = bits(0x070, 23, 21)
    retry_count: int = bits(0x070, 18, 16)
    rnr_retry: int = bits(0x070, 15, 13)
    fre: int = bits(0x070, 11)
    cur_rnr_retry: int = bits(0x070, 10, 8)
    cur_retry_count: int = bits(0x070, 7, 5)
    next_send_psn: int = bits(0x078, 23, 0)
    log_num_dci_stream_channels: int = bits(0x07C, 28, 24)
    cqn_snd: int = bits(0x07C, 23, 0)
    log_num_dci_errored_streams: int = bits(0x080, 28, 24)
    deth_sqpn: int = bits(0x080, 23, 0)
    last_acked_psn: int = bits(0x088, 23, 0)
    ssn: int = bits(0x08C, 23, 0)
    log_rra_max: int = bits(0x090, 23, 21)
    atomic_mode: int = bits(0x090, 19, 16)
    rre: int = bits(0x090, 15)
    rwe: int = bits(0x090, 14)
    rae: int = bits(0x090, 13)
    page_offset: int = bits(0x090, 11, 6)
    dp_ordering_1: int = bits(0x090, 3)
    cd_slave_receive: int = bits(0x090, 2)
    cd_slave_send: int = bits(0x090, 1)
    cd_master: int = bits(0x090, 0)
    min_rnr_nak: int = bits(0x094, 28, 24)
    next_rcv_psn: int = bits(0x094, 23, 0)
    xrcd: int = bits(0x098, 23, 0)
    cqn_rcv: int = bits(0x09C, 23, 0)
    dbr_addr: int = u64(0x0A0)
    q_key: int = u32(0x0A8)
    rq_type: int = bits(0x0AC, 26, 24)
    srqn_rmpn_xrqn: int = bits(0x0AC, 23, 0)
    rmsn: int = bits(0x0B0, 23, 0)
    hw_sq_wqebb_counter: int = bits(0x0B4, 31, 16)
    sw_sq_wqebb_counter: int = bits(0x0B4, 15, 0)
    hw_rq_counter: int = u32(0x0B8)
    sw_rq_counter: int = u32(0x0BC)
    cgs: int = bits(0x0C4, 16)
    cs_req: int = bits(0x0C4, 15, 8)
    cs_res: int = bits(0x0C4, 7, 0)
    dc_access_key: int = u64(0x0C8)
    dbr_umem_valid: int = bits(0x0D0, 28)
    dbr_umem_id: int = u32(0x0E4)


class QpState(IntEnum):
    """Codes of `Qpc.state`."""

    RST = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQER = 4
    SQD = 5
    ERR = 6
    SQ_DRAINING = 7


class ServiceType(IntEnum):
    """Codes of `Qpc.st`."""

    RC = 0x0
    UC = 0x1
    UD = 0x2
    XRC = 0x3
    MLX = 0x4
    DCI = 0x5
    DCT = 0x6
    QP0 = 0x7
    QP1 = 0x8
    RAW_ETHERTYPE = 0x9
    REG_UMR = 0xC
    PTP = 0xD
    SYNC_UMR = 0xE


class RqType(IntEnum):
    """Codes of `Qpc.rq_type`: where the receive WQEs of a QP come from."""

    REGULAR = 0
    SRQ_RMP_XRC_SRQ = 1
    ZERO_SIZE = 3


class OptParam(IntEnum):
    """Bit numbers of `opt_param_mask`: the optional attributes that a transition command carries."""

    ALT_ADDR_PATH = 0
    RRE = 1
    RAE = 2
    RWE = 3
    PKEY_INDEX = 4
    Q_KEY = 5
    RNR_TIMEOUT = 6
    PRIMARY_ADDR_PATH = 7
    SRA_MAX = 8
    RRA_MAX = 9
    PM_STATE = 10
    RETRY_COUNT = 12
    RNR_RETRY = 13
    ACK_TIMEOUT = 14
    LAG_TX_AFF = 15
    PRI_PORT = 16
    SRQN = 18
    CQN_RCV = 19
    DC_HS = 20
    DC_KEY = 21
    PP_INDEX = 22
    COUNTER_SET_ID = 25
