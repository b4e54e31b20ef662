"""The initialization segment: the registers at the start of BAR 0, and the doorbells of a UAR page.

All registers are big-endian. They are data (name, offset, width, access): `vhca.chip.init_segment` serves what stands
here; the layouts and constants behind the table give the bits inside.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from vhca.layout import Layout, bits, u8, u16, u32

Access = Literal["ro", "rw", "wo"]


@dataclass(frozen=True, slots=True)
class Register:
    """One register: `offset` and `width` in bytes; `writable` masks the bits that a write may change."""

    name: str
    offset: int
    width: int
    access: Access
    writable: int = 0


def _register(name: str, offset: int, access: Access = "ro", writable: int = 0, width: int = 4) -> Register:
    return Register(name, offset, width, access, writable)


REGISTERS: Final = (
    _register("fw_rev", 0x000),
    _register("cmdif_rev_fw_sub", 0x004),
    _register("cmdq_addr_h", 0x010, "rw", 0xFFFFFFFF),
    _register("cmdq_addr_l_sz", 0x014, "rw", 0xFFFFF700),
    _register("cmd_dbell", 0x018, "wo", 0xFFFFFFFF),
    _register("initializing", 0x1FC),
    _register("health_buffer", 0x200, width=64),
    _register("no_dram_nic_offset", 0x240),
    _register("cmd_exec_to", 0xFF8),
    _register("cmd_q_init_to", 0xFFC),
    _register("internal_timer_h", 0x1000),
    _register("internal_timer_l", 0x1004),
    _register("health_counter", 0x1010),
    _register("real_time_h", 0x1040),
    _register("real_time_l", 0x1044),
    _register("ieee1588_clk", 0x2000, width=8),
    _register("ieee1588_clk_type", 0x2008),
    _register("clr_intx", 0x200C, "wo", 0xFFFFFFFF),
)
"""Every register of the segment in address order; addresses between them read as zero."""

BY_NAME: Final = {register.name: register for register in REGISTERS}
BY_OFFSET: Final = {register.offset: register for register in REGISTERS}
SEGMENT_BYTES: Final = max(register.offset + register.width for register in REGISTERS)

CMDIF_REV: Final = 5
"""Command interface revision that the drivers speak (`cmdif_rev_fw_sub` [31:16])."""

FW_RESET_SUPPORTED: Final = 1 << 30
"""Bit of `initializing`: the driver may ask for a reset by writing NIC interface state `SW_RESET`."""


class NicInterface(IntEnum):
    """What the driver says of itself in `cmdq_addr_l_sz`."""

    FULL_DRIVER = 0
    DISABLED = 1
    SW_RESET = 7


UAR_CQ_ARM: Final = 0x20
UAR_EQ_ARM: Final = 0x40
UAR_EQ_UPDATE: Final = 0x48
UAR_SQ_RECORDLESS: Final = 0x600
UAR_BLUE_FLAME: Final = 0x800
"""Offsets of the doorbells in a UAR page; at `UAR_SQ_RECORDLESS` that of send queues without a doorbell record, from
`UAR_BLUE_FLAME` to the end of the page those of all send queues."""


class CmdqAddrLow(Layout, size=4):
    """`cmdq_addr_l_sz`: low part of the queue's address, driver state, and the size the card asks for."""

    cmdq_phy_addr_31_12: int = bits(0x000, 31, 12)
    nic_interface: int = bits(0x000, 10, 8)
    log_cmdq_size: int = bits(0x000, 7, 4)
    log_cmdq_stride: int = bits(0x000, 3, 0)


class HealthBuffer(Layout, size=64):
    """Health buffer at 0x200; all zero except for versions while the card is well."""

    assert_var0: int = u32(0x000)
    assert_var1: int = u32(0x004)
    assert_var2: int = u32(0x008)
    assert_var3: int = u32(0x00C)
    assert_var4: int = u32(0x010)
    assert_var5: int = u32(0x014)
    assert_exit_ptr: int = u32(0x020)
    assert_callra: int = u32(0x024)
    time: int = u32(0x02C)
    fw_ver: int = u32(0x030)
    hw_id: int = u32(0x034)
    rfr: int = bits(0x038, 31)
    crr: int = bits(0x038, 30)
    severity_valid: int = bits(0x038, 27)
    severity: int = bits(0x038, 26, 24)
    irisc_index: int = u8(0x03C)
    synd: int = u8(0x03D)
    ext_synd: int = u16(0x03E)


class HealthSyndrome(IntEnum):
    """`synd` of the health buffer, as far as this card has reasons for one."""

    FIRMWARE_ERROR = 1


class SendDoorbell(Layout, size=8):
    """Write to a send register: the first two dwords of the control segment of the WQE that is rung for."""

    opmod_idx_opcode: int = u32(0x000)
    qpn_ds: int = u32(0x004)


class CqArmDoorbell(Layout, size=8):
    """Write to `UAR_CQ_ARM`; `cmd` is 0 for the next completion, 1 for the next solicited one."""

    cmd_sn: int = bits(0x000, 29, 28)
    cmd: int = bits(0x000, 24)
    ci: int = bits(0x000, 23, 0)
    cqn: int = bits(0x004, 23, 0)


class EqUpdateDoorbell(Layout, size=4):
    """Write to `UAR_EQ_ARM` or `UAR_EQ_UPDATE`."""

    eqn: int = bits(0x000, 31, 24)
    ci: int = bits(0x000, 23, 0)
