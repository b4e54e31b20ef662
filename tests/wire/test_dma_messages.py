"""DMA by message, where there is no file."""

import errno
import os
import threading

import pytest

from tests.support.content import some_bytes
from tests.wire.client import ANSWER_TIMEOUT_S, Client, Message, closing, memfd
from tests.wire.conftest import Rig
from tests.wire.guest_memory import PAGE, Guest, unmap_payload
from vhca.hw.memory import DmaError
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.proto import Command


def test_read_and_write_by_message(rig: Rig, client: Client) -> None:
    client.dma_map(0, 1 << 30)
    guest = Guest(client)
    guest.answer_read(0x1234, b"from the guest")
    assert rig.server.dma.read(0x1234, 14) == b"from the guest"
    request = client.receive()
    assert (request.command, request.flags) == (Command.DMA_READ, 0)
    assert request.payload == proto.DMA_ACCESS.pack(0x1234, 14)
    guest.answer_write(0x4321, 12)
    rig.server.dma.write(0x4321, b"to the guest")
    request = client.receive()
    assert request.command == Command.DMA_WRITE
    assert request.payload == proto.DMA_ACCESS.pack(0x4321, 12) + b"to the guest"


class Answering:
    """A client that answers DMA messages out of `memory` in a thread of its own, and keeps them."""

    def __init__(self, client: Client, memory: bytearray, count: int) -> None:
        self.messages: list[Message] = []
        self._thread = threading.Thread(
            target=lambda: self.messages.extend(client.serve_dma(memory) for _ in range(count))
        )

    def __enter__(self) -> list[Message]:
        self._thread.start()
        return self.messages

    def __exit__(self, *error: object) -> None:
        self._thread.join(ANSWER_TIMEOUT_S * 2)


def test_large_accesses_come_in_pieces_of_64_kib(rig: Rig, client: Client) -> None:
    client.dma_map(0, 1 << 30)
    memory = bytearray(some_bytes(100_000))
    with Answering(client, memory, 2) as messages:
        assert rig.server.dma.read(1000, 65546) == memory[1000:66546]
    assert [message.payload for message in messages] == [
        proto.DMA_ACCESS.pack(1000, 65536),
        proto.DMA_ACCESS.pack(66536, 10),
    ]
    data = some_bytes(65546)
    with Answering(client, memory, 2) as messages:
        rig.server.dma.write(2000, data)
    assert memory[2000:67546] == data
    assert [len(message.payload) - 16 for message in messages] == [65536, 10]


def test_pieces_obey_the_client(rig: Rig) -> None:
    client = rig.connect()
    client.negotiate(capabilities={"max_data_xfer_size": 8})
    client.dma_map(0, PAGE)
    memory = bytearray(PAGE)
    with Answering(client, memory, 3) as messages:
        rig.server.dma.write(0, b"twenty bytes of data")
    assert memory[:20] == b"twenty bytes of data"
    assert [len(message.payload) - 16 for message in messages] == [8, 8, 4]


def test_an_access_across_a_file_and_messages(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        client.dma_map(0, PAGE, fd=fd)
        client.dma_map(PAGE, PAGE)
        guest = Guest(client)
        guest.answer_write(PAGE, 2)
        rig.server.dma.write(PAGE - 2, b"abcd")
        assert os.pread(fd, 2, PAGE - 2) == b"ab"
        guest.answer_read(PAGE, b"CD")
        assert rig.server.dma.read(PAGE - 2, 4) == b"abCD"
        assert rig.server.dma.view(PAGE - 2, 4) is None
        assert rig.server.dma.view(PAGE, 4) is None


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (errno.ENODEV, errno.ENODEV),
        (errno.E2BIG, errno.E2BIG),
        (errno.ENOSYS, errno.ENOSYS),
        (0xFFFFFFFF, errno.EIO),
        (0, errno.EIO),
    ],
)
def test_the_client_refuses(rig: Rig, client: Client, code: int, meaning: int) -> None:
    client.dma_map(0, PAGE)
    guest = Guest(client)
    guest.answer(Command.DMA_READ, code=code)
    with pytest.raises(DmaError, match=os.strerror(meaning)):
        rig.server.dma.read(0, 4)
    guest.answer_read(0, b"1234")
    assert rig.server.dma.read(0, 4) == b"1234"


@pytest.mark.parametrize(
    "payload",
    [b"", proto.DMA_ACCESS.pack(0, 4), proto.DMA_ACCESS.pack(0, 4) + b"12345", proto.DMA_ACCESS.pack(8, 4) + b"1234"],
)
def test_malformed_replies(rig: Rig, client: Client, payload: bytes) -> None:
    client.dma_map(0, PAGE)
    Guest(client).answer(Command.DMA_READ, payload)
    with pytest.raises(DmaError, match="malformed"):
        rig.server.dma.read(0, 4)


def test_no_answer_is_an_error_after_the_limit_and_a_late_one_is_dropped(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    with pytest.raises(DmaError, match="no reply"):
        rig.server.dma.read(0, 4)
    rig.step()
    guest = Guest(client)
    guest.answer_read(0, b"late")
    guest.answer_read(0, b"good")
    assert rig.server.dma.read(0, 4) == b"good"
    assert rig.server.counters[ServerCount.LATE_REPLY] == 1
    assert rig.server.counters[ServerCount.UNEXPECTED_REPLY] == 0


def test_the_client_hangs_up_while_the_server_waits(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    client.close()
    with pytest.raises(DmaError, match="went away"):
        rig.server.dma.write(0, b"1234")
    rig.step()
    assert not rig.server.connected
    with pytest.raises(DmaError, match="not mapped"):
        rig.server.dma.write(0, b"1234")


def test_dma_to_the_own_bar_is_served_while_waiting(rig: Rig, client: Client) -> None:
    """QEMU turns such a DMA_WRITE into a write to the device and answers only when that is done."""
    client.dma_map(0, PAGE)
    access = proto.REGION_ACCESS.pack(0x10, 0, 8)
    client.post_raw(proto.request(500, Command.REGION_WRITE, access + b"own BAR!", no_reply=True))
    client.post_raw(proto.request(501, Command.REGION_READ, access))
    Guest(client).answer_write(0, 8)
    rig.server.dma.write(0, b"own BAR!")
    assert rig.device.writes == [(0, 0x10, b"own BAR!")]
    assert client.receive().command == Command.DMA_WRITE
    answer = client.receive()
    assert (answer.message_id, answer.payload) == (501, access + b"own BAR!")


def test_ids_of_both_sides_may_collide(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    access = proto.REGION_ACCESS.pack(0, 0, 4)
    client.post_raw(proto.request(0, Command.REGION_READ, access))
    Guest(client).answer_read(0, b"dma!")
    assert rig.server.dma.read(0, 4) == b"dma!"
    assert client.receive().command == Command.DMA_READ
    answer = client.receive()
    assert (answer.message_id, answer.command) == (0, Command.REGION_READ)


def test_message_dma_in_a_posted_write(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    read: list[bytes] = []
    rig.device.on_write = lambda *access: read.append(rig.server.dma.read(0, 4))
    access = proto.REGION_ACCESS.pack(0, 0, 8)
    client.post_raw(proto.request(500, Command.REGION_WRITE, access + bytes(8), no_reply=True))
    Guest(client).answer_read(0, b"dma!")
    rig.step()
    assert read == [b"dma!"]


def test_message_dma_in_a_write_that_waits_for_its_reply_fails_at_once(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    errors: list[str] = []

    def on_write(*access: object) -> None:
        try:
            rig.server.dma.read(0, 4)
        except DmaError as error:
            errors.append(str(error))

    rig.device.on_write = on_write
    client.region_write(0, 0, bytes(8))
    assert len(errors) == 1
    assert "waits for a reply" in errors[0]
    # the server sent nothing for it
    assert client.is_quiet()


def test_nested_message_dma_is_bounded(rig: Rig, client: Client) -> None:
    client.dma_map(0, PAGE)
    depths: list[str] = []

    def on_write(*access: object) -> None:
        try:
            rig.server.dma.read(0, 4)
        except DmaError as error:
            depths.append(str(error))

    rig.device.on_write = on_write
    access = proto.REGION_ACCESS.pack(0, 0, 8) + bytes(8)
    for i in range(20):
        client.post_raw(proto.request(i, Command.REGION_WRITE, access, no_reply=True))
    guest = Guest(client)
    for _ in range(8):
        guest.answer_read(0, b"1234")
    rig.step()
    assert rig.server.counters[ServerCount.DMA_REFUSED] == 12
    assert len(depths) == 12
    assert [client.receive().command for _ in range(8)] == [Command.DMA_READ] * 8
    assert client.region_read(0, 0, 1) == b"\0"


def test_a_window_unmapped_during_an_access_is_an_error(rig: Rig, client: Client) -> None:
    with closing(memfd(PAGE)) as (fd,):
        client.dma_map(0, PAGE)
        client.dma_map(PAGE, PAGE, fd=fd)
        client.post_raw(proto.request(900, Command.DMA_UNMAP, unmap_payload(PAGE, PAGE)))
        Guest(client).answer_read(PAGE - 2, b"ab")
        with pytest.raises(DmaError, match="unmapped during"):
            rig.server.dma.read(PAGE - 2, 4)
