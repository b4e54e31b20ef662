"""A program under libumad2sim, without the library: the same sockets and messages."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from typing import Any

from tests.support.smps import directed_get
from vhca.ibsim import proto
from vhca.ibsim.proto import Control, Datagram, Kind
from vhca.wire.mad import MadHeader, Smp
from vhca.wire.packet import PERMISSIVE_LID

_NUMBERS = itertools.count(1_000_000)  # as those of processes, which they are for the library


class Tool:
    """One attached program; a context manager."""

    def __init__(self, base: str, node: str = "", manager: bool = False) -> None:
        self.base = base
        self.number = next(_NUMBERS)
        self._stack = contextlib.ExitStack()
        self.control = self._socket(f"\0{base}:ctl{self.number}\0")
        self.data = self._socket(f"\0{base}:in{self.number}\0")
        self.control.connect(f"\0{base}:ctl\0")
        answer = self.say(Kind.CONNECT, struct.pack("<III32s", self.number, 0, manager, node.encode()), client=0)
        self.attached = answer.kind == Kind.CONNECT
        self.slot = struct.unpack_from("<I", answer.data)[0] if self.attached else -1
        if self.attached:
            self.data.connect(f"\0{base}:out{self.slot}\0")
        self._tid = 0

    def _socket(self, name: str) -> socket.socket:
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        sock.settimeout(10)
        sock.bind(name)
        return sock

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End without taking leave."""
        self._stack.close()

    def say(self, kind: int, data: bytes = b"", client: int | None = None) -> Control:
        """Send a control message and give the answer."""
        number = self.slot if client is None else client
        self.control.send(proto.CONTROL.pack(proto.MAGIC, number, kind, len(data), data))
        return proto.parse_control(self.control.recv(512))

    def send(self, mad: bytes, dlid: int = PERMISSIVE_LID, qp: int = 0) -> None:
        """Send a datagram."""
        slid = PERMISSIVE_LID if dlid == PERMISSIVE_LID else 0
        self.data.send(proto.DATA.pack(dlid, slid, qp, qp, 0, len(mad), mad))

    def receive(self) -> Datagram:
        """The next datagram."""
        return proto.parse_data(self.data.recv(512))

    def smp(self, attribute: int, path: tuple[int, ...] = (), **fields: Any) -> Smp:
        """A Get by directed route."""
        self._tid += 1
        return directed_get(self._tid, attribute, path, **fields)

    def ask(self, request: Smp, dlid: int = PERMISSIVE_LID) -> Smp | None:
        """The answer to an SMP; None if it comes back unanswered."""
        self.send(request.to_bytes(), dlid)
        return self.answer(request.tid)

    def answer(self, tid: int) -> Smp | None:
        """The answer to the SMP of this number, past all others; None if it comes back unanswered."""
        while True:
            datagram = self.receive()
            if MadHeader.from_bytes(datagram.mad).tid & 0xFFFFFFFF == tid:
                return None if datagram.status else Smp.from_bytes(datagram.mad)


def as_nobody(send: Any) -> int:
    """Do something in a process of another user; gives its exit status. For root only."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            send()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
