"""A vfio-user client, one message at a time: what a virtual machine monitor sends, and what one never would."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from vhca.vfio_user import proto
from vhca.vfio_user.proto import Command

ANSWER_TIMEOUT_S = 5


class RemoteError(OSError):
    """The server answered with an error reply; `errno` is the server's."""


@dataclass
class Message:
    """One received message."""

    message_id: int
    command: int
    flags: int
    errno: int
    payload: bytes
    fds: list[int] = field(default_factory=list)

    @property
    def is_reply(self) -> bool:
        return self.flags & proto.FLAGS_TYPE_MASK == proto.FLAGS_REPLY


class Client:
    """The client's end of a connection.

    `step` lets the server work; in a test with a single thread nothing happens without it.
    """

    def __init__(self, sock: socket.socket, step: Callable[[], None]) -> None:
        self.sock = sock
        self.step = step
        self.next_id = 0
        # Not settimeout(): that has Python poll, and a unix socket counts as writable only while three
        # quarters of its buffer are free.
        sock.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", ANSWER_TIMEOUT_S, 0))

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    # ---- raw messages ----

    def send_raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes, with descriptors attached to the first of them, and let the server work."""
        self.post_raw(data, fds)
        self.step()

    def post_raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes and let them lie in the socket."""
        sent = socket.send_fds(self.sock, [data], list(fds)) if fds else self.sock.send(data)
        assert sent == len(data)

    def send(
        self,
        command: int,
        payload: bytes = b"",
        *,
        fds: Sequence[int] = (),
        no_reply: bool = False,
        message_id: int | None = None,
    ) -> int:
        """Send a command, let the server work, and return the message id."""
        if message_id is None:
            message_id = self.next_id
            self.next_id = (self.next_id + 1) & 0xFFFF
        self.send_raw(proto.request(message_id, command, payload, no_reply=no_reply), fds)
        return message_id

    def receive(self) -> Message:
        """Receive the next message; EOFError if the server has hung up."""
        head, fds = self._receive_exactly(proto.HEADER_SIZE, with_fds=True)
        message_id, command, size, flags, errno = proto.HEADER.unpack(head)
        payload, _ = self._receive_exactly(size - proto.HEADER_SIZE, with_fds=False)
        return Message(message_id, command, flags, errno, payload, fds)

    def _receive_exactly(self, size: int, *, with_fds: bool) -> tuple[bytes, list[int]]:
        data, fds = b"", array.array("i")
        while len(data) < size:
            space = socket.CMSG_SPACE(64) if with_fds else 0
            piece, ancillary, _, _ = self.sock.recvmsg(size - len(data), space)
            if not piece:
                raise EOFError("the server hung up")
            data += piece
            for _, _, numbers in ancillary:
                fds.frombytes(numbers)
        return data, list(fds)

    def is_quiet(self) -> bool:
        """Tell whether the server has sent nothing and is still there."""
        self.step()
        return not select.select([self.sock], [], [], 0)[0]

    def hung_up(self) -> bool:
        """Tell whether the server has closed the connection and left nothing to read."""
        if self.is_quiet():
            return False
        try:
            return not self.sock.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def ask(self, command: int, payload: bytes = b"", *, fds: Sequence[int] = ()) -> Message:
        """Send a command and return its reply, whatever it says."""
        message_id = self.send(command, payload, fds=fds)
        message = self.receive()
        assert message.is_reply
        assert (message.message_id, message.command) == (message_id, command)
        return message

    def call(self, command: int, payload: bytes = b"", *, fds: Sequence[int] = ()) -> bytes:
        """Send a command and return the payload of its reply; RemoteError for an error reply."""
        message = self.ask(command, payload, fds=fds)
        for fd in message.fds:
            os.close(fd)
        if message.flags & proto.FLAGS_ERROR:
            assert message.payload == b""
            assert message.errno > 0
            raise RemoteError(message.errno, os.strerror(message.errno))
        assert message.flags == proto.FLAGS_REPLY
        assert message.errno == 0
        return message.payload

    # ---- commands ----

    def negotiate(self, minor: int = 0, capabilities: dict[str, object] | None = None) -> bytes:
        """Agree on a version."""
        return self.call(Command.VERSION, proto.pack_version(minor, capabilities))

    def dma_map(self, address: int, size: int, offset: int = 0, flags: int = 3, fd: int | None = None) -> None:
        """Map guest memory."""
        payload = proto.DMA_MAP.pack(32, flags, offset, address, size)
        assert self.call(Command.DMA_MAP, payload, fds=[] if fd is None else [fd]) == b""

    def dma_unmap(self, address: int, size: int, flags: int = 0) -> None:
        """Unmap guest memory."""
        payload = proto.DMA_UNMAP.pack(24, flags, address, size)
        assert self.call(Command.DMA_UNMAP, payload) == payload

    def region_info(self, index: int, argsz: int = 32) -> tuple[tuple[int, ...], bytes, int]:
        """Return the six fields of a region's information, the capabilities, and how many descriptors came."""
        message = self.ask(Command.DEVICE_GET_REGION_INFO, proto.REGION_INFO.pack(argsz, 0, index, 0, 0, 0))
        for fd in message.fds:
            os.close(fd)
        if message.errno:
            raise RemoteError(message.errno, os.strerror(message.errno))
        return proto.REGION_INFO.unpack_from(message.payload), message.payload[32:], len(message.fds)

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """Read a region."""
        head = proto.REGION_ACCESS.pack(offset, region, count)
        answer = self.call(Command.REGION_READ, head)
        assert answer[:16] == head
        return answer[16:]

    def region_write(self, region: int, offset: int, data: bytes, *, posted: bool = False) -> None:
        """Write a region; a posted write is sent and gets no reply."""
        head = proto.REGION_ACCESS.pack(offset, region, len(data))
        if posted:
            self.send(Command.REGION_WRITE, head + data, no_reply=True)
        else:
            assert self.call(Command.REGION_WRITE, head + data) == head

    def set_irqs(
        self,
        flags: int,
        index: int,
        start: int,
        count: int,
        *,
        bools: bytes = b"",
        fds: Sequence[int] = (),
        argsz: int | None = None,
    ) -> None:
        """Set up interrupts."""
        head = proto.SET_IRQS.pack(20 + len(bools) if argsz is None else argsz, flags, index, start, count)
        assert self.call(Command.DEVICE_SET_IRQS, head + bools, fds=fds) == b""

    def serve_dma(self, memory: bytearray) -> Message:
        """Answer one DMA message of the server's from `memory` and return it."""
        message = self.receive()
        address, count = proto.DMA_ACCESS.unpack_from(message.payload)
        head = message.payload[:16]
        if message.command == Command.DMA_READ:
            head += bytes(memory[address : address + count])
        else:
            assert message.command == Command.DMA_WRITE
            memory[address : address + count] = message.payload[16:]
        self.post_raw(proto.reply(message.message_id, message.command, head))
        return message


QEMU_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def memfd(size: int, *, seals: int = QEMU_SEALS) -> int:
    """Return a memory file of `size` bytes, sealed."""
    fd = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@contextlib.contextmanager
def closing(*fds: int) -> Iterator[tuple[int, ...]]:
    """Close descriptors at the end."""
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def eventfds(count: int) -> list[int]:
    """Return `count` eventfds as QEMU makes them."""
    return [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(count)]


def fired(fd: int) -> int:
    """Return the count of an eventfd and clear it."""
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


def header(message_id: int, command: int, size: int, flags: int = 0, errno: int = 0) -> bytes:
    """Return a header with any values."""
    return struct.pack("<HHIII", message_id, command, size, flags, errno)
