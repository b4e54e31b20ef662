"""The agent of a vendor's management class: general information about a device, and nothing else."""

from dataclasses import dataclass
from typing import Final

from vhca.management.refusal import refusal, response_method
from vhca.wire import mad as madwire
from vhca.wire import vendor
from vhca.wire.mad import ClassPortInfo
from vhca.wire.vendor import GeneralInfo, VendorMad

_NS: Final = 1_000_000_000
_RESP_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class Device:
    """What a device tells of itself: its number, its revision, and the version of its firmware."""

    device_id: int
    revision: int = 0
    version: tuple[int, int, int] = (0, 0, 0)


def answer(mad: bytes, device: Device, up_ns: int) -> bytes | None:
    """The answer to a datagram of the class, of a device that has been on for `up_ns`; None if it deserves none."""
    request = VendorMad.from_bytes(mad)
    if (
        request.method != madwire.METHOD_GET
        or request.base_version != madwire.BASE_VERSION
        or request.class_version != 1
    ):
        return refusal(mad)
    if request.attr_id == madwire.ATTR_CLASS_PORT_INFO:
        data = ClassPortInfo(base_version=1, class_version=1, resp_time=_RESP_TIME).to_bytes()
    elif request.attr_id == vendor.GENERAL_INFO:
        data = _general(device, up_ns).to_bytes()
    else:
        return refusal(mad)
    request.method, request.status = response_method(request.method), madwire.STATUS_OK
    request.data = data.ljust(232, b"\0")
    return request.to_bytes()


def _general(device: Device, up_ns: int) -> GeneralInfo:
    major, minor, sub_minor = device.version
    return GeneralInfo(
        hw_revision=device.revision & 0xFFFF,
        device_id=device.device_id,
        uptime_s=up_ns // _NS & 0xFFFFFFFF,
        fw_major=major & 0xFF,
        fw_minor=minor & 0xFF,
        fw_sub_minor=sub_minor & 0xFF,
        psid=b"vhca".ljust(16, b"\0"),
        ext_major=major,
        ext_minor=minor,
        ext_sub_minor=sub_minor,
    )
