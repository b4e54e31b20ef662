"""Memory keys: the context of one key, and the translation entries that it points to.

The context appears in CREATE_MKEY and, with the same layout, as the memory-key segment of a UMR work request.
`Mkc.log_page_size` is absolute (log2 of bytes), unlike in all other contexts.
"""

from enum import IntEnum
from typing import Final

from vhca.layout import Layout, bits, u32, u64


class Mkc(Layout, size=64):
    """Memory key context (manual: mkc)."""

    free: int = bits(0x000, 30)
    access_mode_4_2: int = bits(0x000, 28, 26)
    relaxed_ordering_write: int = bits(0x000, 18)
    small_fence_on_rdma_read_response: int = bits(0x000, 16)
    umr_en: int = bits(0x000, 15)
    a: int = bits(0x000, 14)
    rw: int = bits(0x000, 13)
    rr: int = bits(0x000, 12)
    lw: int = bits(0x000, 11)
    lr: int = bits(0x000, 10)
    access_mode_1_0: int = bits(0x000, 9, 8)
    ma_translation_mode: int = bits(0x000, 5, 4)
    qpn: int = bits(0x004, 31, 8)
    mkey_7_0: int = bits(0x004, 7, 0)
    length64: int = bits(0x00C, 31)
    bsf_en: int = bits(0x00C, 30)
    sync_umr: int = bits(0x00C, 29)
    expected_sigerr_count: int = bits(0x00C, 26)
    en_rinval: int = bits(0x00C, 24)
    pd: int = bits(0x00C, 23, 0)
    start_addr: int = u64(0x010)
    len: int = u64(0x018)
    bsf_octword_size: int = u32(0x020)
    crossing_target_vhca_id: int = bits(0x030, 31, 16)
    translations_octword_size: int = u32(0x034)
    relaxed_ordering_read: int = bits(0x038, 6)
    log_page_size: int = bits(0x038, 5, 0)
    pcie_tph_en: int = bits(0x03C, 26)
    pcie_tph_ph: int = bits(0x03C, 25, 24)
    pcie_tph_steering_tag_index: int = bits(0x03C, 23, 16)


class Mtt(Layout, size=8):
    """Translation entry: one page of a region (manual: mtt)."""

    ptag_63_32: int = u32(0x000)
    ptag_31_8: int = bits(0x004, 31, 8)
    wr_en: int = bits(0x004, 1)
    rd_en: int = bits(0x004, 0)


class Klm(Layout, size=16):
    """Indirect translation entry: `bcount` bytes of the region behind another key."""

    bcount: int = u32(0x000)
    key: int = u32(0x004)
    va: int = u64(0x008)


class Ksm(Layout, size=16):
    """Indirect translation entry of fixed size: one entity of the region behind another key."""

    key: int = u32(0x004)
    va: int = u64(0x008)


class AccessMode(IntEnum):
    """The five-bit access mode: `access_mode_4_2 << 2 | access_mode_1_0`."""

    PA = 0x0
    MTT = 0x1
    KLMS = 0x2
    KSM = 0x3
    SW_ICM = 0x4
    MEMIC = 0x5
    CROSSING = 0x6


QPN_ANY: Final = 0xFFFFFF
"""`Mkc.qpn` of a key that every QP of its protection domain may use."""
