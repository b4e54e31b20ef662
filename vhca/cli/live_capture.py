"""The reader of a live capture: asks a rack for it, and passes it on to standard output as it comes.

If the next program is slow, so is this process; the rack then drops, and counts what it has dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK: Final = 1 << 16
_TAIL_BYTES: Final = 1 << 20
"""Of the end, where the statistics are."""
_ANSWER_S: Final = 40.0
_MAX_ANSWER_BYTES: Final = 1 << 16
_STATISTICS: Final = 5
_RECEIVED: Final = 4
_DROPPED: Final = 5
_END: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<II")
_OPTION: Final = struct.Struct("<HH")


class Ended(Exception):
    """There is no capture to be had; the text says why."""


def ask(path: Path, fields: dict[str, Any]) -> socket.socket:
    """Order a live capture of the rack whose control socket this is; what comes from now on is pcapng.

    :raises Ended: it refused.
    :raises OSError: it cannot be reached.
    """
    request = {"order": "capture_live"} | {key: value for key, value in fields.items() if value is not None}
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_ANSWER_S), 0))
        sock.connect(str(path))
        sock.settimeout(_ANSWER_S)
        sock.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            # One by one: what is behind the line is the capture's.
            byte = sock.recv(1)
            if not byte or len(line) > _MAX_ANSWER_BYTES:
                raise Ended("the rack has hung up")
            line += byte
        answer = json.loads(line)
        if not isinstance(answer, dict) or "error" in answer:
            raise Ended(str(answer["error"]) if isinstance(answer, dict) else "what listens there is no rack")
        sock.settimeout(None)
    except BaseException as error:
        sock.close()
        if isinstance(error, ValueError):
            raise Ended("what listens there is no rack of this version") from error
        raise
    return sock


def pass_on(sock: socket.socket, output: int) -> bytes:
    """Copy to a descriptor until the rack ends it, or Ctrl-C asks it to; the last of what came.

    :raises BrokenPipeError: nobody reads there any more.
    """

    def ask_to_end(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second time it is meant

    before = {number: signal.signal(number, ask_to_end) for number in (signal.SIGINT, signal.SIGTERM)}
    tail = bytearray()
    try:
        while data := _next(sock, output):
            view = memoryview(data)
            while view:
                view = view[os.write(output, view) :]
            tail += data
            if len(tail) > 2 * _TAIL_BYTES:
                del tail[:-_TAIL_BYTES]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return bytes(tail)


def _next(sock: socket.socket, output: int) -> bytes:
    """What comes next; who reads our output may go while nothing comes.

    :raises BrokenPipeError: he has.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(output, 0)
    for descriptor, _ in poll.poll():
        if descriptor == output:
            raise BrokenPipeError
    return sock.recv(_CHUNK)


def summary(tail: bytes) -> tuple[int, int] | None:
    """What was seen and what of it is missing, by the statistics at the end; None if there are none."""
    found = [dict(options) for options in _last_statistics(tail)]
    if not found:
        return None
    return sum(each.get(_RECEIVED, 0) for each in found), sum(each.get(_DROPPED, 0) for each in found)


def _last_statistics(tail: bytes) -> Iterator[list[tuple[int, int]]]:
    """Options of the statistics blocks at the end, the last first: codes, and values of eight bytes."""
    end = len(tail)
    while end >= 12:
        (size,) = _END.unpack_from(tail, end - 4)
        start = end - size
        if size < 12 or start < 0 or _HEAD.unpack_from(tail, start) != (_STATISTICS, size):
            return
        options = []
        at = start + 20
        while at + 4 <= end - 4:
            code, length = _OPTION.unpack_from(tail, at)
            if length == 8 and at + 12 <= end:
                options.append((code, int.from_bytes(tail[at + 4 : at + 12], "little")))
            at += 4 + length + (-length & 3)
        yield options
        end = start


def complain(text: str) -> None:
    """Say something beside the capture."""
    print(text, file=sys.stderr, flush=True)
