"""VERSION: what is accepted, what ends the connection."""

import errno
import json

import pytest

from tests.wire.client import Client, RemoteError, header
from tests.wire.conftest import Rig
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

HEAD = proto.VERSION.pack(0, 0)


def version_of(payload: bytes) -> tuple[int, int, dict[str, object]]:
    major, minor = proto.VERSION.unpack_from(payload)
    assert payload.endswith(b"\0")
    assert payload.count(b"\0", 4) == 1
    return major, minor, json.loads(payload[4:-1])


@pytest.mark.parametrize(
    "payload",
    [
        HEAD,
        HEAD + b"{}\0",
        HEAD + b'{"capabilities":{}}\0',
        HEAD + b'{"capabilities":{"max_msg_fds":16,"unknown":[1]}}\0',
        proto.VERSION.pack(0, 1) + b"{}\0",
    ],
    ids=["no JSON", "empty", "no capabilities", "unknown keys", "minor 1"],
)
def test_valid_versions_get_0_0_and_known_capabilities(rig: Rig, payload: bytes) -> None:
    client = rig.connect()
    major, minor, document = version_of(client.call(Command.VERSION, payload))
    assert (major, minor) == (0, 0)
    assert document == {
        "capabilities": {
            "max_msg_fds": 16,
            "max_data_xfer_size": 1 << 20,
            "pgsizes": 4096,
            "max_dma_maps": 65535,
        }
    }
    assert client.region_read(0, 0, 4) == bytes(4)


def test_what_qemu_sends_is_accepted(rig: Rig) -> None:
    client = rig.connect()
    client.negotiate(
        capabilities={
            "pgsizes": 4096,
            "max_msg_fds": 16,
            "max_dma_maps": 65535,
            "max_data_xfer_size": 1048576,
            "migration": {"max_bitmap_size": 268435456, "pgsize": 4096},
            "write_multiple": True,
        }
    )
    assert rig.server.connected


BAD_JSON = {
    "no NUL": b"{}",
    "NUL inside": b"{}\0\0",
    "only NUL": b"\0",
    "missing brace": b'{"capabilities":{\0',
    "missing quote": b'{"capabilities:{}}\0',
    "list": b"[]\0",
    "not UTF-8": b'{"\xff":1}\0',
    "too deep": b"[" * 100000 + b"\0",
    "huge number": b'{"capabilities":{"max_msg_fds":' + b"9" * 5000 + b"}}\0",
    "capabilities a list": b'{"capabilities":[]}\0',
    "capabilities null": b'{"capabilities":null}\0',
    "max_msg_fds negative": b'{"capabilities":{"max_msg_fds":-1}}\0',
    "max_msg_fds string": b'{"capabilities":{"max_msg_fds":"16"}}\0',
    "max_msg_fds bool": b'{"capabilities":{"max_msg_fds":true}}\0',
    "max_msg_fds float": b'{"capabilities":{"max_msg_fds":1.5}}\0',
    "max_msg_fds above what Linux carries": b'{"capabilities":{"max_msg_fds":254}}\0',
    "max_data_xfer_size zero": b'{"capabilities":{"max_data_xfer_size":0}}\0',
    "write_multiple a number": b'{"capabilities":{"write_multiple":1}}\0',
    "migration not an object": b'{"capabilities":{"migration":1}}\0',
    "migration pgsize a string": b'{"capabilities":{"migration":{"pgsize":"4096"}}}\0',
    "migration pgsize 4095": b'{"capabilities":{"migration":{"pgsize":4095}}}\0',
    "migration pgsize 4097": b'{"capabilities":{"migration":{"pgsize":4097}}}\0',
}


@pytest.mark.parametrize("text", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused_and_ends_the_connection(rig: Rig, text: bytes) -> None:
    refused(rig, HEAD + text)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\0\0", proto.VERSION.pack(1, 0) + b"{}\0"])
def test_short_or_wrong_major_is_refused(rig: Rig, payload: bytes) -> None:
    refused(rig, payload)


def refused(rig: Rig, payload: bytes) -> None:
    client = rig.connect()
    with pytest.raises(RemoteError) as caught:
        client.call(Command.VERSION, payload)
    assert caught.value.errno == errno.EINVAL
    assert client.hung_up()
    # the next client is served
    assert not rig.server.connected
    rig.connect().negotiate()


def test_first_command_must_be_version(rig: Rig) -> None:
    client = rig.connect()
    with pytest.raises(RemoteError) as caught:
        client.call(Command.DEVICE_GET_INFO, proto.DEVICE_INFO.pack(16, 0, 0, 0))
    assert caught.value.errno == errno.EINVAL
    assert client.hung_up()


def test_posted_write_before_version_is_dropped_and_ends_the_connection(rig: Rig) -> None:
    client = rig.connect()
    client.region_write(0, 0, bytes(8), posted=True)
    assert client.hung_up()
    assert rig.device.writes == []


def test_second_version_is_refused_without_harm(client: Client) -> None:
    with pytest.raises(RemoteError) as caught:
        client.negotiate()
    assert caught.value.errno == errno.EINVAL
    assert client.region_read(0, 0, 1) == b"\0"


def test_over_long_version(rig: Rig) -> None:
    client = rig.connect()
    client.send_raw(header(7, Command.VERSION, proto.MAX_MESSAGE_SIZE + 1))
    message = client.receive()
    assert (message.message_id, message.errno) == (7, errno.EINVAL)
    assert client.hung_up()


def test_hang_up_during_negotiation(rig: Rig) -> None:
    client = rig.connect()
    client.send_raw(proto.request(0, Command.VERSION, proto.pack_version(0, {}))[:20])
    assert rig.server.connected
    client.close()
    rig.step()
    assert not rig.server.connected
    rig.connect().negotiate()
