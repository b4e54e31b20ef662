"""What the notices of subnet management say: the details of each trap, at their places in the whole notice.

Bytes 0 to 9 of each are the head of :class:`vhca.wire.mad.Notice`; tables 131 to 139 of volume 1 (14.2.5.1).
"""

from typing import Final

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64
from vhca.wire import mad
from vhca.wire.mad import Notice

NOTICE_BYTES: Final = 64
_HEAD: Final = 10

# LocalChangeDetails.change_flags
CHANGED_NODE_DESCRIPTION: Final = 1 << 0
CHANGED_LINK_WIDTH_ENABLED: Final = 1 << 1
CHANGED_LINK_SPEED_ENABLED: Final = 1 << 2

# MKeyDetails.hops
DIRECTED: Final = 1 << 7
PATH_TRUNCATED: Final = 1 << 6

# SwitchKeyDetails.data_valid
VALID_LID1: Final = 1 << 15
VALID_LID2: Final = 1 << 14
VALID_PKEY: Final = 1 << 13
VALID_SL: Final = 1 << 12
VALID_QP1: Final = 1 << 11
VALID_QP2: Final = 1 << 10
VALID_GID1: Final = 1 << 9
VALID_GID2: Final = 1 << 8


class LinkStateDetails(Layout, size=64):
    """Trap 128: the link state of some port of the switch at `lid` changed."""

    lid: int = u16(10)


class PortErrorDetails(Layout, size=64):
    """Traps 129 to 131: link integrity, buffer overrun, flow control watchdog at port `port` of `lid`."""

    lid: int = u16(12)
    port: int = u8(14)


class LocalChangeDetails(Layout, size=64):
    """Trap 144: the node itself changed capabilities, or what `change_flags` says if `local_changes` is set."""

    lid: int = u16(12)
    local_changes: int = bits(12, 0)
    capability_mask: int = u32(16)
    change_flags: int = bits(20, 21, 16)
    capability_mask2: int = u16(22)


class MKeyDetails(Layout, size=64):
    """Trap 256: an SMP from `lid` with a wrong M_Key.

    If it came by a directed route, `hops` has DIRECTED, the length of `return_path`, and PATH_TRUNCATED if that is not
    all of it.
    """

    lid: int = u16(12)
    dr_slid: int = u16(14)
    method: int = u8(16)
    attr_id: int = u16(18)
    attr_mod: int = u32(20)
    mkey: int = u64(24)
    hops: int = u8(33)
    return_path: bytes = raw(34, 30)


class KeyDetails(Layout, size=64):
    """Traps 257 (P_Key) and 258 (Q_Key): a packet from `lid1`, queue pair `qp1`, to `lid2`, `qp2` with a wrong key."""

    lid1: int = u16(12)
    lid2: int = u16(14)
    key: int = u32(16)
    sl: int = bits(20, 31, 28)
    qp1: int = bits(20, 23, 0)
    qp2: int = bits(24, 23, 0)
    gid1: bytes = raw(28, 16)
    gid2: bytes = raw(44, 16)


class SwitchKeyDetails(Layout, size=64):
    """Trap 259: a packet with a P_Key that external port `port` of the switch at `switch_lid` does not let pass.

    `data_valid` (VALID_*) says which fields tell something; `sl` is in the high four bits, queue pairs are 3 bytes.
    """

    data_valid: int = u16(10)
    lid1: int = u16(12)
    lid2: int = u16(14)
    pkey: int = u16(16)
    sl: int = u8(18)
    qp1: bytes = raw(19, 3)
    qp2: bytes = raw(23, 3)
    gid1: bytes = raw(26, 16)
    gid2: bytes = raw(42, 16)
    switch_lid: int = u16(58)
    port: int = u8(60)


_TYPES: Final = {
    mad.TRAP_LINK_STATE_CHANGE: mad.NOTICE_TYPE_URGENT,
    mad.TRAP_LINK_INTEGRITY: mad.NOTICE_TYPE_URGENT,
    mad.TRAP_BUFFER_OVERRUN: mad.NOTICE_TYPE_URGENT,
    mad.TRAP_WATCHDOG: mad.NOTICE_TYPE_URGENT,
    mad.TRAP_CAPABILITY_CHANGE: mad.NOTICE_TYPE_INFORMATION,
    mad.TRAP_BAD_MKEY: mad.NOTICE_TYPE_SECURITY,
    mad.TRAP_BAD_PKEY: mad.NOTICE_TYPE_SECURITY,
    mad.TRAP_BAD_QKEY: mad.NOTICE_TYPE_SECURITY,
    mad.TRAP_SWITCH_BAD_PKEY: mad.NOTICE_TYPE_SECURITY,
}
"""Of which type the notice of a trap is (table 131)."""


def notice(number: int, producer: int, issuer_lid: int, details: Layout, waiting: int = 0) -> bytes:
    """The 64 bytes of the notice of trap `number` that the port at `issuer_lid` gives; `waiting` is NoticeCount."""
    head = Notice(
        is_generic=1,
        type=_TYPES[number],
        producer_type=producer,
        trap_number=number,
        issuer_lid=issuer_lid,
        toggle_count=waiting,
    )
    return head.to_bytes()[:_HEAD] + details.to_bytes()[_HEAD:]
