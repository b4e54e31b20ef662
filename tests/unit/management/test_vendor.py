"""What devices tell in the vendor's class."""

from hypothesis import given
from hypothesis import strategies as st

from vhca.management.vendor import Device, answer
from vhca.wire import mad, vendor
from vhca.wire.vendor import GeneralInfo, VendorMad

DEVICE = Device(0x101B, 0x20, (20, 300, 7))


def ask(attr_id: int, method: int = mad.METHOD_GET, **fields: int) -> VendorMad | None:
    values = {"base_version": 1, "mgmt_class": vendor.CLASS, "class_version": 1, "tid": 9, **fields}
    request = VendorMad(**values)
    request.method, request.attr_id = method, attr_id
    reply = answer(request.to_bytes(), DEVICE, 61_000_000_000)
    return None if reply is None else VendorMad.from_bytes(reply)


def test_general_information_at_the_offsets_that_tools_read() -> None:
    reply = ask(vendor.GENERAL_INFO)
    assert reply is not None
    assert (reply.method, reply.status, reply.tid) == (0x81, 0, 9)
    # Behind eight bytes: revision and device, 24 bytes, seconds; then the firmware.
    assert reply.data[8:12].hex() == "0020101b"
    assert reply.data[36:40].hex() == "0000003d"
    assert reply.data[56:60] == b"vhca"
    assert reply.data[76:88].hex() == "000000140000012c00000007"
    assert GeneralInfo.from_bytes(reply.data).fw_minor == 300 & 0xFF
    info = ask(mad.ATTR_CLASS_PORT_INFO)
    assert info is not None
    assert (info.status, info.data[:2]) == (0, b"\1\1")


def test_all_else_is_refused_by_status() -> None:
    for attr, method in ((vendor.GENERAL_INFO, mad.METHOD_SET), (0x50, 1), (0x90, 1), (0x91, 2)):
        reply = ask(attr, method)
        assert reply is not None
        assert (reply.method, reply.status) == (0x81, 0x0C)
    assert ask(vendor.GENERAL_INFO, 0x81) is None
    assert ask(vendor.GENERAL_INFO, mad.METHOD_TRAP) is None
    old = ask(vendor.GENERAL_INFO, base_version=2)
    assert old is not None
    assert old.status == 0x04


@given(st.binary(min_size=256, max_size=256), st.integers(0, 1 << 80))
def test_any_bytes_give_an_answer_or_none(mad_bytes: bytes, up_ns: int) -> None:
    reply = answer(mad_bytes, DEVICE, up_ns)
    assert reply is None or len(reply) == 256
