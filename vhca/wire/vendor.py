"""What one vendor's devices tell of themselves in its management class 0x0A: data begin at byte 24 of a datagram."""

from typing import Final

from vhca.layout import Layout, raw, u8, u16, u32, u64

CLASS: Final = 0x0A
GENERAL_INFO: Final = 0x0017


class VendorMad(Layout, size=256):
    """A datagram of the class."""

    base_version: int = u8(0)
    mgmt_class: int = u8(1)
    class_version: int = u8(2)
    method: int = u8(3)
    status: int = u16(4)
    tid: int = u64(8)
    attr_id: int = u16(16)
    attr_mod: int = u32(20)
    data: bytes = raw(24, 232)


class GeneralInfo(Layout, size=136):
    """Device and firmware, as `vendstat -N` shows them; the date is in digits of four bits."""

    hw_revision: int = u16(8)
    device_id: int = u16(10)
    uptime_s: int = u32(36)
    fw_major: int = u8(41)
    fw_minor: int = u8(42)
    fw_sub_minor: int = u8(43)
    fw_build_id: int = u32(44)
    fw_month: int = u8(48)
    fw_day: int = u8(49)
    fw_year: int = u16(50)
    fw_hour: int = u16(54)
    psid: bytes = raw(56, 16)
    ini_version: int = u32(72)
    ext_major: int = u32(76)
    ext_minor: int = u32(80)
    ext_sub_minor: int = u32(84)
    sw_major: int = u8(105)
    sw_minor: int = u8(106)
    sw_sub_minor: int = u8(107)
