"""REGION_READ, REGION_WRITE, REGION_WRITE_MULTI, posted and not."""

import errno
import struct

import pytest

from tests.wire.client import Client, RemoteError
from tests.wire.conftest import Rig
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.proto import Command

ACCESS = proto.REGION_ACCESS.pack


def refused(client: Client, command: int, payload: bytes, code: int = errno.EINVAL) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command, payload)
    assert caught.value.errno == code


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 64, 4096])
def test_write_then_read(client: Client, size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    client.region_write(0, 4096 - size, data)
    assert client.region_read(0, 4096 - size, size) == data
    client.region_write(0, 0, data, posted=True)
    assert client.region_read(0, 0, size) == data


def test_whole_config_in_one_read(client: Client) -> None:
    assert client.region_read(7, 0, 4096) == bytes(4096)


def test_count_zero_does_nothing(rig: Rig, client: Client) -> None:
    rig.device.on_read = lambda *access: pytest.fail("read")
    assert client.region_read(0, 0, 0) == b""
    client.region_write(0, 4096, b"")
    client.region_write(0, 0, b"", posted=True)
    assert client.region_read(5, 0, 0) == b""
    assert rig.device.writes == []


BAD_PLACES = {
    "last byte past the end": (4093, 0, 4),
    "offset at the end": (4096, 0, 4),
    "offset past the end": (1 << 40, 0, 4),
    "offset and count overflow": ((1 << 64) - 2, 0, 4),
    "empty region": (0, 5, 4),
    "region index": (0, 9, 4),
    "region index far": (0, 0xFFFFFFFF, 4),
}


@pytest.mark.parametrize("place", BAD_PLACES.values(), ids=BAD_PLACES.keys())
def test_bad_places(rig: Rig, client: Client, place: tuple[int, int, int]) -> None:
    refused(client, Command.REGION_READ, ACCESS(*place))
    refused(client, Command.REGION_WRITE, ACCESS(*place) + b"1234")
    client.send(Command.REGION_WRITE, ACCESS(*place) + b"1234", no_reply=True)
    assert client.is_quiet()
    assert rig.server.counters[ServerCount.POSTED_WRITE_REFUSED] == 1
    assert rig.device.writes == []


def test_bad_counts(rig: Rig, client: Client) -> None:
    for size in (4097, proto.MAX_DATA_XFER_SIZE + 1, 0xFFFFFFFF):
        refused(client, Command.REGION_READ, ACCESS(0, 0, size))
    # count and data differ, in both directions
    for posted in (False, True):
        for count, data in ((4, b"123"), (4, b"12345"), (8, b"1234"), (4, b"12345678"), (0, b"1"), (0xFFFFFFFF, b"")):
            payload = ACCESS(0, 0, count) + data
            if posted:
                client.send(Command.REGION_WRITE, payload, no_reply=True)
            else:
                refused(client, Command.REGION_WRITE, payload)
    assert client.is_quiet()
    assert rig.device.writes == []
    refused(client, Command.REGION_READ, ACCESS(0, 0, 4) + b"x")
    refused(client, Command.REGION_READ, ACCESS(0, 0, 4)[:-1])
    refused(client, Command.REGION_WRITE, ACCESS(0, 0, 4)[:-1])


def test_direction_is_checked(rig: Rig, client: Client) -> None:
    refused(client, Command.REGION_WRITE, ACCESS(0, 1, 4) + b"1234")
    refused(client, Command.REGION_READ, ACCESS(0, 4, 4))
    client.region_write(1, 0, b"12345678", posted=True)
    assert rig.device.writes == []
    client.region_write(4, 0, b"1234")
    assert client.region_read(1, 0, 4) == bytes(4)


def test_3000_posted_writes_then_a_read(rig: Rig, client: Client) -> None:
    for i in range(3000):
        payload = ACCESS(8 * (i % 512), 0, 8) + struct.pack("<Q", i)
        client.post_raw(proto.request(i, Command.REGION_WRITE, payload, no_reply=True))
        if i % 100 == 99:
            rig.step()
    assert client.region_read(0, 8 * (2999 % 512), 8) == struct.pack("<Q", 2999)
    assert [struct.unpack("<Q", data)[0] for _, _, data in rig.device.writes] == list(range(3000))


def multi(entries: list[tuple[int, int, int, bytes]], count: int | None = None) -> bytes:
    body = b"".join(proto.MULTI_ENTRY.pack(*entry) for entry in entries)
    return struct.pack("<Q", len(entries) if count is None else count) + body


@pytest.mark.parametrize("entries", [1, 2, 200])
def test_write_multi(rig: Rig, client: Client, entries: int) -> None:
    writes = [(8 * i, 0, 1 + i % 8, bytes([i % 256] * 8)) for i in range(entries)]
    assert client.call(Command.REGION_WRITE_MULTI, multi(writes)) == struct.pack("<Q", entries)
    assert rig.device.writes == [(0, offset, data[:count]) for offset, _, count, data in writes]
    rig.device.writes.clear()
    client.send(Command.REGION_WRITE_MULTI, multi(writes), no_reply=True)
    assert client.is_quiet()
    assert len(rig.device.writes) == entries


GOOD = (0, 0, 8, bytes(8))
BAD_MULTI = {
    "no entry": multi([]),
    "201 entries": multi([GOOD] * 201),
    "fewer than said": multi([GOOD], 2),
    "more than said": multi([GOOD] * 2, 1),
    "half an entry": multi([GOOD])[:-1],
    "count overflow": multi([GOOD], (1 << 64) - 1),
    "count 9": multi([GOOD, (0, 0, 9, bytes(8))]),
    "count 0": multi([GOOD, (0, 0, 0, bytes(8))]),
    "region": multi([GOOD, (0, 9, 8, bytes(8))]),
    "read-only region": multi([GOOD, (0, 1, 8, bytes(8))]),
    "offset": multi([GOOD, (4089, 0, 8, bytes(8))]),
    "short": bytes(7),
}


@pytest.mark.parametrize("payload", BAD_MULTI.values(), ids=BAD_MULTI.keys())
def test_bad_write_multi_writes_nothing(rig: Rig, client: Client, payload: bytes) -> None:
    refused(client, Command.REGION_WRITE_MULTI, payload)
    assert rig.device.writes == []


def test_a_failing_device_is_answered_and_counted(rig: Rig, client: Client) -> None:
    def fail(*access: object) -> None:
        raise OSError(errno.ENOENT, "not the client's business")

    def wrong(*access: object) -> bytes:
        return b"three"

    rig.device.on_write = fail
    refused(client, Command.REGION_WRITE, ACCESS(0, 0, 4) + b"1234", errno.EIO)
    refused(client, Command.REGION_WRITE_MULTI, multi([GOOD]), errno.EIO)
    client.region_write(0, 0, bytes(8), posted=True)
    assert client.is_quiet()
    rig.device.on_read = wrong
    refused(client, Command.REGION_READ, ACCESS(0, 0, 4), errno.EIO)
    assert rig.server.counters[ServerCount.DEVICE_ERROR] == 4
    rig.device.on_read = lambda *access: None
    assert client.region_read(0, 0, 1) == b"\0"


def test_log_is_bounded(rig: Rig, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(300):
        client.send(99, no_reply=True)
    assert rig.server.counters[ServerCount.REFUSED] == 300
    assert len(caplog.records) == 101


def test_a_device_can_tell_whether_more_was_read_with_a_write(rig: Rig, client: Client) -> None:
    more: list[bool] = []
    rig.device.on_write = lambda *write: more.append(rig.server.reads_on())
    write = proto.request(7, Command.REGION_WRITE, ACCESS(0, 0, 8) + bytes(8), no_reply=True)
    client.send_raw(write * 3)
    client.send_raw(write)
    client.send_raw(write + write[:20])
    assert more == [True, True, False, False, True]
    client.send_raw(write[20:])
    assert more[-1] is False
