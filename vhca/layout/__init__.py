"""The bit map of a card's data structures: each one declared once, as a class body.

A declaration states where every field lives; from it come a big-endian view, generated packers and
unpackers for hot paths, a readable dump, the page in `docs/formats` and the fuzz strategies of the tests.

    class Mtt(Layout, size=8):
        \"\"\"Memory translation entry.\"\"\"

        ptag_63_32: int = u32(0x000)
        ptag_31_8: int = bits(0x004, 31, 8)
        wr_en: int = bits(0x004, 1)
        rd_en: int = bits(0x004, 0)

Assumes big-endian fields (everything a ConnectX shares with its host is). Guarantees that order, overlap and
fit of the fields were checked when the class was created.
"""

from vhca.layout.fields import Field, Kind, LayoutError, bits, raw, sub, u8, u16, u32, u64
from vhca.layout.structure import Layout, reserved_nonzero

__all__ = [
    "Field",
    "Kind",
    "Layout",
    "LayoutError",
    "bits",
    "raw",
    "reserved_nonzero",
    "sub",
    "u8",
    "u16",
    "u32",
    "u64",
]
