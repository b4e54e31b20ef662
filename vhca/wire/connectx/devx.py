"""Objects of user space that talks to the card directly: its context and its registered memory."""

from typing import Final

from vhca.layout import Layout, bits, u32, u64

CAP_RAW_TX: Final = 1 << 0
"""`Uctx.cap`: the program may send what it likes, as far as the kernel is concerned (CAP_NET_RAW)."""


class Uctx(Layout, size=48):
    """User context (manual: uctx)."""

    cap: int = u32(0x000)


class Umem(Layout, size=32):
    """User memory object (manual: umem); the MTT list follows."""

    ats: int = bits(0x010, 31)
    log_page_size: int = bits(0x010, 4, 0)
    page_offset: int = u32(0x014)
    num_of_mtt: int = u64(0x018)
