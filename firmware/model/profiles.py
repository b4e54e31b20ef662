"""What a card of this kind says it can do: the non-zero values of the smallest useful set of capabilities.

The tables are data: a field that is missing is zero. `CAPS_MIN` is the smallest set with which a driver registers an
InfiniBand device with RC, UC, UD, XRC and shared receive queues; :mod:`firmware.model.capabilities` says what this
firmware offers beyond it. Names are those of `vhca.wire.connectx.caps.CmdHcaCap` and `AtomicCaps`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CAPS_MIN: Final[Mapping[str, int]] = MappingProxyType(
    {
        # The card never asks for host pages, so the driver need not even make the EQ for such requests.
        "page_request_disable": 1,
        "vhca_id": 1,
        "log_max_srq_sz": 15,
        # Basic blocks of an SQ, WQEs of an RQ.
        "log_max_qp_sz": 15,
        # Drivers use no more than 18 whatever the card offers.
        "log_max_qp": 18,
        "log_max_srq": 16,
        # The kernel's MAD layer needs at least 11.
        "log_max_cq_sz": 22,
        "log_max_cq": 18,
        "log_max_eq_sz": 22,
        # The driver fills caches of keys in advance; below 16 they do not fit.
        "log_max_mkey": 20,
        # An EQ number has 8 bits, and at least 3 EQs are needed.
        "log_max_eq": 7,
        # Nesting depth of indirect keys.
        "max_indirection": 4,
        "log_max_mrw_sz": 48,
        # The longest page list of a fast registration is 1 << this.
        "log_max_klm_list_size": 16,
        "log_max_ra_req_qp": 4,
        "log_max_ra_res_qp": 4,
        "local_ca_ack_delay": 15,
        # port_type stays 0, which means InfiniBand; ib_virt stays 0, so that ports are managed by MADs.
        "num_ports": 1,
        "log_max_msg": 30,
        # Without a bit for each static rate, rates fall back to that of the port.
        "stat_rate_support": 0xFFFF,
        # CQEs carry the user index; with version 0, user space XRC does not work.
        "cqe_version": 1,
        # Keeps memory registration on CREATE_MKEY, away from UMR work requests.
        "umr_modify_entity_size_disabled": 1,
        # 2: no fence is needed behind a UMR, since the requester executes in order.
        "umr_fence": 2,
        # The driver refuses a card without XRC.
        "xrc": 1,
        "ud": 1,
        "uc": 1,
        "rc": 1,
        # 1 << 5 MiB of UAR pages.
        "uar_sz": 5,
        "log_pg_sz": 12,
        # Two 256-byte halves; the driver alternates its 8-byte doorbell between them even without BlueFlame.
        "log_bf_reg_size": 9,
        # In bytes. IPoIB needs 256, fast registration some 192 and more.
        "max_wqe_sz_sq": 1024,
        "max_wqe_sz_rq": 512,
        "max_qp_mcg": 240,
        "log_max_mcg": 13,
        "log_max_pd": 18,
        "log_max_xrcd": 16,
        # A basic SRQ is an RMP under ISSI 1.
        "log_max_rmp": 16,
        "log_max_wq_sz": 15,
        "num_of_uars_per_page": 1,
        "native_port_num": 1,
    }
)
"""General capabilities, smallest useful set."""

ATOMIC_CAPS: Final[Mapping[str, int]] = MappingProxyType(
    {
        # The driver may choose big-endian answers; it then sets atomic_req_8B_endianness_mode itself.
        "supported_atomic_req_8B_endianness_mode_1": 1,
        # Compare-and-swap and fetch-and-add; the extended (masked) bits would change qpc.atomic_mode.
        "atomic_operations": 0x3,
        # Bit log2(bytes): 8-byte operands only.
        "atomic_size_qp": 0x8,
        "atomic_size_dc": 0x8,
    }
)
"""Atomic capabilities."""
