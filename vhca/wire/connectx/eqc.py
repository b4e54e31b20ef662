"""Event queue context: where an EQ's ring lies, how far it got, and which interrupt vector it raises."""

from enum import IntEnum

from vhca.layout import Layout, bits


class Eqc(Layout, size=64):
    """Event queue context (manual: eqc)."""

    status: int = bits(0x000, 31, 28)
    ec: int = bits(0x000, 18)
    oi: int = bits(0x000, 17)
    st: int = bits(0x000, 11, 8)
    page_offset: int = bits(0x008, 11, 6)
    log_eq_size: int = bits(0x00C, 28, 24)
    uar_page: int = bits(0x00C, 23, 0)
    intr: int = bits(0x014, 11, 0)
    log_page_size: int = bits(0x018, 28, 24)
    consumer_counter: int = bits(0x028, 23, 0)
    producer_counter: int = bits(0x02C, 23, 0)


class EqArmState(IntEnum):
    """Codes of `Eqc.st`, the notification state."""

    NOT_ARMED = 0x0
    ARMED = 0x9
    FIRED = 0xA
    ALWAYS_ARMED = 0xB
