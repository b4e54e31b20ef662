"""The capability store: what this card can do, and what the driver chose of it.

A card can be made to have less than this firmware offers (`BoardInfo.capabilities`), in the general group.

Groups are those of QUERY_HCA_CAP (`op_mod >> 1`). A group that the general capabilities do not announce reads as
zeros. SET_HCA_CAP may only choose what the maximum allows; fields that the card does not let the driver change keep
their value.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from firmware.model.profiles import ATOMIC_CAPS, CAPS_MIN
from vhca.hw.hardware import BoardInfo, UnfitBoard
from vhca.layout import Layout
from vhca.wire.connectx.caps import CapType, CmdHcaCap
from vhca.wire.connectx.caps_groups import (
    AtomicCaps,
    CmdHcaCap2,
    DeviceMemCap,
    OdpCap,
    OdpPerTransportServiceCap,
    OdpSchemeCap,
    ProtocolOffloadCaps,
)
from vhca.wire.connectx.devx import CAP_RAW_TX

BLOCK_BYTES = 4096
KNOWN_GROUPS: Final = frozenset(int(group) for group in CapType)

# Type of a general object: a block of QP numbers, out of a range where no queue pair is.
GENERAL_RESERVED_QPN: Final = 0x2C
RESERVED_QPN_FIRST: Final = 0x80_0000
LOG_RESERVED_QPNS: Final = 5
LOG_RESERVED_QPN_MAX: Final = 16

# What this firmware stands behind today: the smallest useful set and what else works.
GENERAL: Final[Mapping[str, int]] = MappingProxyType(
    {
        **CAPS_MIN,
        "umr_modify_entity_size_disabled": 0,
        "imaicl": 1,
        "atomic": 1,
        "device_memory": 1,
        "general_obj_types": 1 << GENERAL_RESERVED_QPN,
        "sctr_data_cqe": 1,
        "cqe_128_always": 1,
        "log_max_uctx": 8,
        "log_max_umem": 12,
        "umem_uid_0": 1,
        "max_qp_cnt": 255,
        "out_of_seq_cnt": 1,
        "retransmission_q_counters": 1,
        "enhanced_error_q_counters": 1,
        "rts2rts_qp_counters_set_id": 1,
        # Which programs may send what they like (uctx.cap).
        "uctx_cap": CAP_RAW_TX,
        "cq_oi": 1,
        "cq_resize": 1,
        "cq_moderation": 1,
        "block_lb_mc": 1,
        "qkv": 1,
        "pkv": 1,
        "device_frequency_mhz": 1000,
        "device_frequency_khz": 1_000_000,
        "pg": 1,
        "dct": 1,
        "log_max_ra_req_dc": 4,
        "log_max_ra_res_dc": 4,
        "hca_cap_2": 1,
        "umr_extended_translation_offset": 1,
        "fixed_buffer_size": 1,
        "null_mkey": 1,
        "ipoib_basic_offloads": 1,
        "cqe_compression": 1,
        "cqe_compression_128": 1,
        "cqe_compression_max_num": 64,
        "cqe_compression_timeout": 16,
        "mini_cqe_resp_stride_index": 1,
    }
)

# Bits, of which a card may have some; all others are flags or amounts, of which it may have less.
BIT_SETS: Final = frozenset({"general_obj_types", "stat_rate_support", "uctx_cap"})

# A page of a translation, as a power of two.
MAX_LOG_PAGE: Final = 52

# The second general group.
GENERAL_2: Final[Mapping[str, int]] = MappingProxyType(
    {
        # Send queues without a doorbell record.
        "send_dbr_mode_no_dbr_ext": 1,
        "log_max_send_dbr_less_qp_sq": 15,
        # QP numbers for connections that user space makes up itself.
        "log_max_num_reserved_qpn": LOG_RESERVED_QPN_MAX,
        "log_reserved_qpn_granularity": LOG_RESERVED_QPNS,
        "log_reserved_qpn_max_alloc": LOG_RESERVED_QPNS,
        # A page of an indirect key may span 16 GiB and more: so hosts with five levels of page tables lay out theirs.
        "max_mkey_log_entity_size_fixed_buffer": MAX_LOG_PAGE,
        "max_mkey_log_entity_size_mtt": MAX_LOG_PAGE,
        "umr_log_entity_size_5": 1,
    }
)

# Data of one large send (LSO) at most, as a power of two.
LOG_MAX_LSO: Final = 18

# What may wait for pages, by transport. Receives of unreliable connections may not: their messages would be lost.
PAGING_RELIABLE: Final = ("send", "receive", "write", "read", "atomic", "srq_receive")
PAGING_DATAGRAM: Final = ("send", "receive", "srq_receive")

# Alignment and size of a piece of device memory count in these units.
MEMIC_GRANULE_BYTES: Final = 64
# One piece has at most half of it all.
MEMIC_MAX_PART: Final = 2
# Operations at addresses of their own: increment (bit 0) and test-and-set (bit 1), on 1, 2, 4 and 8 bytes.
MEMIC_OPERATIONS: Final = 0b11
MEMIC_OPERAND_SIZES: Final = 0b1111

# Fields of the general group that SET_HCA_CAP may change.
SETTABLE = ("pkey_table_size", "log_max_qp", "cmdif_checksum", "uar_4k", "log_uar_page_sz", "cache_line_128byte")


class Capabilities:
    """Maximum and current values of every group."""

    def __init__(self, info: BoardInfo) -> None:
        for name, value in info.capabilities.items():
            _check_less(name, value)
        self._general_max = CmdHcaCap(**{**GENERAL, **info.capabilities})
        self._atomic_max = AtomicCaps()
        for name, value in ATOMIC_CAPS.items() if self._general_max.atomic else ():
            setattr(self._atomic_max, name, value)
        self._paging_max = _paging() if self._general_max.pg else OdpCap()
        self.general_2 = CmdHcaCap2(**GENERAL_2) if self._general_max.hca_cap_2 else CmdHcaCap2()
        self.device_memory = _device_memory(info) if self._general_max.device_memory else DeviceMemCap()
        self.restore()

    @property
    def general_max(self) -> CmdHcaCap:
        """What the card has; :attr:`general` is what the driver chose of it."""
        return self._general_max

    def restore(self) -> None:
        """Current values as after power-up."""
        self.general = CmdHcaCap.from_bytes(self._general_max.to_bytes())
        self.atomic = AtomicCaps.from_bytes(self._atomic_max.to_bytes())
        self.paging = OdpCap.from_bytes(self._paging_max.to_bytes())
        # The scheme is the driver's choice.
        self.paging.mem_page_fault = 0

    def query(self, group: int, current: bool) -> bytes | None:
        """A group's block of 4096 bytes; zeros for one that is not announced, None for one that does not exist."""
        view: Layout
        if group == CapType.GENERAL:
            view = self.general if current else self._general_max
        elif group == CapType.ATOMIC and self._general_max.atomic:
            view = self.atomic if current else self._atomic_max
        elif group == CapType.ODP:
            view = self.paging if current else self._paging_max
        elif group == CapType.IPOIB_OFFLOADS and self._general_max.ipoib_basic_offloads:
            view = ProtocolOffloadCaps(csum_cap=1, max_lso_cap=LOG_MAX_LSO)
        elif group == CapType.DEV_MEM:
            view = self.device_memory
        elif group == CapType.GENERAL_2:
            view = self.general_2
        elif group in KNOWN_GROUPS:
            # User space asks without looking at the announcement first: nothing of the group is there.
            return bytes(BLOCK_BYTES)
        else:
            return None
        return view.to_bytes().ljust(BLOCK_BYTES, b"\0")

    def set(self, group: int, block: bytes) -> str:
        """Take the driver's choice over; returns why it is refused, or an empty string."""
        if group == CapType.GENERAL:
            return self._set_general(CmdHcaCap.from_bytes(block))
        if group == CapType.ATOMIC and self._general_max.atomic:
            wanted = AtomicCaps.from_bytes(block)
            mode = wanted.atomic_req_8B_endianness_mode
            if mode not in (0, 1):
                return "atomic_req_8B_endianness_mode: 0 or 1"
            self.atomic.atomic_req_8B_endianness_mode = mode
            return ""
        if group == CapType.ODP and self._general_max.pg:
            chosen = OdpCap.from_bytes(block[: OdpCap.SIZE])
            if not chosen.mem_page_fault:
                return "mem_page_fault: this card describes faults by memory only (1)"
            self.paging.mem_page_fault = 1
            # User space looks in the place of the other scheme for what may fault on which transport.
            self.paging.transport_page_fault_scheme_cap = self.paging.memory_page_fault_scheme_cap
            return ""
        return "op_mod: this capability group cannot be set"

    def _set_general(self, wanted: CmdHcaCap) -> str:
        if wanted.log_max_qp > self._general_max.log_max_qp:
            return "log_max_qp: more than the maximum"
        if wanted.pkey_table_size > 5:
            return "pkey_table_size: no such size"
        if wanted.log_uar_page_sz or wanted.uar_4k:
            return "log_uar_page_sz: doorbell pages have 4 KiB"
        for name in SETTABLE:
            setattr(self.general, name, getattr(wanted, name))
        return ""


def _check_less(name: str, value: int) -> None:
    """Can a card have so much of a capability of the general group?"""
    most = GENERAL.get(name)
    if most is None:
        raise UnfitBoard(f"capability {name}: the program has none of that name")
    if not 0 <= value <= most or (name in BIT_SETS and value & ~most):
        raise UnfitBoard(f"capability {name}: {value:#x} is more than the program has, {most:#x}")


def _device_memory(info: BoardInfo) -> DeviceMemCap:
    return DeviceMemCap(
        memic=1,
        memic_bar_start_addr=info.device_memory_start,
        memic_bar_size=info.device_memory_bytes,
        max_memic_size=info.device_memory_bytes // MEMIC_MAX_PART,
        # Up to the size of a page: 64 << 6.
        log_max_memic_addr_alignment=6,
        log_min_memic_alloc_size=6,
        memic_operations=MEMIC_OPERATIONS,
        memic_atomic_increment_sizes=MEMIC_OPERAND_SIZES,
        memic_atomic_test_and_set_sizes=MEMIC_OPERAND_SIZES,
    )


def _paging() -> OdpCap:
    reliable = OdpPerTransportServiceCap(**dict.fromkeys(PAGING_RELIABLE, 1))
    datagram = OdpPerTransportServiceCap(**dict.fromkeys(PAGING_DATAGRAM, 1))
    scheme = OdpSchemeCap(
        page_prefetch=1, rc_odp_caps=reliable, xrc_odp_caps=reliable, dc_odp_caps=reliable, ud_odp_caps=datagram
    )
    return OdpCap(memory_page_fault_scheme_cap=scheme, mem_page_fault=1)
