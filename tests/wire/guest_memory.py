"""A client's memory as its server sees it: what maps and unmaps it, and who answers for what has no file."""

import pytest

from tests.wire.client import Client, RemoteError
from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

PAGE = 4096
READ, WRITE = 1, 2


def refused(client: Client, code: int, command: int, payload: bytes, fds: list[int] | None = None) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call(command, payload, fds=fds or [])
    assert caught.value.errno == code


def map_payload(address: int, size: int, offset: int = 0, flags: int = 3, argsz: int = 32) -> bytes:
    return proto.DMA_MAP.pack(argsz, flags, offset, address, size)


def unmap_payload(address: int, size: int, flags: int = 0, argsz: int = 24) -> bytes:
    return proto.DMA_UNMAP.pack(argsz, flags, address, size)


class Guest:
    """Guest memory behind a client that answers DMA messages whenever the server waits.

    The server waits in poll(); the answers are put into the socket beforehand, in the right order, since
    ids of the server's requests start at 0.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.next_id = 0

    def answer(self, command: int, payload: bytes = b"", *, code: int | None = None) -> None:
        message_id, self.next_id = self.next_id, self.next_id + 1
        if code is not None:
            self.client.post_raw(proto.error_reply(message_id, command, code))
        else:
            self.client.post_raw(proto.reply(message_id, command, payload))

    def answer_read(self, address: int, data: bytes) -> None:
        self.answer(Command.DMA_READ, proto.DMA_ACCESS.pack(address, len(data)) + data)

    def answer_write(self, address: int, size: int) -> None:
        self.answer(Command.DMA_WRITE, proto.DMA_ACCESS.pack(address, size))
