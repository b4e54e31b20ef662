"""The cable between slot and card: one connected unix socket, its messages, and the descriptors that belong to them.

Reading: descriptors belong to the message whose header they arrived with, but a large read may span
many messages. So a read first peeks, which tells (by MSG_CTRUNC) whether descriptors are in what it
saw: if not, all of it is taken at once; if so, exactly one header is taken with its descriptors.

One wake-up serves the client for 2 ms by the clock. What is left in the buffer then is taken up again after other
sockets, and with them other cards, had their turn. Writing never waits: see :mod:`vhca.vfio_user.outbox`.

While the server waits for the reply to a DMA message it goes on serving the client's commands, since
the client may need them to be served before it can reply. Both that time and what may arrive in it are bounded.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from vhca.hw.memory import DmaError
from vhca.vfio_user import proto
from vhca.vfio_user.counters import ServerCount
from vhca.vfio_user.eventfd import is_eventfd
from vhca.vfio_user.loop import Loop
from vhca.vfio_user.outbox import Outbox
from vhca.vfio_user.proto import FLAGS_NO_REPLY, HEADER_SIZE, REGION_WRITE
from vhca.vfio_user.session import Outgoing, Session
from vhca.vfio_user.wait_budget import WaitBudget

CHUNK_SIZE: Final = 64 << 10
"""Bytes taken from the socket in one read."""
SLICE_S: Final = 0.002
"""Time for one client's messages before other users of the loop get their turn."""
DMA_PIECE_SIZE: Final = 64 << 10
"""Bytes in one DMA message; QEMU cuts off a longer reply than its socket buffer takes at once."""
MAX_NESTED_DMA: Final = 8
"""DMA messages waiting for each other through commands served meanwhile."""
MAX_AHEAD: Final = 128
"""Other messages that are handled in one round while replies to DMA messages are being waited for."""
MAX_LOST_REPLIES: Final = 64
"""Replies that came too late, or never, before the client is given up."""
SLOW_WAKE_S: Final = 1.0
"""QEMU gives up on a reply after 5 s, and its whole machine stands still until then."""

_FDS_SPACE: Final = socket.CMSG_SPACE(proto.MAX_MSG_FDS * 4)
_MSG_PEEK: Final = int(socket.MSG_PEEK)
_MSG_CTRUNC: Final = int(socket.MSG_CTRUNC)
WRITE_HEAD_SIZE: Final = HEADER_SIZE + proto.REGION_ACCESS.size
WRITE_8_SIZE: Final = WRITE_HEAD_SIZE + 8
_unpack_header = proto.HEADER.unpack_from
_unpack_access = proto.REGION_ACCESS.unpack_from
_unpack_write = proto.MULTI_ENTRY.unpack_from
_monotonic = time.monotonic


class Connection:
    """One client's connection; implements :class:`vhca.vfio_user.dma.DmaChannel`.

    :ivar name: of the socket, for who has to find out whose step this is.
    :ivar lost: the connection is over; whoever notices calls :meth:`close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        counters: Counter[ServerCount],
        wait_budget: WaitBudget,
        loop: Loop,
        on_lost: Callable[[], None],
        log: Callable[[str, BaseException | None], None],
        name: str,
    ) -> None:
        """Serve `sock` in `loop` from now on; `on_lost()` is called from there once the connection is over."""
        sock.setblocking(False)
        self.name = name
        self.sock = sock
        self.session = session
        self.lost = False
        self._counters = counters
        self._wait_budget = wait_budget
        self._loop = loop
        self._on_lost = on_lost
        self._log = log
        self._outbox = Outbox(sock, loop, self._resume_soon, self._give_up)
        self._buffer = bytearray(proto.MAX_MESSAGE_SIZE + CHUNK_SIZE)
        self._view = memoryview(self._buffer)
        self._chunk = self._view[:CHUNK_SIZE]
        self._chunks = [self._chunk]
        # Unhandled bytes are buffer[_pos:_have]; _fds came with the header at _pos.
        self._pos = 0
        self._have = 0
        self._more = False
        self._fds: list[int] = []
        self._fds_bad = False
        self._next_id = 0
        self._replies: dict[int, tuple[int, bytes] | None] = {}
        self._lost_replies: set[int] = set()
        # Messages handled in this round of the loop while DMA messages waited.
        self._ahead = 0
        self._round_open = False
        self._resume_waits = False
        self._listening = False
        self._listen(True)

    def close(self) -> None:
        """Close the socket and the descriptors of a message that never became complete."""
        self.lost = True
        self._on_lost = _nothing
        self._outbox.close()
        self._listen(False)
        self._drop_fds()
        self.sock.close()

    @property
    def reads_on(self) -> bool:
        """Whether there is more in the buffer behind what is being handled."""
        return self._have > self._pos

    def hung_up(self) -> bool:
        """Tell whether the client has closed its end, though what it sent before may still be unread."""
        poll = select.poll()
        poll.register(self.sock, 0)
        return bool(poll.poll(0))

    def send(self, message: Outgoing) -> None:
        """Send one message, or keep it until the client reads."""
        self._outbox.send(message)

    # ---- turns ----

    def _turn(self) -> None:
        """Handle what has arrived, for a slice of time; what is left then has its turn in the next round."""
        if self.session.overloaded() and not self.lost:
            self._listen(False)
            self._resume_soon()
            return
        begin = time.monotonic()
        try:
            in_time = self._serve(begin + SLICE_S)
        except BaseException:
            # Out of memory, for example: half a message may be gone, so there is nothing to go on with.
            self._lose()
            raise
        if time.monotonic() - begin > SLOW_WAKE_S:
            self._counters[ServerCount.SLOW_WAKE] += 1
        if self.lost:
            self._end()
        elif self._outbox.full:
            # Goes on when the client has read; see _resume_soon.
            self._listen(False)
        elif not in_time and self._have > self._pos:
            self._listen(False)
            self._resume_soon()
        elif not self._listening:
            self._listen(True)

    def _serve(self, end: float) -> bool:
        """Handle what is in buffer and socket; False if the time is over, or the outbox full, before that."""
        if self._have > self._pos and not self._process(end):
            return False
        if not self._fill():
            self._check_urgent()
            return True
        while self._process(end):
            if not self._more or not self._fill():
                return True
        return False

    def _resume_soon(self) -> None:
        """Ask for one slice in the next round, however often this is called until then."""
        if not self._resume_waits:
            self._resume_waits = True
            self._loop.call_later(0, self._resume)

    def _resume(self) -> None:
        self._resume_waits = False
        if not self.lost:
            self._turn()

    def _listen(self, wanted: bool) -> None:
        if wanted != self._listening:
            self._listening = wanted
            if wanted:
                self._loop.add_reader(self.sock, self._turn)
            else:
                self._loop.remove_reader(self.sock)

    def _give_up(self, stalled: bool) -> None:
        if stalled:
            self._counters[ServerCount.CLIENT_DOES_NOT_READ] += 1
        self._lose()

    def _lose(self) -> None:
        """The connection is over; clear up when what is under way is done."""
        if self.lost:
            return
        self.lost = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._loop.call_later(0, self._end)

    def _end(self) -> None:
        self._on_lost()

    # ---- reading ----

    def _check_urgent(self) -> None:
        """Nothing to read though the socket said so: a byte out of band would keep it saying so for ever."""
        poll = select.poll()
        poll.register(self.sock, select.POLLPRI)
        if not self.lost and any(events & select.POLLPRI for _, events in poll.poll(0)):
            self._counters[ServerCount.FRAMING_ERROR] += 1
            self._lose()

    def _fill(self) -> bool:
        """Read once without blocking; return whether anything came, and note whether there may be more."""
        self._more = False
        if self._pos:
            rest = self._have - self._pos
            if rest:
                self._buffer[:rest] = self._buffer[self._pos : self._have]
            self._pos, self._have = 0, rest
        have = self._have
        if have:
            chunk = self._view[have : have + CHUNK_SIZE]
            chunks = [chunk]
        else:
            chunk, chunks = self._chunk, self._chunks
        try:
            seen, _, flags, _ = self.sock.recvmsg_into(chunks, 0, _MSG_PEEK)
            if flags & _MSG_CTRUNC:
                seen = self._take_header() if have < proto.HEADER_SIZE else self._take_body()
                self._have = have + seen
                self._more = seen > 0
                return self._more
            if not seen:
                self._lose()
                return False
            self._have = have + self.sock.recv_into(chunk, seen)
        except BlockingIOError:
            return False
        except OSError:
            self._lose()
            return False
        self._more = seen == CHUNK_SIZE
        return True

    def _take_header(self) -> int:
        """Read (the rest of) exactly one header, with its descriptors."""
        have = self._have
        target = self._view[have : proto.HEADER_SIZE]
        count, ancillary, flags, _ = self.sock.recvmsg_into([target], _FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        too_many = flags & _MSG_CTRUNC or len(self._fds) > proto.MAX_MSG_FDS
        # A socket, kept in wait for the rest of its message, could be the client's end of this very
        # connection, which then would never end.
        if too_many or not all(stat.S_ISREG(os.fstat(fd).st_mode) or is_eventfd(fd) for fd in self._fds):
            self._fds_bad = True
            self._drop_fds()
        return count

    def _take_body(self) -> int:
        """Read up to the end of the message, since descriptors of the next one may be in what was seen.

        Descriptors inside this message's body belong to nothing; the kernel drops them.
        """
        size = proto.HEADER.unpack_from(self._buffer)[2]
        count, _, flags, _ = self.sock.recvmsg_into([self._view[self._have : size]])
        if flags & _MSG_CTRUNC:
            self._counters[ServerCount.FDS_OUT_OF_PLACE] += 1
        return count

    def _drop_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    # ---- messages ----

    def _process(self, end: float, reply: int = -1) -> bool:
        """Handle the complete messages in the buffer, in order, until the reply to a request of ours has come.

        False if some are left because the time is over or the outbox full.
        """
        if self._outbox.full:
            return False
        replies, buffer, session = self._replies, self._buffer, self.session
        while not self.lost:
            # Handlers may come back here through a DMA message: no position is kept over a call.
            pos = self._pos
            if reply >= 0:
                if replies[reply] is not None:
                    return True
                if self._ahead >= MAX_AHEAD:
                    return False
            available = self._have - pos
            if available < HEADER_SIZE:
                return True
            message_id, command, size, flags, code = _unpack_header(buffer, pos)
            if command == REGION_WRITE and flags == FLAGS_NO_REPLY and WRITE_HEAD_SIZE <= size <= available:
                if size == WRITE_8_SIZE:
                    offset, region, count, data = _unpack_write(buffer, pos + HEADER_SIZE)
                else:
                    offset, region, count = _unpack_access(buffer, pos + HEADER_SIZE)
                    data = self._view[pos + WRITE_HEAD_SIZE : pos + size].tobytes()
                if count == len(data) and not self._fds and not self._fds_bad:
                    self._pos = pos + size
                    self._ahead += reply >= 0
                    session.posted_write(offset, region, data)
                    if session.closing:
                        self._lose()
                    if _monotonic() >= end:
                        return False
                    continue
            try:
                proto.check_size(size)
            except proto.ProtocolError as error:
                self._counters[ServerCount.FRAMING_ERROR] += 1
                self._refuse(message_id, command, flags, error.errno)
                self._lose()
                return True
            if available < size:
                return True
            payload = bytes(self._view[pos + proto.HEADER_SIZE : pos + size])
            self._pos = pos + size
            self._dispatch(message_id, command, flags, code, payload)
            if self._outbox.full or _monotonic() >= end:
                return False
        return True

    def _dispatch(self, message_id: int, command: int, flags: int, code: int, payload: bytes) -> None:
        fds, self._fds = self._fds, []
        bad, self._fds_bad = self._fds_bad, False
        kind = flags & proto.FLAGS_TYPE_MASK
        if kind != proto.FLAGS_REPLY and self._replies:
            self._ahead += 1
        if kind == proto.FLAGS_COMMAND and not bad:
            out = self.session.handle(message_id, command, flags, payload, fds)
            if out is not None:
                self.send(out)
            if self.session.closing:
                self._lose()
            return
        for fd in fds:
            os.close(fd)
        if kind == proto.FLAGS_REPLY:
            self._take_reply(message_id, flags, code, payload)
            return
        # An unknown message type, or more descriptors than a message may carry.
        self._counters[ServerCount.REFUSED] += 1
        self._refuse(message_id, command, flags, errno.EINVAL)
        if not self.session.negotiated:
            self._lose()

    def _refuse(self, message_id: int, command: int, flags: int, code: int) -> None:
        if not flags & FLAGS_NO_REPLY:
            self.send(Outgoing(proto.error_reply(message_id, command, code)))

    def _take_reply(self, message_id: int, flags: int, code: int, payload: bytes) -> None:
        if message_id in self._replies:
            if not flags & proto.FLAGS_ERROR:
                code = 0
            elif code not in errno.errorcode:
                code = errno.EIO
            self._replies[message_id] = (code, payload)
        elif message_id in self._lost_replies:
            self._lost_replies.discard(message_id)
            self._counters[ServerCount.LATE_REPLY] += 1
        else:
            # Answering a reply could start an endless exchange.
            self._counters[ServerCount.UNEXPECTED_REPLY] += 1

    # ---- DMA by message ----

    def dma_read(self, address: int, size: int) -> bytes:
        """Read guest memory by DMA_READ messages of at most 64 KiB; raises DmaError."""
        parts = []
        limit = min(DMA_PIECE_SIZE, self.session.client.max_data_xfer_size)
        for at in range(address, address + size, limit):
            count = min(limit, address + size - at)
            head = proto.DMA_ACCESS.pack(at, count)
            answer = self._request(proto.Command.DMA_READ, head, f"DMA_READ of {count} at {at:#x}")
            if len(answer) != len(head) + count or not answer.startswith(head):
                raise DmaError(f"DMA_READ of {count} at {at:#x}: malformed reply of {len(answer)} bytes")
            parts.append(answer[len(head) :])
        return b"".join(parts)

    def dma_write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write guest memory by DMA_WRITE messages of at most 64 KiB; raises DmaError."""
        limit = min(DMA_PIECE_SIZE, self.session.client.max_data_xfer_size)
        for done in range(0, len(data), limit):
            piece = bytes(data[done : done + limit])
            head = proto.DMA_ACCESS.pack(address + done, len(piece))
            self._request(proto.Command.DMA_WRITE, head + piece, f"DMA_WRITE of {len(piece)} at {address + done:#x}")

    def _request(self, command: int, payload: bytes, what: str) -> bytes:
        """Send a command to the client and return the payload of its reply."""
        if self.lost:
            raise DmaError(f"{what}: the client is gone")
        if self.session.awaiting_reply:
            # QEMU holds its big lock while it waits for our reply and so cannot serve DMA messages.
            self._counters[ServerCount.DMA_REFUSED] += 1
            raise DmaError(f"{what}: impossible while the client waits for a reply of this device")
        if len(self._replies) >= MAX_NESTED_DMA:
            self._counters[ServerCount.DMA_REFUSED] += 1
            raise DmaError(f"{what}: more than {MAX_NESTED_DMA} DMA messages wait for each other")
        if not self._round_open:
            self._round_open = True
            self._loop.call_later(0, self._new_round)
        if self._wait_budget.limit(time.monotonic()) <= 0 or self._ahead >= MAX_AHEAD:
            self._counters[ServerCount.DMA_REFUSED] += 1
            raise DmaError(f"{what}: this card has kept the others waiting long enough for now")
        message_id = self._next_id
        while message_id in self._replies or message_id in self._lost_replies:
            message_id = (message_id + 1) & 0xFFFF
        self._next_id = (message_id + 1) & 0xFFFF
        self._replies[message_id] = None
        try:
            self.send(Outgoing(proto.request(message_id, command, payload)))
            code, answer = self._await_reply(message_id, what)
        finally:
            del self._replies[message_id]
        if code:
            raise DmaError(f"{what}: {os.strerror(code)}")
        return answer

    def _await_reply(self, message_id: int, what: str) -> tuple[int, bytes]:
        """Wait as long as this card may keep the others waiting."""
        begin = time.monotonic()
        try:
            return self._serve_until(message_id, begin + self._wait_budget.limit(begin), what)
        finally:
            if self._wait_budget.spend(begin, time.monotonic()) and not self.lost:
                self._counters[ServerCount.SLOW_DMA_CLIENT] += 1
                self._log("dropped: it keeps DMA messages waiting, and with them all cards of this process", None)
                self._lose()

    def _serve_until(self, message_id: int, deadline: float, what: str) -> tuple[int, bytes]:
        while True:
            in_time = self._process(deadline, message_id)
            reply = self._replies[message_id]
            if reply is not None:
                return reply
            if self.lost:
                raise DmaError(f"{what}: the client went away")
            if self._ahead >= MAX_AHEAD:
                self._counters[ServerCount.DMA_OVERTAKEN] += 1
                self._no_reply(message_id, f"{what}: no reply among {MAX_AHEAD} messages")
            if not (in_time and self._fill()) and not self._wait(deadline - time.monotonic()):
                self._counters[ServerCount.DMA_TIMEOUT] += 1
                self._no_reply(message_id, f"{what}: no reply in time")

    def _no_reply(self, message_id: int, text: str) -> NoReturn:
        self._lost_replies.add(message_id)
        if len(self._lost_replies) > MAX_LOST_REPLIES:
            self._lose()
        raise DmaError(text)

    def _new_round(self) -> None:
        self._round_open = False
        self._ahead = 0
        self._wait_budget.new_round()
        if self._have > self._pos and not self.lost:
            # What came before a reply that was waited for has been handled, what came behind it has not.
            self._resume_soon()

    def _wait(self, timeout_s: float) -> bool:
        """Wait for something to read, or for room to write what waits; False if the time is over."""
        if timeout_s <= 0:
            return False
        poll = select.poll()
        outbox = self._outbox
        poll.register(self.sock, (0 if outbox.full else select.POLLIN) | (select.POLLOUT if outbox.waiting else 0))
        events = poll.poll(timeout_s * 1000)
        if events and events[0][1] & select.POLLOUT:
            outbox.flush()
        return bool(events)


def _nothing() -> None:
    pass
