"""Headers, sizes, splits and the descriptors that travel with messages."""

import errno
import os

import pytest

from tests.wire.client import Client, RemoteError, closing, eventfds, header, memfd
from tests.wire.conftest import Rig, open_fds
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.proto import Command

READ_4 = proto.REGION_ACCESS.pack(0, 0, 4)


def write_message(offset: int, data: bytes, *, message_id: int = 9, posted: bool = True) -> bytes:
    payload = proto.REGION_ACCESS.pack(offset, 0, len(data)) + data
    return proto.request(message_id, Command.REGION_WRITE, payload, no_reply=posted)


def map_message(address: int, message_id: int = 9) -> bytes:
    return proto.request(message_id, Command.DMA_MAP, proto.DMA_MAP.pack(32, 3, 0, address, 4096))


@pytest.mark.parametrize("size", [0, 15, proto.MAX_MESSAGE_SIZE + 1, 0xFFFFFFFF])
def test_a_size_that_loses_the_stream_is_answered_and_ends_the_connection(client: Client, size: int) -> None:
    client.send_raw(header(3, Command.REGION_READ, size))
    message = client.receive()
    assert (message.message_id, message.command, message.errno) == (3, Command.REGION_READ, errno.EINVAL)
    assert client.hung_up()


def test_the_largest_message_is_accepted(rig: Rig, client: Client) -> None:
    data = bytes(proto.MAX_DATA_XFER_SIZE)
    message = proto.request(1, Command.REGION_WRITE, proto.REGION_ACCESS.pack(0, 0, len(data)) + data)
    assert len(message) == proto.MAX_MESSAGE_SIZE
    for at in range(0, len(message), 32768):
        client.send_raw(message[at : at + 32768])
    # as a message it is fine; the BAR is only 4 KiB
    assert client.receive().errno == errno.EINVAL
    assert client.region_read(0, 0, 1) == b"\0"


@pytest.mark.parametrize("kind", range(2, 16))
def test_unknown_message_type(client: Client, kind: int) -> None:
    client.send_raw(header(5, Command.REGION_READ, 32, flags=kind) + READ_4)
    message = client.receive()
    assert (message.message_id, message.errno) == (5, errno.EINVAL)
    assert client.region_read(0, 0, 1) == b"\0"


@pytest.mark.parametrize("flags", [0x20, 0x40, 0x80000000])
def test_unknown_or_misplaced_flags(client: Client, flags: int) -> None:
    client.send_raw(header(5, Command.REGION_READ, 32, flags=flags) + READ_4)
    assert client.receive().errno == errno.EINVAL


@pytest.mark.parametrize("command", [0, 11, 12, 14, 17, 18, 19, 0xFFFF])
def test_unknown_commands(client: Client, command: int) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command, READ_4)
    assert caught.value.errno == errno.EINVAL


def test_an_unsolicited_reply_is_dropped_and_counted(rig: Rig, client: Client) -> None:
    client.send_raw(proto.reply(77, Command.DMA_READ, bytes(24)))
    client.send_raw(proto.error_reply(78, Command.DMA_READ, errno.EIO))
    assert client.is_quiet()
    assert rig.server.counters[ServerCount.UNEXPECTED_REPLY] == 2
    assert client.region_read(0, 0, 1) == b"\0"


HEADER_ONLY = [
    Command.DMA_MAP,
    Command.DMA_UNMAP,
    Command.DEVICE_GET_INFO,
    Command.DEVICE_GET_REGION_INFO,
    Command.DEVICE_GET_REGION_IO_FDS,
    Command.DEVICE_GET_IRQ_INFO,
    Command.DEVICE_SET_IRQS,
    Command.REGION_READ,
    Command.REGION_WRITE,
    Command.REGION_WRITE_MULTI,
    Command.DEVICE_FEATURE,
]


@pytest.mark.parametrize("command", HEADER_ONLY)
def test_a_header_alone_where_a_payload_is_due(client: Client, command: int) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("message_id", [0, 1, 0x7FFF, 0xFFFF])
def test_ids_are_echoed(client: Client, message_id: int) -> None:
    for _ in range(2):
        client.send(Command.REGION_READ, READ_4, message_id=message_id)
        assert client.receive().message_id == message_id


def test_every_split_of_a_message(rig: Rig, client: Client) -> None:
    message = write_message(0, b"ABCDEFGH", posted=False)
    for cut in range(1, len(message)):
        client.send_raw(message[:cut])
        assert len(rig.device.writes) == 0
        client.send_raw(message[cut:])
        assert client.receive().payload == message[16:32]
        assert rig.device.writes == [(0, 0, b"ABCDEFGH")]
        rig.device.writes.clear()


def test_every_split_of_a_message_with_a_descriptor(rig: Rig, client: Client) -> None:
    with closing(memfd(4096)) as (fd,):
        os.pwrite(fd, b"guest", 0)
        message = map_message(0x1000)
        for cut in range(1, len(message)):
            client.send_raw(message[:cut], [fd])
            client.send_raw(message[cut:])
            assert client.receive().errno == 0
            assert rig.server.dma.read(0x1000, 5) == b"guest"
            client.dma_unmap(0x1000, 4096)


def test_a_message_byte_by_byte(rig: Rig, client: Client) -> None:
    for byte in write_message(8, b"12345678"):
        client.send_raw(bytes([byte]))
    assert rig.device.writes == [(0, 8, b"12345678")]


def test_many_messages_in_one_read_keep_their_order(rig: Rig, client: Client) -> None:
    messages = [write_message(8 * i, i.to_bytes(8, "little")) for i in range(100)]
    messages.append(proto.request(1234, Command.REGION_READ, proto.REGION_ACCESS.pack(0, 0, 800)))
    stream = b"".join(messages)
    client.send_raw(stream[:-3])
    assert len(rig.device.writes) == 100
    client.send_raw(stream[-3:])
    answer = client.receive()
    assert answer.message_id == 1234
    assert answer.payload[16:] == b"".join(i.to_bytes(8, "little") for i in range(100))


def test_descriptors_belong_to_the_message_that_carries_them(rig: Rig, client: Client) -> None:
    """Writes, maps with and without descriptors, all in the socket before the server reads."""
    with closing(memfd(4096), memfd(4096)) as (one, two):
        os.pwrite(one, b"one", 0)
        os.pwrite(two, b"two", 0)
        client.post_raw(write_message(0, bytes(8)))
        client.post_raw(map_message(0x10000))
        client.post_raw(map_message(0x20000), [one])
        client.post_raw(map_message(0x30000))
        client.post_raw(write_message(8, bytes(8)) + write_message(16, bytes(4)))
        client.post_raw(map_message(0x40000), [two])
        rig.step()
        for _ in range(4):
            assert client.receive().errno == 0
    assert [backed for *_, backed in rig.server.dma.windows()] == [False, True, False, True]
    assert rig.server.dma.read(0x20000, 3) == b"one"
    assert rig.server.dma.read(0x40000, 3) == b"two"
    assert len(rig.device.writes) == 3


def test_descriptors_of_messages_sent_in_one_call_belong_to_the_first(rig: Rig, client: Client) -> None:
    with closing(memfd(4096)) as (fd,):
        client.send_raw(map_message(0x10000) + map_message(0x20000) + map_message(0x30000), [fd])
        for _ in range(3):
            assert client.receive().errno == 0
    assert [backed for *_, backed in rig.server.dma.windows()] == [True, False, False]


def test_descriptors_in_a_body_are_dropped(rig: Rig, client: Client) -> None:
    before = open_fds()
    message = map_message(0x1000)
    with closing(memfd(4096)) as (fd,):
        client.send_raw(message[:20])
        client.send_raw(message[20:], [fd])
        assert client.receive().errno == 0
    assert rig.server.dma.windows() == [(0x1000, 4096, True, False)]
    assert rig.server.counters[ServerCount.FDS_OUT_OF_PLACE] == 1
    assert open_fds() == before


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (Command.DEVICE_GET_INFO, proto.DEVICE_INFO.pack(16, 0, 0, 0)),
        (Command.REGION_READ, READ_4),
        (Command.REGION_WRITE, READ_4 + b"abcd"),
        (Command.DEVICE_RESET, b""),
        (Command.DMA_UNMAP, proto.DMA_UNMAP.pack(24, 0, 0x1000, 4096)),
        (Command.VERSION, proto.VERSION.pack(0, 0)),
        (99, b""),
    ],
)
def test_descriptors_where_none_belong_are_refused_and_closed(
    rig: Rig, client: Client, command: int, payload: bytes
) -> None:
    before = open_fds()
    with closing(*eventfds(3)) as fds, pytest.raises(RemoteError) as caught:
        client.call(command, payload, fds=fds)
    assert caught.value.errno == errno.EINVAL
    assert open_fds() == before
    assert rig.device.writes == []
    assert rig.device.resets == []


@pytest.mark.parametrize("size", [4, 8])
def test_descriptors_of_a_posted_write_do_not_reach_the_next_message(rig: Rig, client: Client, size: int) -> None:
    before = open_fds()
    with closing(memfd(4096)) as (fd,):
        client.send_raw(write_message(0, bytes(size)), [fd])
        client.send_raw(map_message(0x1000))
        assert client.receive().errno == 0
    assert rig.device.writes == []
    assert rig.server.dma.windows() == [(0x1000, 4096, True, False)]
    assert open_fds() == before


def test_too_many_descriptors_are_refused_and_closed(rig: Rig, client: Client) -> None:
    before = open_fds()
    with closing(*eventfds(17)) as fds:
        with pytest.raises(RemoteError) as caught:
            client.set_irqs(0x24, 2, 0, 17, fds=fds)
        assert caught.value.errno == errno.EINVAL
        assert not rig.server.irqs.armed(0)
        # a header in pieces, each with descriptors
        message = map_message(0x1000)
        client.send_raw(message[:4], fds[:10])
        client.send_raw(message[4:8], fds[:10])
        client.send_raw(message[8:])
        assert client.receive().errno == errno.EINVAL
    assert open_fds() == before


def test_the_own_socket_as_a_descriptor_does_not_keep_the_connection_open(rig: Rig, client: Client) -> None:
    client.send_raw(map_message(0)[:7], [client.sock.fileno()])
    client.close()
    rig.step()
    assert not rig.server.connected


def test_descriptors_of_an_unfinished_message_are_closed_with_the_connection(rig: Rig, client: Client) -> None:
    with closing(*eventfds(2)) as fds:
        before = open_fds()
        client.send_raw(map_message(0)[:7], fds)
        assert open_fds() == before + 2
        client.close()
        rig.step()
        # both ends of the socket are gone, too
        assert open_fds() == before - 2


@pytest.mark.parametrize("command", range(20))
def test_no_reply_is_obeyed_for_every_command(rig: Rig, client: Client, command: int) -> None:
    before = open_fds()
    with closing(*eventfds(1)) as fds:
        for payload in (b"", bytes(16), bytes(20), bytes(24), bytes(32)):
            client.send(command, payload, no_reply=True)
            client.send(command, payload, no_reply=True, fds=fds)
    assert client.is_quiet()
    assert open_fds() == before
    assert client.region_read(0, 0, 1) == b"\0"
