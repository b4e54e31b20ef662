"""Management datagrams: the 256 bytes by which subnet manager, agents and administrators talk.

Headers, classes, methods and status codes of chapters 13 to 15 of volume 1, and the RMPP header for answers that do not
fit one datagram. The attributes are in :mod:`vhca.wire.smp`, :mod:`vhca.wire.sa` and :mod:`vhca.wire.perf`.
"""

from typing import Final

from vhca.layout import Layout, bits, raw, u8, u16, u32, u64

MAD_BYTES: Final = 256
BASE_VERSION: Final = 1

# Management classes (13.4.4).
CLASS_SUBN_LID: Final = 0x01
CLASS_SUBN_DR: Final = 0x81
CLASS_SUBN_ADM: Final = 0x03
CLASS_PERF: Final = 0x04
CLASS_BM: Final = 0x05
CLASS_CM: Final = 0x07

# Methods (13.4.5, 15.2.2); responses have bit 7 set.
METHOD_GET: Final = 0x01
METHOD_SET: Final = 0x02
METHOD_SEND: Final = 0x03
METHOD_TRAP: Final = 0x05
METHOD_REPORT: Final = 0x06
METHOD_TRAP_REPRESS: Final = 0x07
METHOD_GET_TABLE: Final = 0x12
METHOD_GET_TRACE_TABLE: Final = 0x13
METHOD_GET_MULTI: Final = 0x14
METHOD_DELETE: Final = 0x15
METHOD_RESPONSE: Final = 0x80
METHOD_GET_RESP: Final = 0x81
METHOD_REPORT_RESP: Final = 0x86
METHOD_GET_TABLE_RESP: Final = 0x92
METHOD_GET_MULTI_RESP: Final = 0x94
METHOD_DELETE_RESP: Final = 0x95

# Status, common part (13.4.7) and class part of subnet administration (15.2.4), in place.
STATUS_OK: Final = 0x0000
STATUS_BUSY: Final = 0x0001
STATUS_BAD_VERSION: Final = 0x0004
STATUS_UNSUPPORTED_METHOD: Final = 0x0008
STATUS_UNSUPPORTED_ATTRIBUTE: Final = 0x000C
STATUS_INVALID_FIELD: Final = 0x001C
STATUS_DIRECTION: Final = 0x8000
SA_STATUS_NO_RESOURCES: Final = 0x0100
SA_STATUS_REQ_INVALID: Final = 0x0200
SA_STATUS_NO_RECORDS: Final = 0x0300
SA_STATUS_TOO_MANY_RECORDS: Final = 0x0400
SA_STATUS_INVALID_GID: Final = 0x0500
SA_STATUS_INSUFFICIENT_COMPONENTS: Final = 0x0600
SA_STATUS_DENIED: Final = 0x0700

# Attributes that several classes share (13.4.8).
ATTR_CLASS_PORT_INFO: Final = 0x0001
ATTR_NOTICE: Final = 0x0002
ATTR_INFORM_INFO: Final = 0x0003

QP1_QKEY: Final = 0x80010000


class MadHeader(Layout, size=24):
    """The common header; `status` has the direction bit of directed-route SMPs as its bit 15."""

    base_version: int = u8(0)
    mgmt_class: int = u8(1)
    class_version: int = u8(2)
    method: int = u8(3)
    status: int = u16(4)
    class_specific: int = u16(6)
    tid: int = u64(8)
    attr_id: int = u16(16)
    attr_mod: int = u32(20)


class Smp(Layout, size=256):
    """A subnet management packet; hop fields and paths are those of directed routes (14.2.1.2)."""

    base_version: int = u8(0)
    mgmt_class: int = u8(1)
    class_version: int = u8(2)
    method: int = u8(3)
    status: int = u16(4)
    hop_pointer: int = u8(6)
    hop_count: int = u8(7)
    tid: int = u64(8)
    attr_id: int = u16(16)
    attr_mod: int = u32(20)
    mkey: int = u64(24)
    dr_slid: int = u16(32)
    dr_dlid: int = u16(34)
    data: bytes = raw(64, 64)
    initial_path: bytes = raw(128, 64)
    return_path: bytes = raw(192, 64)


class SaMad(Layout, size=256):
    """A subnet administration datagram: RMPP header, SA header, 200 bytes of records (15.2.1)."""

    base_version: int = u8(0)
    mgmt_class: int = u8(1)
    class_version: int = u8(2)
    method: int = u8(3)
    status: int = u16(4)
    tid: int = u64(8)
    attr_id: int = u16(16)
    attr_mod: int = u32(20)
    rmpp_version: int = u8(24)
    rmpp_type: int = u8(25)
    rmpp_resp_time: int = bits(24, 15, 11)
    rmpp_flags: int = bits(24, 10, 8)
    rmpp_status: int = u8(27)
    segment_number: int = u32(28)
    payload_length: int = u32(32)
    sm_key: int = u64(36)
    attr_offset: int = u16(44)
    component_mask: int = u64(48)
    data: bytes = raw(56, 200)


SA_CLASS_VERSION: Final = 2
SA_DATA_BYTES: Final = 200
SA_HEADER_BYTES: Final = 20

RMPP_VERSION: Final = 1
RMPP_DATA: Final = 1
RMPP_ACK: Final = 2
RMPP_STOP: Final = 3
RMPP_ABORT: Final = 4
RMPP_ACTIVE: Final = 1
RMPP_FIRST: Final = 2
RMPP_LAST: Final = 4
RMPP_STATUS_NO_RESOURCES: Final = 1
RMPP_STATUS_TIMEOUT: Final = 118


class PerfMad(Layout, size=256):
    """A performance management datagram: the attribute begins at byte 64 (16.1.1)."""

    base_version: int = u8(0)
    mgmt_class: int = u8(1)
    class_version: int = u8(2)
    method: int = u8(3)
    status: int = u16(4)
    tid: int = u64(8)
    attr_id: int = u16(16)
    attr_mod: int = u32(20)
    data: bytes = raw(64, 192)


class ClassPortInfo(Layout, size=72):
    """What a management class at a port can do, and where to redirect to (13.4.8.1)."""

    base_version: int = u8(0)
    class_version: int = u8(1)
    capability_mask: int = u16(2)
    capability_mask2: int = bits(4, 31, 5)
    resp_time: int = bits(4, 4, 0)
    redirect_gid: bytes = raw(8, 16)
    redirect_tclass_sl_flow: int = u32(24)
    redirect_lid: int = u16(28)
    redirect_pkey: int = u16(30)
    redirect_qp: int = u32(32)
    redirect_qkey: int = u32(36)
    trap_gid: bytes = raw(40, 16)
    trap_tclass_sl_flow: int = u32(56)
    trap_lid: int = u16(60)
    trap_pkey: int = u16(62)
    trap_hop_limit_qp: int = u32(64)
    trap_qkey: int = u32(68)


NOTICE_TYPE_URGENT: Final = 1
NOTICE_TYPE_SECURITY: Final = 2
NOTICE_TYPE_INFORMATION: Final = 4
PRODUCER_CA: Final = 1
PRODUCER_SWITCH: Final = 2
PRODUCER_CLASS_MANAGER: Final = 4

# Trap numbers (14.2.5.1, 15.2.5.3).
TRAP_GID_IN_SERVICE: Final = 64
TRAP_GID_OUT_OF_SERVICE: Final = 65
TRAP_GROUP_CREATED: Final = 66
TRAP_GROUP_DELETED: Final = 67
TRAP_LINK_STATE_CHANGE: Final = 128
TRAP_LINK_INTEGRITY: Final = 129
TRAP_BUFFER_OVERRUN: Final = 130
TRAP_WATCHDOG: Final = 131
TRAP_CAPABILITY_CHANGE: Final = 144
TRAP_BAD_MKEY: Final = 256
TRAP_BAD_PKEY: Final = 257
TRAP_BAD_QKEY: Final = 258
TRAP_SWITCH_BAD_PKEY: Final = 259


class Notice(Layout, size=80):
    """Something happened (13.4.8.2); SMPs carry the first 64 bytes, `issuer_gid` is for reports."""

    is_generic: int = bits(0, 31)
    type: int = bits(0, 30, 24)
    producer_type: int = bits(0, 23, 0)
    trap_number: int = u16(4)
    issuer_lid: int = u16(6)
    toggle_count: int = u16(8)
    details: bytes = raw(10, 54)
    issuer_gid: bytes = raw(64, 16)


class InformInfo(Layout, size=36):
    """A subscription to reports (13.4.8.3)."""

    gid: bytes = raw(0, 16)
    lid_range_begin: int = u16(16)
    lid_range_end: int = u16(18)
    is_generic: int = u8(22)
    subscribe: int = u8(23)
    type: int = u16(24)
    trap_number: int = u16(26)
    qpn: int = bits(28, 31, 8)
    resp_time: int = bits(28, 4, 0)
    producer_type: int = bits(32, 23, 0)


def gid(prefix: int, guid: int) -> bytes:
    """The 16 bytes of a GID from subnet prefix and interface id."""
    return prefix.to_bytes(8, "big") + guid.to_bytes(8, "big")
