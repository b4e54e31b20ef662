"""GET_INFO, GET_REGION_INFO, GET_IRQ_INFO, GET_REGION_IO_FDS, DEVICE_FEATURE."""

import errno
import struct

import pytest

from tests.wire.client import Client, RemoteError
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

READ, WRITE, MMAP, CAPS = 1, 2, 4, 8


def refused(client: Client, command: int, payload: bytes, code: int = errno.EINVAL) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command, payload)
    assert caught.value.errno == code


def test_device_info(client: Client) -> None:
    answer = client.call(Command.DEVICE_GET_INFO, proto.DEVICE_INFO.pack(16, 0, 0, 0))
    assert proto.DEVICE_INFO.unpack(answer) == (16, 3, 9, 5)


@pytest.mark.parametrize("payload", [bytes(15), proto.DEVICE_INFO.pack(15, 0, 0, 0), bytes(17)])
def test_bad_device_info(client: Client, payload: bytes) -> None:
    refused(client, Command.DEVICE_GET_INFO, payload)


@pytest.mark.parametrize(
    ("index", "flags", "size"),
    [(0, READ | WRITE, 4096), (1, READ, 4096), (4, WRITE, 4096), (5, 0, 0), (6, 0, 0), (7, READ | WRITE, 4096)],
)
def test_plain_regions(client: Client, index: int, flags: int, size: int) -> None:
    for argsz in (32, 1000):
        assert client.region_info(index, argsz) == ((32, flags, index, 0, size, 0), b"", 0)


def test_a_region_mapped_as_a_whole_comes_with_a_descriptor(client: Client) -> None:
    info, capabilities, fds = client.region_info(3)
    assert info == (32, READ | WRITE | MMAP, 3, 0, 0x2000, 0x10000)
    assert (capabilities, fds) == (b"", 1)


def test_sparse_areas_come_in_two_steps(client: Client) -> None:
    needed = 32 + 16 + 2 * 16
    # no room: needed size, neither CAPS nor capability nor descriptor
    for argsz in (32, needed - 1):
        assert client.region_info(2, argsz) == ((needed, READ | WRITE | MMAP, 2, 0, 0x10000, 0), b"", 0)
    for argsz in (needed, needed + 100):
        info, capabilities, fds = client.region_info(2, argsz)
        assert info == (needed, READ | WRITE | MMAP | CAPS, 2, 32, 0x10000, 0)
        assert struct.unpack("<HHIII", capabilities[:16]) == (1, 1, 0, 2, 0)
        assert struct.unpack("<QQQQ", capabilities[16:]) == (0x1000, 0x1000, 0x8000, 0x2000)
        assert fds == 1


@pytest.mark.parametrize(("argsz", "index"), [(31, 0), (0, 0), (32, 9), (32, 0xFFFFFFFF)])
def test_bad_region_info(client: Client, argsz: int, index: int) -> None:
    refused(client, Command.DEVICE_GET_REGION_INFO, proto.REGION_INFO.pack(argsz, 0, index, 0, 0, 0))


def test_short_region_info(client: Client) -> None:
    refused(client, Command.DEVICE_GET_REGION_INFO, proto.REGION_INFO.pack(32, 0, 0, 0, 0, 0)[:-1])


@pytest.mark.parametrize(("index", "flags", "count"), [(0, 3, 1), (1, 0, 0), (2, 3, 32), (3, 1, 1), (4, 1, 1)])
def test_irq_info(client: Client, index: int, flags: int, count: int) -> None:
    answer = client.call(Command.DEVICE_GET_IRQ_INFO, proto.IRQ_INFO.pack(16, 0, index, 0))
    assert proto.IRQ_INFO.unpack(answer) == (16, flags, index, count)


@pytest.mark.parametrize(
    "payload",
    [
        bytes(15),
        proto.IRQ_INFO.pack(15, 0, 0, 0),
        proto.IRQ_INFO.pack(16, 0, 5, 0),
        proto.IRQ_INFO.pack(16, 0, 1 << 31, 0),
    ],
)
def test_bad_irq_info(client: Client, payload: bytes) -> None:
    refused(client, Command.DEVICE_GET_IRQ_INFO, payload)


def test_io_fds_of_a_region_are_none(client: Client) -> None:
    for argsz in (16, 4096):
        answer = client.call(Command.DEVICE_GET_REGION_IO_FDS, proto.REGION_IO_FDS.pack(argsz, 0, 0, 0))
        assert proto.REGION_IO_FDS.unpack(answer) == (16, 0, 0, 0)


@pytest.mark.parametrize("fields", [(15, 0, 0, 0), (16, 1, 0, 0), (16, 0, 9, 0), (16, 0, 0, 1)])
def test_bad_io_fds(client: Client, fields: tuple[int, ...]) -> None:
    refused(client, Command.DEVICE_GET_REGION_IO_FDS, proto.REGION_IO_FDS.pack(*fields))


@pytest.mark.parametrize("operation", [1 << 16, 1 << 17, 1 << 18, 1 << 16 | 1 << 18, 0])
def test_features_are_not_supported(client: Client, operation: int) -> None:
    for index in range(10):
        payload = struct.pack("<II", 16, operation | index) + bytes(8)
        refused(client, Command.DEVICE_FEATURE, payload, errno.ENOTTY)


@pytest.mark.parametrize("payload", [bytes(7), struct.pack("<II", 7, 1 << 18)])
def test_bad_features(client: Client, payload: bytes) -> None:
    refused(client, Command.DEVICE_FEATURE, payload)
